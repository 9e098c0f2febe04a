package posixfs

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// watchDir watches the root of a store, or skips the test where the host cannot.
func (r *leaseRig) watchDir(h blockstore.Handle) (changed chan struct{}, stop func()) {
	r.t.Helper()
	changed = make(chan struct{}, 2)
	stop, err := r.f.WatchDir(h, func() { changed <- struct{}{} })
	if errors.Is(err, blockstore.ErrNotSupp) {
		r.t.Skip(err)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return changed, stop
}

// program has a program of the host run in the exported directory.
func (r *leaseRig) program(line string) {
	r.t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir = filepath.Dir(r.path)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v %s", line, err, out)
	}
}

// TestWatchDir: each change by a program of the host is told once, none of the store's own, and
// none after the end of the watch.
func TestWatchDir(t *testing.T) {
	for _, line := range []string{
		"touch new", "mkdir new", "ln -s x new", "ln file new", "mkfifo new", "rm file", "rmdir sub", "mv file other",
		"mv file sub/file", "mv sub/there .", "chmod 0700 .", "touch -d yesterday .",
		"chmod 1777 .",
	} {
		r := newLeaseRig(t, Options{})
		if line != "rmdir sub" {
			r.program("mkdir sub && touch sub/there")
		} else {
			r.program("mkdir sub")
		}
		root, err := r.f.Root()
		if err != nil {
			t.Fatal(err)
		}
		changed, stop := r.watchDir(root)
		// The store's own changes come first: events are in order.
		r.make("own")
		if _, err := r.f.Remove(&blockstore.Cred{}, root, "own"); err != nil {
			t.Fatal(err)
		}
		r.program("cat file >/dev/null; ls -l . >/dev/null")
		select {
		case <-changed:
			t.Errorf("%s: told of the store's own changes, or of none", line)
		default:
		}
		r.program(line)
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: not told", line)
		}
		r.program("touch again")
		stop()
		again, stop := r.watchDir(root)
		r.program("touch again2")
		select {
		case <-again:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: not told after a watch anew", line)
		}
		select {
		case <-changed:
			t.Errorf("%s: told twice", line)
		default:
		}
		stop()
		stop()
	}
}

// TestWatchDirMoved: a directory that is moved is told too, and a file is not watched.
func TestWatchDirMoved(t *testing.T) {
	r := newLeaseRig(t, Options{})
	r.program("mkdir sub")
	root, _ := r.f.Root()
	h, _, err := r.f.Lookup(&blockstore.Cred{}, root, "sub")
	if err != nil {
		t.Fatal(err)
	}
	changed, stop := r.watchDir(h)
	defer stop()
	r.program("mv sub other")
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("not told")
	}
	if _, err := r.f.WatchDir(r.h, func() {}); !errors.Is(err, blockstore.ErrNotDir) {
		t.Errorf("a file: %v", err)
	}
}

// TestWatchDirRemote: a directory that other hosts may change is not watched.
func TestWatchDirRemote(t *testing.T) {
	for magic, near := range map[int64]bool{
		unix.EXT4_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true,
		unix.CEPH_SUPER_MAGIC: false, unix.NFS_SUPER_MAGIC: false, unix.FUSE_SUPER_MAGIC: false,
		unix.OCFS2_SUPER_MAGIC: false, gfs2Magic: false, 0x47504653: false, // GPFS
		unix.OVERLAYFS_SUPER_MAGIC: false, // of anything
	} {
		if kind := typeOfFS(&unix.Statfs_t{Type: magic}); kind.near != near || kind.near && kind.remote {
			t.Errorf("%#x: %+v", magic, kind)
		}
	}
	if !typeOfFS(&unix.Statfs_t{Type: gfs2Magic}).remote {
		t.Error("GFS2 is not remote")
	}
	r := newLeaseRig(t, Options{})
	root, err := r.f.Root()
	if err != nil {
		t.Fatal(err)
	}
	r.watchDir(root)
	r.f.near = false
	if _, err := r.f.WatchDir(root, func() {}); !errors.Is(err, blockstore.ErrNotSupp) {
		t.Errorf("a remote file system: %v", err)
	}
}

// TestWatchDirStuck: while the kernel is long in setting a mark, other watches end and are told. A
// mark that fails leaves nothing behind.
func TestWatchDirStuck(t *testing.T) {
	d := dirWatcher{on: make(map[string][]*dirWatch)}
	told := make(chan struct{})
	other := &dirWatch{changed: func() { close(told) }}
	if err := d.add("other", other, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	begun, end, added := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		added <- d.add("stuck", &dirWatch{changed: func() {}}, func() error {
			close(begun)
			<-end
			return unix.EIO
		})
	}()
	<-begun
	ended := make(chan bool, 1)
	go func() {
		d.tellAll()
		ended <- d.remove("other", other)
	}()
	select {
	case last := <-ended:
		<-told
		if !last {
			t.Error("the only watch was not the last one")
		}
	case <-time.After(10 * time.Second):
		t.Error("the end of a watch waits for the mark of another directory")
	}
	close(end)
	if err := <-added; !errors.Is(err, unix.EIO) || len(d.on) != 0 {
		t.Errorf("a mark that fails: %v, %v", err, d.on)
	}
}

// TestWatchDirEvents: what no kernel sends does no harm, and a lost event counts as a change.
func TestWatchDirEvents(t *testing.T) {
	const self = 7
	told := func(b []byte) bool {
		done := make(chan struct{})
		d := dirWatcher{on: map[string][]*dirWatch{"key": {{changed: func() { close(done) }}}}}
		d.events(b, self)
		select {
		case <-done:
			return true
		case <-time.After(20 * time.Millisecond):
			return false
		}
	}
	event := func(n, head uint32, mask uint64, pid uint32) []byte {
		b := make([]byte, dirEventHead)
		put := func(at int, v uint32) {
			*(*[4]byte)(b[at:]) = [4]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}
		}
		put(0, n)
		b[6] = byte(head)
		put(8, uint32(mask))
		put(20, pid)
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want bool
	}{
		{"nothing", nil, false},
		{"half", make([]byte, 23), false},
		{"of another directory", append(event(24+20, 24, unix.FAN_CREATE, 8), make([]byte, 20)...), false},
		{"a record of no length", append(event(24+20, 24, unix.FAN_CREATE, 8), make([]byte, 20)...), false},
		{"too long", event(1000, 24, unix.FAN_CREATE, 8), true},
		{"too short", event(3, 24, unix.FAN_CREATE, 8), true},
		{"lost", event(24, 24, unix.FAN_Q_OVERFLOW, self), true},
	} {
		if got := told(c.b); got != c.want {
			t.Errorf("%s: told %v", c.name, got)
		}
	}
}
