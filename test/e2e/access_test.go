package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// Who things belong to in TestAccess, and who the daemon is where it is not root.
const (
	owner, ownGroup = 1000, 2000
	service         = 61234
	anonymous       = 65534
)

// identity is who a call is executed for.
type identity struct {
	uid, gid uint32
	groups   []uint32
}

func (i *identity) root() bool   { return i.uid == 0 }
func (i *identity) owner() bool  { return i.root() || i.uid == owner }
func (i *identity) member() bool { return i.owner() || i.in(ownGroup) }
func (i *identity) in(g uint32) bool {
	return i.gid == g || slices.Contains(i.groups, g)
}
func (i *identity) anybody() bool { return true }

// accessRule is an export with one rule.
type accessRule struct {
	name, options string
	squash        nfs.Squash
	readOnly      bool
	anon, anonGID uint32
	// admits reports whether the rule lets a call in.
	admits func(transport string, c *rpc.Cred) bool
}

// as is who a claimed identity becomes.
func (r *accessRule) as(c *rpc.Cred) identity {
	if c.Flavor != rpc.AuthSys || r.squash == nfs.AllSquash {
		return identity{uid: r.anon, gid: r.anonGID}
	}
	i := identity{uid: c.UID, gid: c.GID, groups: slices.Clone(c.Groups)}
	replace := func(id *uint32, is, by uint32) {
		if *id == is {
			*id = by
		}
	}
	if r.squash == nfs.RootSquash {
		replace(&i.uid, 0, r.anon)
		replace(&i.gid, 0, r.anonGID)
		for g := range i.groups {
			replace(&i.groups[g], 0, r.anonGID)
		}
	}
	replace(&i.uid, 1<<32-1, r.anon)
	replace(&i.gid, 1<<32-1, r.anonGID)
	return i
}

var accessRules = []accessRule{
	{name: "root_squash", options: "rw", anon: anonymous, anonGID: anonymous},
	{name: "no_root_squash", options: "rw,no_root_squash", squash: nfs.NoRootSquash, anon: anonymous, anonGID: anonymous},
	{
		name: "all_squash", options: "rw,all_squash,anonuid=1000,anongid=2000", squash: nfs.AllSquash, anon: owner,
		anonGID: ownGroup,
	},
	{
		name: "ro", options: "ro,no_root_squash", squash: nfs.NoRootSquash, readOnly: true, anon: anonymous,
		anonGID: anonymous,
	},
	{
		name: "sys", options: "rw,sec=sys", anon: anonymous, anonGID: anonymous,
		admits: func(_ string, c *rpc.Cred) bool { return c.Flavor == rpc.AuthSys },
	},
	{
		name: "secure", options: "rw,secure", anon: anonymous, anonGID: anonymous,
		admits: func(transport string, _ *rpc.Cred) bool { return transport == "rdma" },
	},
	{name: "unlisted", admits: func(string, *rpc.Cred) bool { return false }},
}

// claims are the credentials that callers send.
func claims() map[string]*rpc.Cred {
	sys := func(uid, gid uint32, groups ...uint32) *rpc.Cred {
		return &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client", UID: uid, GID: gid, Groups: groups}
	}
	many := make([]uint32, 0, rpc.GroupsMax)
	for g := range uint32(rpc.GroupsMax - 1) {
		many = append(many, 3000+g)
	}
	return map[string]*rpc.Cred{
		"root":             sys(0, 0, 0),
		"root's groups":    sys(1002, 0, 0, 0, 0),
		"daemon":           sys(service, service, service),
		"owner":            sys(owner, 1),
		"member":           sys(1001, ownGroup),
		"last of 16":       sys(1001, 1, append(many, ownGroup)...),
		"duplicate groups": sys(1001, 1, ownGroup, ownGroup, ownGroup),
		"other":            sys(1002, 1002, 3000),
		"nobody":           sys(anonymous, anonymous, anonymous),
		"-1":               sys(1<<32-1, 1<<32-1),
		"-2":               sys(1<<32-2, 1<<32-2),
		"no credential":    {Flavor: rpc.AuthNone},
	}
}

// accessOp is an operation on an object, or a pair of them, that is made anew each time.
type accessOp struct {
	name    string
	minor   int                    // the first minor version of version 4 that has it
	no3     bool                   // version 3 has it not
	changes bool                   // a read-only export refuses it
	ends    bool                   // but by version 4: it only ends what was done before
	prepare func(dir string) error // makes dir/d, and in it x
	on      string                 // what the handle is of, below dir
	call    func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error)
	may     func(*identity) bool
	// then looks at what an operation that was done has left.
	then func(dir string, i *identity) error
}

// made makes dir/d and dir/d/x of the owner with modes.
func made(dirMode, fileMode uint32) func(string) error {
	return func(dir string) error {
		d, x := filepath.Join(dir, "d"), filepath.Join(dir, "d/x")
		return errors.Join(os.Mkdir(d, 0o700), os.WriteFile(x, []byte("some data"), 0o600),
			os.Chown(d, owner, ownGroup), os.Chown(x, owner, ownGroup), unix.Chmod(d, dirMode), unix.Chmod(x, fileMode))
	}
}

// modeIs checks the mode of what an operation left.
func modeIs(want func(i *identity) uint32) func(string, *identity) error {
	return func(dir string, i *identity) error {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, "d/x"), &st); err != nil {
			return err
		}
		if w := want(i); st.Mode&0o7777 != w {
			return fmt.Errorf("mode %o, not %o", st.Mode&0o7777, w)
		}
		return nil
	}
}

// belongs checks that a new object belongs to who made it.
func belongs(dir string, i *identity) error {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "d/new"), &st); err != nil {
		return err
	}
	if st.Uid != i.uid || st.Gid != i.gid {
		return fmt.Errorf("belongs to %d:%d, not to %d:%d", st.Uid, st.Gid, i.uid, i.gid)
	}
	return nil
}

func accessOps() []accessOp {
	anybody, isOwner, isMember, isRoot := (*identity).anybody, (*identity).owner, (*identity).member, (*identity).root
	noSetID := func(i *identity) uint32 {
		if i.root() {
			return 0o6777
		}
		return 0o777
	}
	linkable := isOwner
	if b, err := os.ReadFile("/proc/sys/fs/protected_hardlinks"); err != nil || strings.TrimSpace(string(b)) != "1" {
		linkable = anybody
	}
	return []accessOp{
		{name: "READ 0600", prepare: made(0o755, 0o600), on: "d/x", call: doRead, may: isOwner},
		{name: "READ 0640", prepare: made(0o755, 0o640), on: "d/x", call: doRead, may: isMember},
		{name: "READ 0200 of the owner", prepare: made(0o755, 0o200), on: "d/x", call: doRead, may: isOwner},
		{name: "READ what may be executed", prepare: made(0o755, 0o711), on: "d/x", call: doRead, may: anybody},
		{
			name: "READ by a handle below what nobody may search", prepare: made(0o700, 0o644), on: "d/x", call: doRead,
			may: anybody,
		},
		{name: "WRITE 0600", changes: true, prepare: made(0o755, 0o600), on: "d/x", call: doWrite, may: isOwner},
		{name: "WRITE 0664", changes: true, prepare: made(0o755, 0o664), on: "d/x", call: doWrite, may: isMember},
		{name: "WRITE 0444", changes: true, prepare: made(0o755, 0o444), on: "d/x", call: doWrite, may: isOwner},
		{
			name: "WRITE takes set-ID bits away", changes: true, prepare: made(0o755, 0o6777), on: "d/x", call: doWrite,
			may: anybody, then: modeIs(noSetID),
		},
		{
			name: "COMMIT 0600", changes: true, ends: true, prepare: made(0o755, 0o600), on: "d/x", call: doCommit,
			may: isOwner,
		},
		{name: "size 0664", changes: true, prepare: made(0o755, 0o664), on: "d/x", call: setAttrOf(setSize), may: isMember},
		{
			name: "size takes set-ID bits away", changes: true, prepare: made(0o755, 0o6777), on: "d/x",
			call: setAttrOf(setSize), may: anybody, then: modeIs(noSetID),
		},
		{name: "mode", changes: true, prepare: made(0o755, 0o666), on: "d/x", call: setAttrOf(setMode), may: isOwner},
		{name: "owner", changes: true, prepare: made(0o777, 0o666), on: "d/x", call: setAttrOf(setOwner), may: isRoot},
		{name: "group", changes: true, prepare: made(0o777, 0o666), on: "d/x", call: setAttrOf(setGroup), may: isRoot},
		{name: "time", changes: true, prepare: made(0o777, 0o666), on: "d/x", call: setAttrOf(setTime), may: isOwner},
		{name: "LOOKUP 0700", prepare: made(0o700, 0o644), on: "d", call: doLookup("x"), may: isOwner},
		{name: "LOOKUP 0744", prepare: made(0o744, 0o644), on: "d", call: doLookup("x"), may: isOwner},
		{name: "LOOKUP 0711", prepare: made(0o711, 0o600), on: "d", call: doLookup("x"), may: anybody},
		{name: "READDIR 0711", prepare: made(0o711, 0o644), on: "d", call: doReadDir, may: isOwner},
		{name: "READDIR 0750", prepare: made(0o750, 0o644), on: "d", call: doReadDir, may: isMember},
		{name: "MKDIR 0755", changes: true, prepare: made(0o755, 0o644), on: "d", call: doMkdir, may: isOwner, then: belongs},
		{name: "MKDIR 0777", changes: true, prepare: made(0o777, 0o644), on: "d", call: doMkdir, may: anybody, then: belongs},
		{name: "MKDIR 0722 without search", changes: true, prepare: made(0o722, 0o644), on: "d", call: doMkdir, may: isOwner},
		{name: "MKNOD of a device", changes: true, prepare: made(0o777, 0o644), on: "d", call: doMknod(3), may: isRoot},
		{
			name: "MKNOD of a pipe", changes: true, prepare: made(0o777, 0o644), on: "d", call: doMknod(7), may: anybody,
			then: belongs,
		},
		{name: "REMOVE 0755", changes: true, prepare: made(0o755, 0o666), on: "d", call: doRemove, may: isOwner},
		{name: "REMOVE 0777", changes: true, prepare: made(0o777, 0o600), on: "d", call: doRemove, may: anybody},
		{
			name: "REMOVE of another's, sticky", changes: true, prepare: made(0o1777, 0o666), on: "d", call: doRemove,
			may: isOwner,
		},
		{name: "RENAME, sticky", changes: true, prepare: made(0o1777, 0o666), on: "d", call: doRename, may: isOwner},
		{name: "RENAME 0777", changes: true, prepare: made(0o777, 0o600), on: "d", call: doRename, may: anybody},
		{name: "LINK of another's", changes: true, prepare: made(0o777, 0o600), on: "d", call: doLink, may: linkable},
		{
			name: "ALLOCATE 0600", minor: 2, no3: true, changes: true, prepare: made(0o755, 0o600), on: "d/x",
			call: doReserve(nfs4.OpAllocate), may: isOwner,
		},
		{
			name: "DEALLOCATE takes set-ID bits away", minor: 2, no3: true, changes: true, prepare: made(0o755, 0o6777),
			on: "d/x", call: doReserve(nfs4.OpDeallocate), may: anybody, then: modeIs(noSetID),
		},
		{name: "SEEK 0600", minor: 2, no3: true, prepare: made(0o755, 0o600), on: "d/x", call: doSeek, may: isOwner},
		{name: "READ_PLUS 0600", minor: 2, no3: true, prepare: made(0o755, 0o600), on: "d/x", call: doReadPlus, may: isOwner},
		{
			name: "OPEN to read 0640", minor: 1, no3: true, prepare: made(0o755, 0o640), on: "d", call: doOpen(1, 0),
			may: isMember,
		},
		{
			name: "OPEN to write 0644", minor: 1, no3: true, changes: true, prepare: made(0o755, 0o644), on: "d",
			call: doOpen(2, 0), may: isOwner,
		},
		{
			name: "OPEN to read that denies reading 0644", minor: 1, no3: true, changes: true, prepare: made(0o755, 0o644),
			on: "d", call: doOpen(1, 1), may: isOwner,
		},
		{
			name: "OPEN to read and truncate 0644", minor: 1, no3: true, changes: true, prepare: made(0o755, 0o644), on: "d",
			call: doOpen(1, 0, 1, 0, empty), may: isOwner,
		},
		{
			name: "OPEN, exclusive, with a verifier that the times of a file happen to hold", minor: 1, no3: true, changes: true,
			prepare: withTimes, on: "d", call: doOpen(3, 3, 1, 3, verifier, 0, []byte{}), may: isOwner,
		},
		{
			name: "GETXATTR 0640", minor: 2, no3: true, prepare: withXattr(0o640), on: "d/x",
			call: doXattr(nfs4.OpGetXattr, "there"), may: isMember,
		},
		{
			name: "SETXATTR 0644", minor: 2, no3: true, changes: true, prepare: withXattr(0o644), on: "d/x",
			call: doXattr(nfs4.OpSetXattr, 0, "there", "evil"), may: isOwner,
		},
		{
			name: "REMOVEXATTR 0644", minor: 2, no3: true, changes: true, prepare: withXattr(0o644), on: "d/x",
			call: doXattr(nfs4.OpRemoveXattr, "there"), may: isOwner,
		},
		{
			name: "SETXATTR of a directory, sticky", minor: 2, no3: true, changes: true, prepare: made(0o1777, 0o644), on: "d",
			call: doXattr(nfs4.OpSetXattr, 0, "there", "evil"), may: isOwner,
		},
		{name: "ACL 0666", changes: true, prepare: made(0o777, 0o666), on: "d/x", call: doACL, may: isOwner},
	}
}

// accessPeer is a connection of a client with calls made by hand.
type accessPeer struct {
	t         *testing.T
	transport string
	minor     int // of version 4; -1 is version 3
	conn      rpc.Client
	session   [16]byte
	seq       uint32
}

// accessPeer connects from an address, over RDMA with the device that is there.
func (d *daemon) accessPeer(transport string, minor int, from netip.Addr, dev rdma.Device) *accessPeer {
	d.t.Helper()
	p := &accessPeer{t: d.t, transport: transport, minor: minor}
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	if transport == "tcp" {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		raw, err := dialer.DialContext(ctx, "tcp", d.addr.String()+":2049")
		if err != nil {
			d.t.Fatal(err)
		}
		p.conn = tcp.NewClient(raw)
	} else {
		var err error
		if p.conn, err = rpcrdma.Dial(ctx, dev, netip.AddrPortFrom(d.addr, 20049), rpcrdma.ClientConfig{}); err != nil {
			d.t.Fatal(err)
		}
	}
	d.t.Cleanup(func() { _ = p.conn.Close() })
	p.join()
	return p
}
