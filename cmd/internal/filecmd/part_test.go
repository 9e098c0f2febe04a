package filecmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/rquota"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// brokenFS fails what is read or written from a place on, and calls at there first.
type brokenFS struct {
	blockstore.FS
	from atomic.Uint64 // 0 = nowhere
	at   atomic.Pointer[func()]
	read atomic.Uint64 // bytes
}

func (b *brokenFS) fails(off uint64, n int) bool {
	from := b.from.Load()
	if from == 0 || off+uint64(n) <= from {
		return false
	}
	if f := b.at.Load(); f != nil {
		(*f)()
	}
	return true
}

// ReadAt implements blockstore.FS.
func (b *brokenFS) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool,
	error,
) {
	if b.fails(off, len(p)) {
		return 0, false, blockstore.ErrIO
	}
	b.read.Add(uint64(len(p)))
	return b.FS.ReadAt(c, h, p, off, nowait)
}

// WriteAt implements blockstore.FS.
func (b *brokenFS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64,
	how blockstore.Stability,
) (int, blockstore.Stability, blockstore.Wcc, error) {
	if b.fails(off, len(p)) {
		return 0, 0, blockstore.Wcc{}, blockstore.ErrIO
	}
	return b.FS.WriteAt(c, h, p, off, how)
}

// rig is a server with files in memory, and a copier for either way.
type rig struct {
	t     *testing.T
	store *brokenFS
	url   string
	dir   string // of this host
	said  bytes.Buffer
	vers  client.Version
	srv   *rpc.Server
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t: t, store: &brokenFS{FS: memfs.New(memfs.Options{RootMode: 0o777})}, dir: t.TempDir(), vers: client.Version3,
	}
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{ID: 1, Pseudo: "/data", FS: r.store}); err != nil {
		t.Fatal(err)
	}
	cfg := nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("secret"))}
	four := nfs4.New(nfs4.Config{Config: cfg, Identity: []byte("test"), Boot: 1, Locks: lock.New(0)})
	srv := rpc.NewServer(rpc.ServerConfig{
		Programs: slices.Concat(nfs3.Programs(cfg), four.Programs(), rquota.Programs(cfg, time.Now)),
	})
	r.srv = srv
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := tcp.Serve(l, srv)
	t.Cleanup(func() {
		_ = s.Close()
		srv.Close()
	})
	r.url = "nfs+tcp://" + l.Addr().String() + "/data"
	return r
}

// copy copies as put, get and cp do, with chunks of 1 MiB.
func (r *rig) copy(ctx context.Context, o copyFlags, chunk uint64, from, to string) error {
	r.t.Helper()
	d := &dial.Dialer{Version: r.vers, GiveUp: 10 * time.Second}
	defer func() { _ = d.Close() }()
	u := &run{tool: &tool{g: &cli.Globals{Out: io.Discard, Err: &r.said, Quiet: true}}, ctx: ctx, dialer: d}
	dst, err := u.find(to, true, true)
	if err != nil {
		r.t.Fatal(err)
	}
	src, err := u.find(from, true, false)
	if err != nil {
		r.t.Fatal(err)
	}
	k := newCopier(u, src.side, dst.side, 4)
	k.owner, k.resume, k.verify, k.recursive, k.chunk = o.owner, o.resume, o.verify, o.recursive, chunk
	if o.recursive {
		k.later.side, _ = dst.side.(lateSyncer)
	}
	into, name := dst.into, dst.name
	if dst.o != nil {
		if into, err = u.parentOf(dst); err != nil {
			r.t.Fatal(err)
		}
	}
	k.run(src.o, into, name)
	if u.failed > 0 {
		return &errSome{u.failed}
	}
	return ctx.Err()
}

// remoteFile is what a file of the server has; nil if it is not there.
func (r *rig) remoteFile(name string) ([]byte, *blockstore.Attr) {
	r.t.Helper()
	root, err := r.store.Root()
	if err != nil {
		r.t.Fatal(err)
	}
	h, a, err := r.store.Lookup(nil, root, name)
	if errors.Is(err, blockstore.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	b := make([]byte, a.Size)
	if _, _, err := r.store.FS.ReadAt(nil, h, b, 0, false); err != nil {
		r.t.Fatal(err)
	}
	return b, &a
}

// names are the names of the server's directory.
func (r *rig) names() (all []string) {
	r.t.Helper()
	root, err := r.store.Root()
	if err != nil {
		r.t.Fatal(err)
	}
	if _, _, err := r.store.ReadDir(nil, root, 0, [8]byte{}, false, func(e *blockstore.DirEntry) bool {
		if e.Name != "." && e.Name != ".." {
			all = append(all, e.Name)
		}
		return true
	}); err != nil {
		r.t.Fatal(err)
	}
	return all
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

func (r *rig) write(name string, b []byte, mode fs.FileMode) string {
	r.t.Helper()
	p := filepath.Join(r.dir, name)
	if err := os.WriteFile(p, b, mode); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chmod(p, mode); err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) list() (all []string) {
	r.t.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

const copied = 4<<20 + 77

// TestOldTargetStays: a copy that fails, or is interrupted, leaves the target of before as it was,
// and nothing else. One that succeeds replaces it, with the mode of the source, without set-ID
// bits.
func TestOldTargetStays(t *testing.T) {
	for _, interrupt := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		r := newRig(t)
		if interrupt {
			stop := func() { cancel() }
			r.store.at.Store(&stop)
		}
		data, old := random(copied, 1), []byte("the old one")
		src := r.write("src", data, 0o644)
		if err := os.Chmod(src, 0o640|fs.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		target := r.write("target", old, 0o604)
		for _, c := range []struct{ from, to string }{{target, r.url + "/file"}, {src, r.url + "/src"}} {
			if err := r.copy(t.Context(), copyFlags{}, resumeChunk, c.from, c.to); err != nil {
				t.Fatal(err, r.said.String())
			}
		}
		r.store.from.Store(3 << 20)
		if err := r.copy(ctx, copyFlags{}, resumeChunk, src, r.url+"/file"); err == nil {
			t.Error("put: no error")
		}
		if b, a := r.remoteFile("file"); !bytes.Equal(b, old) || a.Mode != 0o604 || len(r.names()) != 2 {
			t.Errorf("put: the target has %d bytes, %+v; there are %q", len(b), a, r.names())
		}
		ctx, cancel = context.WithCancel(t.Context())
		if err := r.copy(ctx, copyFlags{}, resumeChunk, r.url+"/src", target); err == nil {
			t.Error("get: no error")
		}
		if b, err := os.ReadFile(target); !bytes.Equal(b, old) || err != nil || len(r.list()) != 2 {
			t.Errorf("get: the target has %d bytes, %v; there are %q", len(b), err, r.list())
		}
		cancel()
		r.store.from.Store(0)
		if err := r.copy(t.Context(), copyFlags{verify: true}, resumeChunk, src, r.url+"/file"); err != nil {
			t.Error(err, r.said.String())
		}
		if b, a := r.remoteFile("file"); !bytes.Equal(b, data) || a.Mode != 0o640 || len(r.names()) != 2 {
			t.Errorf("put: the target has %d bytes, %+v; there are %q", len(b), a, r.names())
		}
		if err := r.copy(t.Context(), copyFlags{verify: true}, resumeChunk, r.url+"/src", target); err != nil {
			t.Error(err, r.said.String())
		}
		st, err := os.Stat(target)
		if b, _ := os.ReadFile(target); err != nil || !bytes.Equal(b, data) || st.Mode() != 0o640 || len(r.list()) != 2 {
			t.Errorf("get: the target has %d bytes, %v, %v; there are %q", len(b), st.Mode(), err, r.list())
		}
	}
}

// TestTargetIsReplaced: a target is a new file. A symbolic link in its place is not followed, and
// another name of the old target keeps the old data. A directory is not replaced.
func TestTargetIsReplaced(t *testing.T) {
	r := newRig(t)
	src := r.write("src", []byte("new"), 0o644)
	if err := r.copy(t.Context(), copyFlags{}, resumeChunk, src, r.url+"/src"); err != nil {
		t.Fatal(err)
	}
	pointed, hard := r.write("pointed", []byte("old"), 0o644), r.write("hard", []byte("old"), 0o644)
	link, name := filepath.Join(r.dir, "link"), filepath.Join(r.dir, "name")
	if err := errors.Join(os.Symlink("pointed", link), os.Link(hard, name),
		os.Mkdir(filepath.Join(r.dir, "directory"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{link, name} {
		if err := r.copy(t.Context(), copyFlags{}, resumeChunk, r.url+"/src", to); err != nil {
			t.Error(err, r.said.String())
		}
		if st, err := os.Lstat(to); err != nil || !st.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", to, st.Mode(), err)
		}
		if b, _ := os.ReadFile(to); string(b) != "new" {
			t.Errorf("%s has %q", to, b)
		}
	}
	for _, old := range []string{pointed, hard} {
		if b, _ := os.ReadFile(old); string(b) != "old" {
			t.Errorf("%s has %q", old, b)
		}
	}
	if err := r.copy(t.Context(), copyFlags{}, resumeChunk, r.url+"/src", filepath.Join(r.dir, "directory")); err == nil {
		t.Error("a directory was replaced")
	}
	if strings.Contains(strings.Join(r.list(), " "), "part") {
		t.Errorf("there are %q", r.list())
	}
}

// TestResume: with --resume a copy goes on where one before has failed, both ways, and does not
// read again what is there.
func TestResume(t *testing.T) {
	const chunk = 1 << 20
	r := newRig(t)
	data := random(copied, 2)
	src := r.write("src", data, 0o644)
	if err := r.copy(t.Context(), copyFlags{}, chunk, src, r.url+"/src"); err != nil {
		t.Fatal(err)
	}
	o := copyFlags{resume: true}
	r.store.from.Store(3<<20 + 5)
	put := func() error { return r.copy(t.Context(), o, chunk, src, r.url+"/file") }
	get := func() error { return r.copy(t.Context(), o, chunk, r.url+"/src", filepath.Join(r.dir, "back")) }
	if put() == nil || get() == nil {
		t.Fatal("no error")
	}
	part := ""
	for _, n := range r.names() {
		if strings.HasPrefix(n, ".file.rstored-part-") {
			part = n
		}
	}
	if b, a := r.remoteFile(part); a == nil || a.Mode != 0o600 || len(b) < 3<<20 || !bytes.Equal(b[:3<<20], data[:3<<20]) {
		t.Fatalf("put: %q has %d bytes, %+v", part, len(b), a)
	}
	parts, err := filepath.Glob(filepath.Join(r.dir, ".back.rstored-part-*"))
	if err != nil || len(parts) != 1 {
		t.Fatalf("get: %q, %v", parts, err)
	}
	r.store.from.Store(0)
	if err := put(); err != nil {
		t.Error(err, r.said.String())
	}
	if b, a := r.remoteFile("file"); !bytes.Equal(b, data) || a.Mode != 0o644 || len(r.names()) != 2 {
		t.Errorf("put: the target has %d bytes, %+v; there are %q", len(b), a, r.names())
	}
	r.store.read.Store(0)
	if err := get(); err != nil {
		t.Error(err, r.said.String())
	}
	if b, err := os.ReadFile(filepath.Join(r.dir, "back")); !bytes.Equal(b, data) || err != nil || len(r.list()) != 2 {
		t.Errorf("get: the target has %d bytes, %v; there are %q", len(b), err, r.list())
	}
	if n := r.store.read.Load(); n > copied-2<<20 {
		t.Errorf("%d bytes were read again", n)
	}
}

// TestPartsOfOthers: --resume goes on with no file that somebody else may have put there, or may
// have written to, nor with a part of what the source was before.
func TestPartsOfOthers(t *testing.T) {
	const chunk = 1 << 20
	data := random(copied, 3)
	for _, c := range []struct {
		name string
		make func(r *rig, part string) error
		ours bool
	}{
		{"ours", func(_ *rig, part string) error { return os.WriteFile(part, data[:2<<20+1], 0o600) }, true},
		{"another mode", func(_ *rig, part string) error {
			return errors.Join(os.WriteFile(part, make([]byte, 2<<20), 0o600), os.Chmod(part, 0o666))
		}, false},
		{"a further name", func(r *rig, part string) error {
			other := filepath.Join(r.dir, "other")
			return errors.Join(os.WriteFile(other, make([]byte, 2<<20), 0o600), os.Link(other, part))
		}, false},
		{"a symbolic link", func(r *rig, part string) error {
			other := filepath.Join(r.dir, "other")
			return errors.Join(os.WriteFile(other, make([]byte, 2<<20), 0o600), os.Symlink(other, part))
		}, false},
		{"a fifo", func(_ *rig, part string) error { return unix.Mkfifo(part, 0o600) }, false},
		{"another owner", func(_ *rig, part string) error {
			return errors.Join(os.WriteFile(part, make([]byte, 2<<20), 0o600), os.Chown(part, 12345, 12345))
		}, false},
		{"longer than the source", func(_ *rig,
			part string,
		) error {
			return os.WriteFile(part, make([]byte, copied+1), 0o600)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if err := r.copy(t.Context(), copyFlags{}, chunk, r.write("src", data, 0o644), r.url+"/src"); err != nil {
				t.Fatal(err)
			}
			_, a := r.remoteFile("src")
			d := &dial.Dialer{Version: client.Version3}
			defer func() { _ = d.Close() }()
			u := &run{tool: &tool{g: &cli.Globals{}}, ctx: t.Context(), dialer: d}
			from, err := u.find(r.url+"/src", true, false)
			if err != nil || from.o.attr.FileID != a.FileID {
				t.Fatal(err)
			}
			part := filepath.Join(r.dir, partName("back", version(&from.o.attr)))
			if err := c.make(r, part); errors.Is(err, fs.ErrPermission) {
				t.Skip("this takes root:", err)
			} else if err != nil {
				t.Fatal(err)
			}
			r.store.read.Store(0)
			back := filepath.Join(r.dir, "back")
			if err := r.copy(t.Context(), copyFlags{resume: true}, chunk, r.url+"/src", back); err != nil {
				t.Fatal(err, r.said.String())
			}
			if b, err := os.ReadFile(back); !bytes.Equal(b, data) || err != nil {
				t.Errorf("the copy has %d bytes, %v", len(b), err)
			}
			if again := r.store.read.Load() >= copied; again == c.ours {
				t.Errorf("%d bytes were read", r.store.read.Load())
			}
			if _, err := os.Lstat(part); errors.Is(err, fs.ErrNotExist) != c.ours {
				t.Errorf("the file that was there: %v", err)
			}
		})
	}
}

// TestSourceChanges: a copy that could be resumed is not finished when its source has changed
// meanwhile.
func TestSourceChanges(t *testing.T) {
	r := newRig(t)
	src := r.write("src", random(copied, 4), 0o644)
	r.store.from.Store(2 << 20)
	o := copyFlags{resume: true}
	if err := r.copy(t.Context(), o, 1<<20, src, r.url+"/file"); err == nil {
		t.Fatal("no error")
	}
	r.write("src", random(copied, 5), 0o644)
	r.store.from.Store(0)
	if err := r.copy(t.Context(), o, 1<<20, src, r.url+"/file"); err != nil {
		t.Fatal(err)
	}
	if b, _ := r.remoteFile("file"); !bytes.Equal(b, random(copied, 5)) {
		t.Error("the copy has data of the source as it was before")
	}
	// And while it is copied.
	late := func() {
		if err := os.Chtimes(src, time.Unix(5, 0), time.Unix(5, 0)); err != nil {
			t.Error(err)
		}
	}
	k := &copier{r: &run{tool: &tool{g: &cli.Globals{Err: io.Discard}}, ctx: t.Context()}, src: local{}, chunk: 1 << 20}
	from, err := localObject(src, false)
	if err != nil {
		t.Fatal(err)
	}
	late()
	p := &part{stays: true, done: copied}
	if err := k.data(t.Context(), from, p); err == nil || p.stays {
		t.Errorf("%v, the part stays: %t", err, p.stays)
	}
}

// unsynced is this host's side of a copy with the directories whose names may not be on disk.
type unsynced struct {
	local
	mu   sync.Mutex
	dirs map[string]bool
	fail error
	late atomic.Int64 // files that syncFS has to sync
}

func (u *unsynced) changed(dir *object) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.dirs[dir.path] = true
}

func (u *unsynced) mkdir(ctx context.Context, dir *object, name string) (*object, error) {
	u.changed(dir)
	return u.local.mkdir(ctx, dir, name)
}

func (u *unsynced) rename(ctx context.Context, dir *object, from, to string) error {
	u.changed(dir)
	return u.local.rename(ctx, dir, from, to)
}

func (u *unsynced) symlink(ctx context.Context, dir *object, name, target string) error {
	u.changed(dir)
	return u.local.symlink(ctx, dir, name, target)
}

func (u *unsynced) link(ctx context.Context, o, dir *object, name string) error {
	u.changed(dir)
	return u.local.link(ctx, o, dir, name)
}

func (u *unsynced) renameNew(ctx context.Context, dir *object, from, to string) error {
	u.changed(dir)
	u.late.Add(1)
	return u.local.renameNew(ctx, dir, from, to)
}

func (u *unsynced) syncFS(f *os.File) error {
	if u.fail != nil {
		return u.fail
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.dirs) // all on one file system
	return u.local.syncFS(f)
}

func (u *unsynced) syncDir(o *object) error {
	if u.fail != nil {
		return u.fail
	}
	if err := u.local.syncDir(o); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.dirs, o.path)
	return nil
}

// TestNamesAreDurable: when a copy is done, every directory that it gave a name in was synced after
// that. A sync that fails is a copy that fails.
func TestNamesAreDurable(t *testing.T) {
	r := newRig(t)
	tree := filepath.Join(r.dir, "tree")
	// The files are empty, as data is copied from or to a server only.
	if err := errors.Join(os.MkdirAll(filepath.Join(tree, "in", "ner"), 0o755),
		os.Mkdir(filepath.Join(tree, "closed"), 0o755),
		os.WriteFile(filepath.Join(tree, "a"), nil, 0o644), os.Link(filepath.Join(tree, "a"), filepath.Join(tree, "in", "b")),
		os.Symlink("a", filepath.Join(tree, "in", "c")), os.WriteFile(filepath.Join(tree, "closed", "d"), nil, 0o644),
		os.Chmod(filepath.Join(tree, "closed"), 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(tree, "closed"), 0o700) })
	for i, fail := range []error{nil, unix.EIO, nil, unix.EIO} {
		together := i > 1
		into, err := localObject(t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		from, err := localObject(tree, false)
		if err != nil {
			t.Fatal(err)
		}
		u := &run{tool: &tool{g: &cli.Globals{Err: &r.said, Quiet: true}}, ctx: t.Context()}
		dst := &unsynced{dirs: map[string]bool{}, fail: fail}
		k := newCopier(u, local{}, dst, 4)
		k.recursive = true
		if together {
			k.later.side = dst
		}
		k.run(from, into, "copy")
		if fail != nil {
			if u.failed == 0 {
				t.Error("a directory could not be synced, and the copy has not failed")
			}
			continue
		}
		if together != (dst.late.Load() > 0) {
			t.Errorf("%d files were left to the sync at the end", dst.late.Load())
		}
		if u.failed > 0 || len(dst.dirs) > 0 {
			t.Errorf("%d failed, %v are not synced: %s", u.failed, dst.dirs, r.said.String())
		}
		if b, err := os.Readlink(filepath.Join(into.path, "copy", "in", "c")); b != "a" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
	}
}

// TestOldPartsExpire: a copy that can be resumed removes what earlier ones have left of what its
// source is no more, when that is a day old, and nothing else.
func TestOldPartsExpire(t *testing.T) {
	r := newRig(t)
	if err := r.copy(t.Context(), copyFlags{}, 1<<20, r.write("src", random(copied, 6), 0o644), r.url+"/src"); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-25 * time.Hour)
	left := map[string]bool{}
	for _, c := range []struct {
		name  string
		mode  fs.FileMode
		time  time.Time
		stays bool
	}{
		{partName("back", "0123456789abcdef"), 0o600, old, false},
		{partName("back", "1123456789abcdef"), 0o600, time.Now(), true}, // it may be in the making
		{partName("back", "2123456789abcdef"), 0o644, old, true},        // not one of ours
		{partName("back", "short"), 0o600, old, true},
		{partName("backup", "3123456789abcdef"), 0o600, old, true},
	} {
		p := r.write(c.name, []byte("part"), c.mode)
		if err := os.Chtimes(p, c.time, c.time); err != nil {
			t.Fatal(err)
		}
		left[c.name] = c.stays
	}
	if err := r.copy(t.Context(), copyFlags{resume: true}, 1<<20, r.url+"/src", filepath.Join(r.dir, "back")); err != nil {
		t.Fatal(err, r.said.String())
	}
	for name, stays := range left {
		if _, err := os.Lstat(filepath.Join(r.dir, name)); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPartName: names fit, and end in a whole character.
func TestPartName(t *testing.T) {
	for _, name := range []string{"a", strings.Repeat("n", 255), strings.Repeat("ü", 127), strings.Repeat("\xff", 255)} {
		p := partName(name, newID())
		if len(p) > nameMax || !strings.HasPrefix(p, "."+name[:1]) || !strings.Contains(p, ".rstored-part-") ||
			strings.HasPrefix(name, "ü") && strings.ToValidUTF8(p, "?") != p {
			t.Errorf("%q", p)
		}
	}
}

// TestLinksAndFifos: what is no file replaces what is there, too, and nothing is left beside it.
func TestLinksAndFifos(t *testing.T) {
	for _, version := range []string{"3", "4.2"} {
		t.Run(version, func(t *testing.T) { linksAndFifos(t, version) })
	}
}

func linksAndFifos(t *testing.T, version string) {
	r := newRig(t)
	tree := filepath.Join(r.dir, "tree")
	if err := errors.Join(os.Mkdir(tree, 0o755), os.WriteFile(filepath.Join(tree, "a"), []byte("x"), 0o644),
		os.Link(filepath.Join(tree, "a"), filepath.Join(tree, "b")),
		os.Symlink("a", filepath.Join(tree, "c")), unix.Mkfifo(filepath.Join(tree, "d"), 0o640),
		os.Chmod(filepath.Join(tree, "d"), 0o640)); err != nil {
		t.Fatal(err)
	}
	root := &cobra.Command{Use: "rstorectl"}
	g := &cli.Globals{Out: io.Discard, Err: &r.said, Quiet: true}
	root.AddCommand(Commands(g)...)
	for range 2 {
		for _, args := range [][]string{
			{"put", "-r", tree, r.url},
			{"get", "-r", r.url + "/tree", filepath.Join(r.dir, "back")},
		} {
			root.SetArgs(append(args, "--nfs-version", version))
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err, r.said.String())
			}
		}
		// The second time there are others in their places, or the same.
		if err := errors.Join(os.RemoveAll(filepath.Join(r.dir, "back")),
			os.MkdirAll(filepath.Join(r.dir, "back", "tree"), 0o755),
			os.Symlink("/nowhere", filepath.Join(r.dir, "back", "tree", "d")),
			unix.Mkfifo(filepath.Join(r.dir, "back", "tree", "c"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadDir(filepath.Join(r.dir, "back", "tree"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range got {
		if strings.Contains(e.Name(), "part") {
			t.Errorf("%s is left", e.Name())
		}
	}
}
