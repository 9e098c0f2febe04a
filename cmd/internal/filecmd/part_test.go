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
	"sync/atomic"
	"testing"
	"time"

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
	k.ahead = 0 // small files are always gathered
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
		r := newRig(t)
		cut := func() (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			if stop := (func())(cancel); interrupt {
				r.store.at.Store(&stop)
			}
			return ctx, cancel
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
		ctx, cancel := cut()
		if err := r.copy(ctx, copyFlags{}, resumeChunk, src, r.url+"/file"); err == nil {
			t.Error("put: no error")
		}
		cancel()
		if b, a := r.remoteFile("file"); !bytes.Equal(b, old) || a.Mode != 0o604 || len(r.names()) != 2 {
			t.Errorf("put: the target has %d bytes, %+v; there are %q", len(b), a, r.names())
		}
		ctx, cancel = cut()
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
