package posixfs

import (
	"runtime"
	"slices"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// caller runs system calls with the identity of the client's user, so that the kernel checks
// permission, ACLs and quotas.
//
// Linux has credentials per thread. The wrappers of the standard library change those of all
// threads; setfsuid and the raw setgroups, setresgid and setresuid change those of the calling
// thread only. The calling goroutine is locked to its thread meanwhile. The Go runtime starts no
// thread from a locked one, so that the identity does not spread to a new thread.
//
// While a thread acts for a user other than root it has no effective capabilities. So it cannot
// override permissions (CAP_DAC_OVERRIDE), quotas (CAP_SYS_RESOURCE) or the reserve of a
// filesystem.
//
//   - A daemon that runs as root changes the effective user of the thread. The kernel removes the
//     effective capabilities then, and restores them when the thread is root again, as the
//     permitted ones stay (capabilities(7)).
//   - A daemon of another user with capabilities changes only the filesystem user. The kernel
//     removes all capabilities for good when all user IDs of a thread stop being root, and such
//     a daemon may act for root in between. It sets the capabilities itself.
//
// With ownThreads, identities are taken on threads that do nothing else. The kernel makes new
// credentials when a thread takes an identity, and again when it returns. Where the kernel
// compares the credentials themselves and not their contents, as for descriptors of RDMA
// devices, the thread never has the original credentials again, only equal ones.
type caller struct {
	on         bool // identities are switched; else the server compares mode bits
	ownThreads bool
	root       bool                // the daemon's user is root, with all capabilities of its permitted set
	caps       [2]unix.CapUserData // of the daemon
	users      [2]unix.CapUserData // of a thread while it acts for a client
	uid        uint32
	gid        uint32
	groups     []uint32
}

// noID is the ID that setresuid and the like take as "do not change". No user may have it.
const noID = ^uint32(0)

func newCaller(on, ownThreads bool) caller {
	c := caller{on: on, ownThreads: ownThreads, uid: uint32(unix.Geteuid()), gid: uint32(unix.Getegid())}
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

// secNoSetuidFixup is SECBIT_NO_SETUID_FIXUP. With it the kernel does not adjust capabilities
// when a thread changes its user IDs.
const secNoSetuidFixup = 1 << 2

// canSwitch reports whether this process may take the identity of any user.
func canSwitch() bool {
	data, err := capabilities()
	if err != nil {
		return false
	}
	if bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0); err != nil || bits&secNoSetuidFixup != 0 {
		return false
	}
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_CHOWN |
		1<<unix.CAP_FOWNER
	return data[0].Effective&need == need
}

// as runs fn with c's identity. It runs fn as the daemon if c is nil, or if identities are not
// switched. It switches even if the client's UID is the daemon's, because that drops the daemon's
// capabilities.
func (k *caller) as(c *blockstore.Cred, fn func() error) error {
	if !k.on || c == nil || k.isRoot(c) {
		return fn()
	}
	var err error
	k.onThread(func() (restored bool) {
		// Deferred, so that the identity ends also if fn panics.
		defer func() { restored = k.revert() }()
		if !k.assume(c) {
			err = blockstore.ErrPerm
		} else {
			err = fn()
		}
		return
	})
	return err
}

// overrides reports whether the daemon may exceed the limits of space that users have.
func (k *caller) overrides() bool {
	return k.on && (k.uid == 0 || k.caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0)
}

// within runs fn within the limits of space of c's user, who is not root. The server has checked
// the permission before, so that the groups stay those of the daemon. That saves four system
// calls of six.
func (k *caller) within(c *blockstore.Cred, fn func() error) (err error) {
	if !k.root {
		return k.as(c, fn)
	}
	if c.UID == noID {
		return blockstore.ErrPerm
	}
	k.onThread(func() (restored bool) {
		defer func() { restored = setEUID(k.uid) }()
		if !setEUID(c.UID) {
			err = blockstore.ErrPerm
		} else {
			err = fn()
		}
		return
	})
	return err
}

// isRoot reports whether both the daemon and c are root with the same groups. A switch would change
// nothing then, as root keeps the capabilities.
func (k *caller) isRoot(c *blockstore.Cred) bool {
	return k.root && c.UID == k.uid && c.GID == k.gid && slices.Equal(c.Groups, k.groups)
}

// assume gives this thread c's identity: groups first, because without its user the thread may
// not set them.
func (k *caller) assume(c *blockstore.Cred) bool {
	if c.UID == noID || c.GID == noID || !setGroups(c.Groups) || !setEGID(c.GID) {
		return false
	}
	if k.root {
		return setEUID(c.UID)
	}
	setFSUID(c.UID)
	// setfsuid does not report errors: a second call, which changes nothing, returns the user.
	return setFSUID(noID) == c.UID && (c.UID == 0 || setCapabilities(&k.users))
}

// revert gives this thread the daemon's identity again.
func (k *caller) revert() bool {
	if k.root {
		return setEUID(k.uid) && setEGID(k.gid) && setGroups(k.groups)
	}
	// Capabilities come after the user: setfsuid away from root removes some of them.
	setFSUID(k.uid)
	return setCapabilities(&k.caps) && setEGID(k.gid) && setGroups(k.groups)
}

// setFSUID sets the user of this thread's filesystem calls and returns the one before.
func setFSUID(uid uint32) uint32 {
	old, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	return uint32(old)
}

// setEUID sets this thread's effective user. The real and the saved user stay, so that the
// thread may return.
func setEUID(uid uint32) bool {
	_, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(noID), uintptr(uid), uintptr(noID))
	return e == 0
}

// setEGID sets this thread's effective group in the same way.
func setEGID(gid uint32) bool {
	_, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(noID), uintptr(gid), uintptr(noID))
	return e == 0
}

// setCapabilities sets the capabilities of this thread.
func setCapabilities(caps *[2]unix.CapUserData) bool {
	hdr := capHeader
	return unix.Capset(&hdr, &caps[0]) == nil
}

// setGroups sets this thread's supplementary groups.
func setGroups(g []uint32) bool {
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(g)), uintptr(unsafe.Pointer(unsafe.SliceData(g))), 0)
	return e == 0
}

// onThread runs fn on a thread that runs nothing else meanwhile; with ownThreads, on an identity
// thread. fn reports whether it has restored the thread's credentials. If not, the thread ends.
func (k *caller) onThread(fn func() (restored bool)) {
	if k.ownThreads {
		runOnIdentityThread(fn)
		return
	}
	runtime.LockOSThread()
	restored := false
	defer func() {
		if restored {
			runtime.UnlockOSThread() // else the runtime ends the thread together with the goroutine
		}
	}()
	restored = fn()
}
