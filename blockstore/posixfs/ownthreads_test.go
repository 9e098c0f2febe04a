package posixfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/blockstore/storetest"
	"golang.org/x/sys/unix"
)

func testSwitches(t *testing.T, apart bool) {
	k := newCaller(true, apart)
	before, err := capabilities()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*blockstore.Cred{user, {}, storetest.Other} {
		for range 3 {
			if err := k.as(c, func() error {
				data, err := capabilities()
				want := before
				if c.UID != 0 {
					want[0].Effective, want[1].Effective = 0, 0
				}
				if data != want {
					t.Errorf("as %d: capabilities %#x, want %#x", c.UID, data, want)
				}
				if uid := setFSUID(noID); uid != c.UID {
					t.Errorf("as %d: files are made for %d", c.UID, uid)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if after, err := capabilities(); err != nil || after != before {
				t.Fatalf("after %d: %#x, %v; was %#x", c.UID, after, err, before)
			}
		}
	}
}

// TestOwnThreads: what runs on the threads that take on identities is nothing else, also after a
// panic, which goes where it would have gone.
func TestOwnThreads(t *testing.T) {
	needRoot(t)
	k := newCaller(true, true)
	var mu sync.Mutex
	acting := make(map[int]bool)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			defer func() {
				if v := recover(); (v != nil) != (i%10 == 0) {
					t.Errorf("call %d: %v", i, v)
				}
			}()
			err := k.as(user, func() error {
				mu.Lock()
				acting[unix.Gettid()] = true
				mu.Unlock()
				if i%10 == 0 {
					panic("in a call")
				}
				return unix.ENOTDIR
			})
			if err != unix.ENOTDIR {
				t.Errorf("call %d: %v", i, err)
			}
		})
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			mu.Lock()
			defer mu.Unlock()
			if acting[unix.Gettid()] {
				t.Error("an ordinary goroutine runs on a thread that took on an identity")
			}
		})
	}
	wg.Wait()
	if len(acting) == 0 || acting[unix.Gettid()] {
		t.Errorf("identities were taken on by %v", acting)
	}
}

func TestUnprivilegedLimits(t *testing.T) {
	if canSwitch() {
		t.Skip("is privileged")
	}
	f, _ := openTemp(t, Options{})
	if _, ok := f.find.(*byTable); !ok || f.who.on {
		t.Fatalf("finder %T, switching %v", f.find, f.who.on)
	}
	r, _ := f.Root()
	mode := uint32(0o666)
	_, _, _, err := f.Create(storetest.Other, r, "theirs", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if !errors.Is(err, blockstore.ErrPerm) {
		t.Errorf("making a file for another user: %v", err)
	}
	h, _, _, err := f.Create(&blockstore.Cred{}, r, "root's", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode},
		[8]byte{})
	if err != nil {
		t.Fatalf("making a file for a client's root: %v", err)
	}
	uid := uint32(1)
	if _, err := f.SetAttr(&blockstore.Cred{}, h, &blockstore.SetAttr{UID: &uid}, nil); !errors.Is(err,
		blockstore.ErrPerm) {
		t.Errorf("giving a file away: %v", err)
	}
	if _, err := Open(f.dir, Options{Identity: Kernel}); err == nil {
		t.Error("Open with Identity: Kernel succeeded")
	}
	if _, err := Open(f.dir, Options{Handles: Kernel}); err == nil {
		t.Error("Open with Handles: Kernel succeeded")
	}
}

func TestRandom(t *testing.T) {
	users := []*blockstore.Cred{
		nil,
		{},
		user,
		{UID: 1001, GID: 1000},
		{UID: 1002, GID: 1002, Groups: []uint32{1000, 2000}},
	}
	if !canSwitch() {
		users = []*blockstore.Cred{{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}}
	}
	for seed := range uint64(6) {
		opts := Options{Async: true}
		if seed%2 == 1 {
			opts.Handles = Server
			if canSwitch() {
				// Others cannot reach again what is below a directory that the
				// operations have closed.
				opts.OpenFiles = 1
			}
		}
		f, _ := openTemp(t, opts)
		r, _ := f.Root()
		a, err := f.GetAttr(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		m := memfs.New(memfs.Options{RootMode: a.Mode, RootUID: a.UID, RootGID: a.GID})
		storetest.Compare(t, f, m, users, seed, 3000)
	}
}

func TestErrno(t *testing.T) {
	for e, want := range map[unix.Errno]error{
		unix.EPERM: blockstore.ErrPerm, unix.ENOENT: blockstore.ErrNotExist, unix.EIO: blockstore.ErrIO,
		unix.ENXIO:  blockstore.ErrNXIO,
		unix.EACCES: blockstore.ErrAccess, unix.EEXIST: blockstore.ErrExist, unix.EXDEV: blockstore.ErrXDev,
		unix.ENODEV:  blockstore.ErrNoDev,
		unix.ENOTDIR: blockstore.ErrNotDir, unix.EISDIR: blockstore.ErrIsDir, unix.EINVAL: blockstore.ErrInval,
		unix.ELOOP: blockstore.ErrInval,
		unix.EFBIG: blockstore.ErrFBig, unix.EOVERFLOW: blockstore.ErrFBig, unix.ENOSPC: blockstore.ErrNoSpace,
		unix.EROFS:  blockstore.ErrROFS,
		unix.EMLINK: blockstore.ErrMLink, unix.ENAMETOOLONG: blockstore.ErrNameTooLong,
		unix.ENOTEMPTY: blockstore.ErrNotEmpty,
		unix.EDQUOT:    blockstore.ErrQuota, unix.ESTALE: blockstore.ErrStale, unix.EOPNOTSUPP: blockstore.ErrNotSupp,
		unix.ENOSYS: blockstore.ErrNotSupp,
		unix.EBUSY:  blockstore.ErrAccess, unix.EAGAIN: blockstore.ErrJukebox, unix.EINTR: blockstore.ErrJukebox,
		unix.ENOMEM: blockstore.ErrJukebox,
		unix.EMFILE: blockstore.ErrJukebox, unix.ENFILE: blockstore.ErrJukebox, unix.ETXTBSY: blockstore.ErrJukebox,
		unix.ETIMEDOUT: blockstore.ErrJukebox,
	} {
		if got := mapErr(e); got != want {
			t.Errorf("%v is %v, want %v", e, got, want)
		}
		if _, ok := errnoTable[e]; !ok {
			t.Errorf("%v is not in the table", e)
		}
	}
	if n := len(errnoTable); n != 31 {
		t.Errorf("the table has %d rows and this test 31", n)
	}
	if err := mapErr(unix.EUCLEAN); !errors.Is(err, blockstore.ErrIO) || !strings.Contains(err.Error(), "clean") {
		t.Errorf("an unknown errno is %v", err)
	}
	if err := mapErr(blockStale()); !errors.Is(err, blockstore.ErrStale) {
		t.Errorf("a mapped error is %v", err)
	}
}

func blockStale() error { return blockstore.ErrStale }

// TestIncarnations has a directory listed that was listed before, so that identities are
// remembered, and inodes replaced behind the server's back: a name stands for the new one.
func TestIncarnations(t *testing.T) {
	f, s := openTemp(t, Options{})
	for i := range 100 {
		must(t, os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("file-%d", i)), nil, 0o644))
	}
	r, err := f.Root()
	must(t, err)
	list := func() map[string]blockstore.Handle {
		t.Helper()
		out := make(map[string]blockstore.Handle)
		_, eof, err := f.ReadDir(nil, r, 0, [8]byte{}, true, func(e *blockstore.DirEntry) bool {
			if e.Handle == nil || e.Attr == nil || e.Attr.FileID != e.FileID {
				t.Fatalf("%+v", e)
			}
			out[e.Name] = *e.Handle
			return true
		})
		must(t, err)
		if !eof || len(out) != 102 {
			t.Fatalf("%d entries, %v", len(out), eof)
		}
		return out
	}
	first := list()
	// As if the files had been there for long: they are remembered.
	for name, h := range first {
		if name == "." || name == ".." {
			continue
		}
		var sx unix.Statx_t
		must(t, unix.Statx(unix.AT_FDCWD, filepath.Join(s.dir, name), 0, entryMask, &sx))
		id, err := f.tag.ident(&h)
		must(t, err)
		if k, ok := keyOf(&sx); ok {
			f.incarnations.set(k, &id)
		}
	}
	for name, h := range list() {
		if h != first[name] {
			t.Fatalf("%s has another handle", name)
		}
	}
	// The clock of births is coarse; what is remembered in earnest is older than its tick.
	birth := func() (at unix.StatxTimestamp) {
		var sx unix.Statx_t
		name := filepath.Join(s.dir, "now")
		must(t, os.WriteFile(name, nil, 0o644))
		must(t, unix.Statx(unix.AT_FDCWD, name, 0, entryMask, &sx))
		must(t, os.Remove(name))
		return sx.Btime
	}
	for start := birth(); start != (unix.StatxTimestamp{}) && birth() == start; {
	}
	for i := range 100 {
		name := filepath.Join(s.dir, fmt.Sprintf("file-%d", i))
		must(t, os.Remove(name))
		must(t, os.WriteFile(name, nil, 0o644))
	}
	for name, h := range list() {
		if name == "." || name == ".." {
			continue
		}
		if h == first[name] {
			t.Fatalf("%s has the handle of the file that was removed", name)
		}
		if _, err := f.GetAttr(nil, h); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}
