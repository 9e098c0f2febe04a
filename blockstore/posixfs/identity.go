package posixfs

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// caller runs system calls as the client's user. The calling goroutine is
// locked to its thread, and only that thread's identity changes: setfsuid and the
// raw setgroups, setresgid and setresuid are per thread. The Go
// runtime starts no thread from a locked one, so the identity cannot spread.
//
// A thread has no effective capabilities while it acts for a user other than root. It cannot override
// permissions, quotas (CAP_SYS_RESOURCE) or the reserve of a filesystem. A thread of root changes its
// effective user, with which the kernel takes the effective capabilities away and gives them back. A thread of
// another user that has capabilities changes the user of its filesystem calls only, because the kernel
// takes all capabilities for good from a thread that stops being root; it sets the capabilities itself.
//
// With apart, identities are taken on threads that do nothing else: the kernel gives a thread
// new credentials when it takes one on and again when it returns, and where it compares
// credentials by identity, as for the descriptors of RDMA devices, such a thread is another's for good.
type caller struct {
	on     bool
	apart  bool
	root   bool                // the daemon's user is, with all capabilities that it may have
	caps   [2]unix.CapUserData // the daemon's
	users  [2]unix.CapUserData // those of a thread that acts for a user: none is effective
	uid    uint32
	gid    uint32
	groups []uint32
}

// noID is the id that the kernel takes as "leave it".
const noID = ^uint32(0)

func newCaller(on, apart bool) caller {
	c := caller{on: on, apart: apart, uid: uint32(unix.Geteuid()), gid: uint32(unix.Getegid())}
	c.caps, _ = capabilities()
	c.users, c.root = c.caps, c.uid == 0
	for i := range c.users {
		c.root = c.root && c.caps[i].Effective == c.caps[i].Permitted
		c.users[i].Effective = 0
	}
	if gs, err := unix.Getgroups(); err == nil {
		for _, g := range gs {
			c.groups = append(c.groups, uint32(g))
		}
	}
	return c
}

// capHeader is for capget and capset of the calling thread.
var capHeader = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

func capabilities() (data [2]unix.CapUserData, err error) {
	hdr := capHeader
	err = unix.Capget(&hdr, &data[0])
	return data, err
}

// secNoSetuidFixup is SECBIT_NO_SETUID_FIXUP: the kernel leaves capabilities alone when
// a thread's fsuid changes.
const secNoSetuidFixup = 1 << 2

// canSwitch says whether this process may take on any identity.
func canSwitch() bool {
	data, err := capabilities()
	if err != nil {
		return false
	}
	if bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0); err != nil || bits&secNoSetuidFixup != 0 {
		return false
	}
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_CHOWN | 1<<unix.CAP_FOWNER
	return data[0].Effective&need == need
}

// as runs fn with c's identity, or as the daemon where c is nil or identities
// are not switched. The daemon's own user is switched to as well: the switch takes the
// daemon's capabilities away, which the client's user of the same number does not have.
func (k *caller) as(c *blockstore.Cred, fn func() error) error {
	if !k.on || c == nil || k.isRoot(c) {
		return fn()
	}
	var err error
	k.onThread(func() (clean bool) {
		// Also when fn panics.
		defer func() { clean = k.revert() }()
		if !k.assume(c) {
			err = blockstore.ErrPerm
		} else {
			err = fn()
		}
		return
	})
	return err
}

// onThread runs fn on a thread that nothing else runs on meanwhile, or ever. If fn does not
// leave its thread as it was, the thread ends.
func (k *caller) onThread(fn func() (clean bool)) {
	if k.apart {
		actors.run(fn)
		return
	}
	runtime.LockOSThread()
	clean := false
	defer func() {
		if clean {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}()
	clean = fn()
}

// troupe are threads for identities, as many as there were calls at once.
type troupe struct {
	idle chan *actor
}

// actors serve all file systems of the process.
var actors = troupe{idle: make(chan *actor, 64)}

// actor is such a thread.
type actor struct {
	work chan func() (clean bool)
}

// run runs fn on one of them and waits for it.
func (t *troupe) run(fn func() (clean bool)) {
	var a *actor
	select {
	case a = <-t.idle:
	default:
		a = &actor{work: make(chan func() bool)}
		go a.run(t)
	}
	ended := make(chan any, 1)
	a.work <- func() (clean bool) {
		defer func() { ended <- recover() }()
		return fn()
	}
	if v := <-ended; v != nil {
		panic(v) // where somebody may expect it
	}
}

func (a *actor) run(t *troupe) {
	// Never unlocked: the thread ends with the goroutine.
	runtime.LockOSThread()
	for fn := range a.work {
		if !fn() {
			return
		}
		select {
		case t.idle <- a:
		default:
			return // there are enough
		}
	}
}

// overrides reports whether the daemon may exceed the limits of space that users have.
func (k *caller) overrides() bool {
	return k.on && (k.uid == 0 || k.caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0)
}

// within runs fn within the limits of space of c's user, other than root. Permission is decided before: groups
// stay the daemon's, which saves four system calls of six.
func (k *caller) within(c *blockstore.Cred, fn func() error) (err error) {
	if !k.root {
		return k.as(c, fn)
	}
	if c.UID == noID {
		return blockstore.ErrPerm
	}
	k.onThread(func() (clean bool) {
		defer func() { clean = setEUID(k.uid) }()
		if !setEUID(c.UID) {
			err = blockstore.ErrPerm
		} else {
			err = fn()
		}
		return
	})
	return err
}

// isRoot reports whether c is root, as the daemon is, with no other groups. A switch would change
// nothing: root keeps the capabilities.
func (k *caller) isRoot(c *blockstore.Cred) bool {
	return k.root && c.UID == k.uid && c.GID == k.gid && slices.Equal(c.Groups, k.groups)
}

func (k *caller) assume(c *blockstore.Cred) bool {
	if c.UID == noID || c.GID == noID {
		return false
	}
	if !setGroups(c.Groups) || !setEGID(c.GID) {
		return false
	}
	if k.root {
		return setEUID(c.UID)
	}
	setFSUID(c.UID)
	return setFSUID(noID) == c.UID && (c.UID == 0 || setCapabilities(&k.users))
}

func (k *caller) revert() bool {
	if k.root {
		return setEUID(k.uid) && setEGID(k.gid) && setGroups(k.groups)
	}
	// The kernel takes capabilities away when the user was root, so that they come last.
	setFSUID(k.uid)
	return setCapabilities(&k.caps) && setEGID(k.gid) && setGroups(k.groups)
}

// setFSUID sets the user of this thread's filesystem calls and returns the one before.
func setFSUID(uid uint32) uint32 {
	old, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	return uint32(old)
}

// setEUID sets this thread's effective user; the real one and the saved one stay, and with
// them the way back. From root to another user the effective capabilities go, and come back with it.
func setEUID(uid uint32) bool {
	_, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(noID), uintptr(uid), uintptr(noID))
	return e == 0
}

// setEGID sets this thread's effective group in the same way.
func setEGID(gid uint32) bool {
	_, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(noID), uintptr(gid), uintptr(noID))
	return e == 0
}

// setCapabilities sets those of this thread.
func setCapabilities(caps *[2]unix.CapUserData) bool {
	hdr := capHeader
	return unix.Capset(&hdr, &caps[0]) == nil
}

// setGroups sets this thread's supplementary groups; the wrappers of the
// standard library would change all threads.
func setGroups(g []uint32) bool {
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(g)), uintptr(unsafe.Pointer(unsafe.SliceData(g))), 0)
	return e == 0
}

// makers are threads that create objects: they have a umask of their own, 0,
// because the mode in a request is final and the process's umask is not ours to
// change.
type makers struct {
	work chan func()
	quit chan struct{}
	// own says that the process has that umask itself: no threads are needed.
	own bool
	// umask is what still applies where a thread cannot have its own.
	umask uint32
}

const makerThreads = 4

// startMakers starts threads unless the process has the right umask itself.
func startMakers(own bool) *makers {
	m := &makers{work: make(chan func()), quit: make(chan struct{}), own: own}
	if m.own {
		return m
	}
	unshared := make(chan bool)
	for range makerThreads {
		go func() {
			// Never unlocked: the thread ends with the goroutine.
			runtime.LockOSThread()
			ok := unix.Unshare(unix.CLONE_FS) == nil
			if ok {
				unix.Umask(0)
			}
			unshared <- ok
			for {
				select {
				case fn := <-m.work:
					fn()
				case <-m.quit:
					return
				}
			}
		}()
	}
	for range makerThreads {
		if !<-unshared {
			m.umask = processUmask()
		}
	}
	return m
}

// as has fn make an object with the identity of c.
func (m *makers) as(k *caller, c *blockstore.Cred, fn func() error) error {
	if m.own {
		return k.as(c, fn)
	}
	here := *k
	here.apart = false // a maker's thread is apart as it is, and another would not have its umask
	return m.do(func() error { return here.as(c, fn) })
}

// do runs fn on a maker and waits for it.
func (m *makers) do(fn func() error) error {
	done := make(chan error, 1)
	select {
	case m.work <- func() { done <- fn() }:
		return <-done
	case <-m.quit:
		return errClosed
	}
}

func (m *makers) stop() { close(m.quit) }

// processUmask reads the umask without changing it for a moment, which would
// be seen by every thread.
func processUmask() uint32 {
	// Of this thread: that of the process is of its first thread, which may be a maker.
	status, _ := os.ReadFile("/proc/thread-self/status")
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			if u, err := strconv.ParseUint(strings.TrimSpace(v), 8, 32); err == nil {
				return uint32(u)
			}
		}
	}
	return 0o777
}
