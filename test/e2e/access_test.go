package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
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

func (p *accessPeer) String() string {
	if p.minor < 0 {
		return p.transport + " 3"
	}
	return fmt.Sprintf("%s 4.%d", p.transport, p.minor)
}

// call sends one call and returns the status with which its results begin. res reads what follows.
func (p *accessPeer) call(prog, vers, proc uint32, c *rpc.Cred, args func(*xdr.Encoder),
	res func(nfs.Status, *xdr.Decoder),
) (st nfs.Status, err error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 30*time.Second)
	defer cancel()
	err = p.conn.Call(ctx, &rpc.Request{
		Prog: prog, Vers: vers, Proc: proc, Cred: c, Args: args, ResMax: 8192,
		Res: func(d *xdr.Decoder) error {
			st = nfs.Status(d.Uint32())
			if res != nil {
				res(st, d)
			}
			return d.Err()
		},
	})
	return st, err
}

// call3 is a procedure of version 3.
func (p *accessPeer) call3(proc uint32, c *rpc.Cred, args ...any) (nfs.Status, error) {
	return p.call(nfs3.Program, nfs3.Version, proc, c, words(args...),
		func(_ nfs.Status, d *xdr.Decoder) { d.Skip(d.Remaining()) })
}

// op is an operation of version 4.
type op func(*xdr.Encoder)

func op4(num uint32, args ...any) op {
	return func(e *xdr.Encoder) {
		e.Uint32(num)
		words(args...)(e)
	}
}

// words are arguments in XDR.
func words(args ...any) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		for _, a := range args {
			switch v := a.(type) {
			case uint32:
				e.Uint32(v)
			case uint64:
				e.Uint64(v)
			case int:
				e.Uint32(uint32(v))
			case bool:
				e.Bool(v)
			case string:
				e.String(v)
			case []byte:
				e.Opaque(v)
			case [8]byte:
				e.Fixed(v[:])
			case [16]byte:
				e.Fixed(v[:])
			case func(*xdr.Encoder):
				v(e)
			default:
				panic(fmt.Sprintf("%T", a))
			}
		}
	}
}

// compound sends operations, behind a SEQUENCE in a session. res gets the results of the
// operations, from where the first begins.
func (p *accessPeer) compound(c *rpc.Cred, res func(*xdr.Decoder), ops ...op) (nfs.Status, error) {
	head := 0
	if p.minor > 0 && p.session != [16]byte{} {
		p.seq++
		ops = append([]op{op4(nfs4.OpSequence, p.session, p.seq, 0, 0, false)}, ops...)
		head = 4 + 4 + 16 + 5*4 // its result
	}
	return p.call(nfs4.Program, nfs4.Version, nfs4.ProcCompound, c, func(e *xdr.Encoder) {
		e.String("")
		e.Uint32(uint32(p.minor))
		e.Uint32(uint32(len(ops)))
		for _, o := range ops {
			o(e)
		}
	}, func(st nfs.Status, d *xdr.Decoder) {
		d.String(100)
		d.Uint32()
		if st == nfs.OK && res != nil {
			d.Skip(head)
			res(d)
		}
		d.Skip(d.Remaining())
	})
}

// join makes a session.
func (p *accessPeer) join() {
	p.t.Helper()
	if p.minor < 1 {
		return
	}
	root := claims()["root"]
	var id uint64
	var seq uint32
	if st, err := p.compound(root, func(d *xdr.Decoder) {
		d.Skip(8)
		id, seq = d.Uint64(), d.Uint32()
	}, op4(nfs4.OpExchangeID, [8]byte{1}, fmt.Sprintf("%s %p", p, p), 0, 0, 0)); st != nfs.OK || err != nil {
		p.t.Fatal(p, st, err)
	}
	channel := func(e *xdr.Encoder) {
		for _, v := range []uint32{0, 1 << 16, 1 << 16, 4096, 16, 4, 0} {
			e.Uint32(v)
		}
	}
	var session [16]byte
	if st, err := p.compound(root, func(d *xdr.Decoder) {
		d.Skip(8)
		copy(session[:], d.Fixed(16))
	}, op4(nfs4.OpCreateSession, id, seq, 0, channel, channel, 0, 1, 0)); st != nfs.OK || err != nil {
		p.t.Fatal(p, st, err)
	}
	p.session = session
	if st, err := p.compound(root, nil, op4(nfs4.OpReclaimComplete, false)); st != nfs.OK || err != nil {
		p.t.Fatal(p, st, err)
	}
}

// find walks from the root of the server to an object.
func (p *accessPeer) find(c *rpc.Cred, path string) (h []byte, st nfs.Status, err error) {
	names := strings.Split(strings.Trim(path, "/"), "/")
	if p.minor >= 0 {
		ops := []op{op4(nfs4.OpPutRootFH)}
		for _, n := range names {
			ops = append(ops, op4(nfs4.OpLookup, n))
		}
		st, err = p.compound(c, func(d *xdr.Decoder) {
			d.Skip(8*(1+len(names)) + 8)
			h = slices.Clone(d.Opaque(128))
		}, append(ops, op4(nfs4.OpGetFH))...)
		return h, st, err
	}
	st, err = p.call(nfs3.MountProgram, nfs3.MountVersion, nfs3.MountMnt, c, words("/"+names[0]),
		func(st nfs.Status, d *xdr.Decoder) {
			if st == nfs.OK {
				h = slices.Clone(d.Opaque(nfs.HandleMax))
				d.Skip(d.Remaining())
			}
		})
	for _, n := range names[1:] {
		if st != nfs.OK || err != nil {
			break
		}
		at := h
		st, err = p.call(nfs3.Program, nfs3.Version, nfs3.ProcLookup, c, words(at, n), func(st nfs.Status, d *xdr.Decoder) {
			if st == nfs.OK {
				h = slices.Clone(d.Opaque(nfs.HandleMax))
			}
			d.Skip(d.Remaining())
		})
	}
	return h, st, err
}

// on sends operations on an object.
func (p *accessPeer) on(c *rpc.Cred, h []byte, ops ...op) (nfs.Status, error) {
	return p.compound(c, nil, append([]op{op4(nfs4.OpPutFH, h)}, ops...)...)
}

var noState = [16]byte{}

func doRead(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcRead, c, h, uint64(0), 100)
	}
	return p.on(c, h, op4(nfs4.OpRead, noState, uint64(0), 100))
}

func doWrite(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcWrite, c, h, uint64(0), 4, 0, "evil")
	}
	return p.on(c, h, op4(nfs4.OpWrite, noState, uint64(0), 0, "evil"))
}

func doCommit(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcCommit, c, h, uint64(0), 0)
	}
	return p.on(c, h, op4(nfs4.OpCommit, uint64(0), 0))
}

// setAttr are attributes to be set.
type setAttr struct {
	mode, uid, gid *uint32
	size           *uint64
	mtime          *uint64
}

func pointer[T any](v T) *T { return &v }

var (
	setSize  = setAttr{size: pointer(uint64(3))}
	setMode  = setAttr{mode: pointer(uint32(0o4777))}
	setOwner = setAttr{uid: pointer(uint32(1002))}
	setGroup = setAttr{gid: pointer(uint32(3333))}
	setTime  = setAttr{mtime: pointer(uint64(12345))}
)

// encode3 is a sattr3.
func (s *setAttr) encode3(e *xdr.Encoder) {
	for _, v := range []*uint32{s.mode, s.uid, s.gid} {
		e.Bool(v != nil)
		if v != nil {
			e.Uint32(*v)
		}
	}
	e.Bool(s.size != nil)
	if s.size != nil {
		e.Uint64(*s.size)
	}
	e.Uint32(0)
	if s.mtime == nil {
		e.Uint32(0)
		return
	}
	const clientTime = 2
	e.Uint32(clientTime)
	e.Uint32(uint32(*s.mtime))
	e.Uint32(0)
}

// encode4 is a fattr4.
func (s *setAttr) encode4(e *xdr.Encoder) {
	const size, mode, user, group, mtime = 4, 33 - 32, 36 - 32, 37 - 32, 54 - 32
	var low, high uint32
	var v xdr.Encoder
	if s.size != nil {
		low |= 1 << size
		v.Uint64(*s.size)
	}
	if s.mode != nil {
		high |= 1 << mode
		v.Uint32(*s.mode)
	}
	if s.uid != nil {
		high |= 1 << user
		v.String(fmt.Sprint(*s.uid))
	}
	if s.gid != nil {
		high |= 1 << group
		v.String(fmt.Sprint(*s.gid))
	}
	if s.mtime != nil {
		high |= 1 << mtime
		words(1, *s.mtime, 0)(&v)
	}
	words(2, low, high, v.B)(e)
}

func setAttrOf(s setAttr) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
		if p.minor < 0 {
			return p.call3(nfs3.ProcSetAttr, c, h, s.encode3, false)
		}
		return p.on(c, h, op4(nfs4.OpSetAttr, noState, s.encode4))
	}
}

func doLookup(name string) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
		if p.minor < 0 {
			return p.call3(nfs3.ProcLookup, c, h, name)
		}
		return p.on(c, h, op4(nfs4.OpLookup, name))
	}
}

func doReadDir(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcReadDir, c, h, uint64(0), [8]byte{}, 4096)
	}
	return p.on(c, h, op4(nfs4.OpReadDir, uint64(0), [8]byte{}, 4096, 4096, 1, 1<<4))
}

var newMode = setAttr{mode: pointer(uint32(0o755))}

func doMkdir(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcMkdir, c, h, "new", newMode.encode3)
	}
	const directory = 2
	return p.on(c, h, op4(nfs4.OpCreate, directory, "new", newMode.encode4))
}

func doMknod(typ uint32) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
		var device []any
		const block = 3
		if typ == block {
			device = []any{7, 0}
		}
		if p.minor < 0 {
			return p.call3(nfs3.ProcMknod, c, append([]any{h, "new", typ, newMode.encode3}, device...)...)
		}
		return p.on(c, h, op4(nfs4.OpCreate, append(append([]any{typ}, device...), "new", newMode.encode4)...))
	}
}

func doRemove(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcRemove, c, h, "x")
	}
	return p.on(c, h, op4(nfs4.OpRemove, "x"))
}

func doRename(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcRename, c, h, "x", h, "y")
	}
	return p.on(c, h, op4(nfs4.OpSaveFH), op4(nfs4.OpRename, "x", "y"))
}

func doLink(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor >= 0 {
		return p.on(c, h, op4(nfs4.OpLookup, "x"), op4(nfs4.OpSaveFH), op4(nfs4.OpPutFH, h), op4(nfs4.OpLink, "y"))
	}
	var x []byte
	st, err := p.call(nfs3.Program, nfs3.Version, nfs3.ProcLookup, c, words(h, "x"), func(st nfs.Status, d *xdr.Decoder) {
		if st == nfs.OK {
			x = slices.Clone(d.Opaque(nfs.HandleMax))
		}
		d.Skip(d.Remaining())
	})
	if st != nfs.OK || err != nil {
		return st, err
	}
	return p.call3(nfs3.ProcLink, c, x, h, "y")
}

func doReserve(num uint32) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
		return p.on(c, h, op4(num, noState, uint64(0), uint64(4096)))
	}
}

func doSeek(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	return p.on(c, h, op4(nfs4.OpSeek, noState, uint64(0), 0))
}

func doReadPlus(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	return p.on(c, h, op4(nfs4.OpReadPlus, noState, uint64(0), 100))
}

// doOpen is an OPEN of x and a CLOSE.
func doOpen(access, deny uint32, create ...any) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
		current := [16]byte{3: 1}
		how := create
		if how == nil {
			how = []any{0}
		}
		return p.on(c, h, op4(nfs4.OpOpen, append(append([]any{0, access, deny, uint64(0), "me"}, how...), 0, "x")...),
			op4(nfs4.OpClose, 0, current))
	}
}

// empty is a fattr4 of size 0.
var empty = (&setAttr{size: pointer(uint64(0))}).encode4

// verifierTime is a time to come, so that reading does not change the time of access.
const verifierTime = 2_000_000_000

// verifier is what withTimes leaves in the times of a file, as far as they hold it.
var verifier = func() (v [8]byte) {
	binary.BigEndian.PutUint32(v[:4], verifierTime)
	binary.BigEndian.PutUint32(v[4:], verifierTime+1)
	return v
}()

// withTimes makes an empty file of the owner that others have no rights to, with the times of a
// verifier.
func withTimes(dir string) error {
	x := filepath.Join(dir, "d/x")
	return errors.Join(made(0o777, 0o600)(dir), os.Truncate(x, 0),
		os.Chtimes(x, time.Unix(verifierTime+1, 0), time.Unix(verifierTime, 0)))
}

func withXattr(mode uint32) func(string) error {
	return func(dir string) error {
		return errors.Join(made(0o755, mode)(dir), unix.Setxattr(filepath.Join(dir, "d/x"), "user.there", []byte("value"), 0))
	}
}

func doXattr(num uint32, args ...any) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) { return p.on(c, h, op4(num, args...)) }
}

// doACL sets an ACL that gives everybody everything.
func doACL(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		everything := nfs3.ACLToWire(blockstore.ACLOfMode(0o777), 0, 0, true)
		return p.call(nfs3.ACLProgram, nfs3.ACLVersion, nfs3.ProcSetACL, c, func(e *xdr.Encoder) {
			nfs3.EncodeHandle(e, h)
			e.Uint32(nfs3.MaskACL)
			nfs3.EncodeACL(e, everything, false)
			nfs3.EncodeACL(e, nfs3.WireACL{}, true)
		}, func(_ nfs.Status, d *xdr.Decoder) { d.Skip(d.Remaining()) })
	}
	const acl, all = 12, 0x1601ff
	var v xdr.Encoder
	words(3)(&v)
	for _, who := range []string{"OWNER@", "GROUP@", "EVERYONE@"} {
		words(0, 0, all, who)(&v)
	}
	return p.on(c, h, op4(nfs4.OpSetAttr, noState, 1, 1<<acl, v.B))
}

// outcome is what a call came to, in the terms of the test.
func outcome(st nfs.Status, err error) string {
	var denied *rpc.DeniedError
	switch {
	case errors.As(err, &denied):
		return "denied"
	case err != nil:
		return err.Error()
	}
	switch st {
	case nfs.OK:
		return "done"
	case nfs.ErrPerm, nfs.ErrAcces, nfs.ErrWrongSec:
		return "denied"
	case nfs.ErrROFS:
		return "read-only"
	}
	return st.String()
}

// state is what is to be seen of a directory and all that is in it.
func state(dir string) string {
	var b strings.Builder
	_ = filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		data := []byte(nil)
		if err == nil && e.Type().IsRegular() {
			data, err = os.ReadFile(p)
		}
		xattr := make([]byte, 100)
		n, _ := unix.Getxattr(p, "user.there", xattr)
		fmt.Fprintln(&b, p, err, string(xattr[:max(n, 0)]), st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Sec, st.Nlink, st.Rdev,
			string(data))
		return nil
	})
	return b.String()
}

// TestAccess holds what callers can do against what the host's kernel grants the users that the
// rules make of them: rule, claimed identity, operation, version and carrier. It is done with a
// daemon of root and with one as the unit file runs it: another user, with capabilities. What is
// denied must leave no trace.
func TestAccess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Run("root", func(t *testing.T) { accessMatrix(t, false) })
	t.Run("unit", func(t *testing.T) { accessMatrix(t, true) })
}

func accessMatrix(t *testing.T, unit bool) {
	base, err := os.MkdirTemp("", "rs-access-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	client, friend := loopback(), loopback()
	args := []string{"--audit", "off"}
	for _, r := range accessRules {
		if err := os.Mkdir(filepath.Join(base, r.name), 0o755); err != nil {
			t.Fatal(err)
		}
		who, options := client.String(), r.options
		if options == "" {
			who, options = "192.0.2.1", "rw,no_root_squash"
		}
		args = append(args, "--export",
			fmt.Sprintf("%s=/%s(async) %s(%s) %s(rw,no_root_squash)", filepath.Join(base, r.name), r.name, who, options, friend))
	}
	d := newDaemonOn(t, func(d *daemon) {
		if unit {
			d.asUnit()
		}
	}, args...)

	dev, err := roce.Open(roce.Config{Addr: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	noXattrs := unix.Setxattr(base, "user.probe", []byte("1"), 0) != nil
	creds := claims()
	helper := d.accessPeer("tcp", -1, friend, nil) // it has what it takes to find handles that others could not
	number := 0
	try := func(p *accessPeer, r *accessRule, o *accessOp, claim string) {
		number++
		name := fmt.Sprint(number)
		dir := filepath.Join(base, r.name, name)
		defer func() { _ = os.RemoveAll(dir) }()
		if err := errors.Join(os.Mkdir(dir, 0o755), o.prepare(dir)); err != nil {
			t.Fatal(err)
		}
		h, st, err := helper.find(creds["root"], filepath.Join("/", r.name, name, o.on))
		if st != nfs.OK || err != nil {
			t.Fatal(r.name, st, err)
		}
		before := state(dir)
		c := creds[claim]
		i := r.as(c)
		want := "denied"
		switch {
		case r.admits != nil && !r.admits(p.transport, c):
		case r.readOnly && o.changes && (p.minor < 0 || !o.ends):
			want = "read-only"
		case o.may(&i):
			want = "done"
		}
		got := outcome(o.call(p, c, h))
		about := fmt.Sprintf("%s, %s, %s, as %s", r.name, o.name, p, claim)
		switch {
		case got != want:
			t.Errorf("%s: %s, not %s", about, got, want)
		case got != "done" && state(dir) != before:
			t.Errorf("%s: %s, but it is done:\n%s%s", about, got, before, state(dir))
		case got == "done" && o.then != nil:
			if err := o.then(dir, &i); err != nil {
				t.Errorf("%s: %v", about, err)
			}
		}
	}
	ops := slices.DeleteFunc(accessOps(), func(o accessOp) bool {
		return noXattrs && strings.Contains(o.name, "XATTR")
	})
	for _, v := range []struct {
		transport string
		minor     int
		claims    []string // nil: all
	}{
		{"tcp", -1, nil},
		{"tcp", 2, nil},
		{"tcp", 0, []string{"root", "daemon", "owner", "other"}},
		{"tcp", 1, []string{"root", "last of 16", "-1"}},
		{"rdma", -1, []string{"root", "daemon", "member"}},
		{"rdma", 2, []string{"root", "other", "no credential"}},
	} {
		p := d.accessPeer(v.transport, v.minor, client, dev)
		switch {
		case v.claims == nil && unit: // what the daemon's own user has to do with it
			v.claims = []string{"root", "daemon", "member", "other"}
		case v.claims == nil:
			v.claims = slices.Sorted(maps.Keys(creds))
		}
		for i := range accessRules {
			for j := range ops {
				if o := &ops[j]; v.minor >= o.minor && (v.minor >= 0 || !o.no3) {
					for _, claim := range v.claims {
						try(p, &accessRules[i], o, claim)
					}
				}
			}
		}
		if h, st, err := p.find(creds["root"], "/unlisted"); err == nil && (st == nfs.OK || h != nil) {
			t.Errorf("%s finds an export that is not for it", p)
		}
	}
	t.Logf("%d calls", number)
}

// TestAccessAcross: what one caller may do in one export does not help in another one, nor what
// somebody else has open.
func TestAccessAcross(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	base, err := os.MkdirTemp("", "rs-across-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	client, friend := loopback(), loopback()
	args := []string{"--audit", "off"}
	for _, x := range []struct{ name, options string }{
		{"free", "rw,no_root_squash"},
		{"squashed", "rw,root_squash"},
		{"ro", "ro,no_root_squash"},
		{"hidden", ""},
	} {
		dir := filepath.Join(base, x.name)
		if err := errors.Join(os.Mkdir(dir, 0o777), unix.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
		for name, mode := range map[string]uint32{"secret": 0o600, "public": 0o644} {
			p := filepath.Join(dir, name)
			if err := errors.Join(os.WriteFile(p, []byte("data of "+x.name), 0o600), os.Chown(p, owner, ownGroup),
				unix.Chmod(p, mode)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Symlink("/etc", filepath.Join(dir, "etc")),
			os.Symlink("../hidden", filepath.Join(dir, "beside")),
			unix.Mknod(filepath.Join(dir, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))); err != nil {
			t.Fatal(err)
		}
		rule := fmt.Sprintf("%s(%s) ", client, x.options)
		if x.options == "" {
			rule = ""
		}
		args = append(args, "--export", fmt.Sprintf("%s=/%s(async) %s%s(rw,no_root_squash)", dir, x.name, rule, friend))
	}
	d := newDaemonOn(t, func(d *daemon) { d.asUnit() }, args...)
	dev, err := roce.Open(roce.Config{Addr: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	creds := claims()
	root, other, own := creds["root"], creds["other"], creds["owner"]
	helper := d.accessPeer("tcp", -1, friend, nil)
	h := make(map[string][]byte)
	for _, x := range []string{"free", "squashed", "ro", "hidden"} {
		for _, name := range []string{"", "/secret", "/public", "/zero", "/etc"} {
			var st nfs.Status
			if h[x+name], st, err = helper.find(root, x+name); st != nfs.OK || err != nil {
				t.Fatal(x+name, st, err)
			}
		}
	}
	before := state(base)
	for _, p := range []*accessPeer{
		d.accessPeer("tcp", 0, client, nil), d.accessPeer("tcp", 1, client, nil),
		d.accessPeer("tcp", 2, client, nil), d.accessPeer("rdma", 2, client, dev),
	} {
		put := func(name string) op { return op4(nfs4.OpPutFH, h[name]) }
		save, restore := op4(nfs4.OpSaveFH), op4(nfs4.OpRestoreFH)
		copied := op4(nfs4.OpCopy, noState, noState, uint64(0), uint64(0), uint64(0), true, true, 0)
		cloned := op4(nfs4.OpClone, noState, noState, uint64(0), uint64(0), uint64(0))
		const all = 0x3f
		attrs := op4(nfs4.OpGetAttr, 1, 1<<1)
		for _, c := range []struct {
			about string
			minor int
			as    *rpc.Cred
			want  string
			ops   []op
		}{
			{
				"LINK into another export", 0, root, "XDEV",
				[]op{put("free/secret"), save, put("squashed"), op4(nfs4.OpLink, "new")},
			},
			{
				"RENAME into another export", 0, root, "XDEV",
				[]op{put("free"), save, put("ro"), op4(nfs4.OpRename, "public", "new")},
			},
			{
				"RENAME out of a hidden export", 0, root, "denied",
				[]op{put("hidden"), save, put("free"), op4(nfs4.OpRename, "public", "new")},
			},
			{
				"LINK out of a hidden export", 0, root, "denied",
				[]op{put("hidden/public"), save, put("free"), op4(nfs4.OpLink, "new")},
			},
			{
				"COPY of what root may not read there", 2, root, "denied",
				[]op{put("squashed/secret"), save, put("free/public"), copied},
			},
			{
				"COPY to what root may not write there", 2, root, "denied",
				[]op{put("free/secret"), save, put("squashed/public"), copied},
			},
			{"COPY to a read-only export", 2, root, "read-only", []op{put("free/secret"), save, put("ro/public"), copied}},
			{"COPY out of a hidden export", 2, root, "denied", []op{put("hidden/public"), save, put("free/public"), copied}},
			{"COPY into a hidden export", 2, root, "denied", []op{put("free/public"), save, put("hidden/public"), copied}},
			{"COPY of another's", 2, other, "denied", []op{put("free/secret"), save, put("free/public"), copied}},
			{"CLONE between exports", 2, root, "XDEV", []op{put("squashed/secret"), save, put("free/public"), cloned}},
			{
				"CLONE out of a hidden export", 2, root, "denied|XDEV",
				[]op{put("hidden/public"), save, put("free/public"), cloned},
			},
			{
				"identities in turn", 0, root, "denied",
				[]op{
					put("free/secret"), op4(nfs4.OpRead, noState, uint64(0), 1), put("squashed/secret"),
					op4(nfs4.OpRead, noState, uint64(0), 1),
				},
			},
			{
				"an identity that was saved", 0, root, "denied",
				[]op{
					put("squashed/secret"), save, put("free/secret"), op4(nfs4.OpRead, noState, uint64(0), 1), restore,
					op4(nfs4.OpRead, noState, uint64(0), 1),
				},
			},
			{
				"a read-only export that was saved", 0, root, "read-only",
				[]op{put("ro/secret"), save, put("free/secret"), restore, op4(nfs4.OpWrite, noState, uint64(0), 0, "evil")},
			},
			{"a hidden export that was saved", 0, root, "denied", []op{put("hidden"), save, put("free"), restore, attrs}},
			{"GETATTR in a hidden export", 0, root, "denied", []op{put("hidden/public"), attrs}},
			{"ACCESS in a hidden export", 0, root, "denied", []op{put("hidden/public"), op4(nfs4.OpAccess, all)}},
			{"READ in a hidden export", 0, root, "denied", []op{put("hidden/public"), op4(nfs4.OpRead, noState, uint64(0), 1)}},
			{
				"WRITE in a hidden export", 0, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpWrite, noState, uint64(0), 0, "evil")},
			},
			{"COMMIT in a hidden export", 0, root, "denied", []op{put("hidden/public"), op4(nfs4.OpCommit, uint64(0), 0)}},
			{
				"READDIR in a hidden export", 0, root, "denied",
				[]op{put("hidden"), op4(nfs4.OpReadDir, uint64(0), [8]byte{}, 4096, 4096, 0)},
			},
			{"LOOKUP in a hidden export", 0, root, "denied", []op{put("hidden"), op4(nfs4.OpLookup, "public")}},
			{"LOOKUPP in a hidden export", 0, root, "denied", []op{put("hidden/public"), op4(nfs4.OpLookupP)}},
			{"READLINK in a hidden export", 0, root, "denied", []op{put("hidden/etc"), op4(nfs4.OpReadLink)}},
			{"SECINFO in a hidden export", 0, root, "denied", []op{put("hidden"), op4(nfs4.OpSecInfo, "public")}},
			{
				"VERIFY in a hidden export", 0, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpVerify, 1, 1<<4, []byte{7: 1})},
			},
			{"REMOVE in a hidden export", 0, root, "denied", []op{put("hidden"), op4(nfs4.OpRemove, "public")}},
			{"CREATE in a hidden export", 0, root, "denied", []op{put("hidden"), op4(nfs4.OpCreate, 2, "new", newMode.encode4)}},
			{
				"SETATTR in a hidden export", 0, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpSetAttr, noState, setMode.encode4)},
			},
			{
				"OPEN in a hidden export", 1, root, "denied",
				[]op{put("hidden"), op4(nfs4.OpOpen, 0, 1, 0, uint64(0), "me", 0, 0, "public")},
			},
			{
				"LISTXATTRS in a hidden export", 2, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpListXattrs, uint64(0), 4096)},
			},
			{"SEEK in a hidden export", 2, root, "denied", []op{put("hidden/public"), op4(nfs4.OpSeek, noState, uint64(0), 0)}},
			{
				"READ_PLUS in a hidden export", 2, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpReadPlus, noState, uint64(0), 10)},
			},
			{
				"ALLOCATE in a hidden export", 2, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpAllocate, noState, uint64(0), uint64(10))},
			},
			{"LOOKUP of a hidden export", 0, root, "NOENT", []op{op4(nfs4.OpPutRootFH), op4(nfs4.OpLookup, "hidden")}},
			{"SECINFO of a hidden export", 0, root, "NOENT", []op{op4(nfs4.OpPutRootFH), op4(nfs4.OpSecInfo, "hidden")}},
			{
				"LOOKUPP out of an export into a hidden one", 0, root, "NOENT",
				[]op{put("free"), op4(nfs4.OpLookupP), op4(nfs4.OpLookup, "hidden")},
			},
			{"LOOKUPP out of the server", 0, root, "NOENT", []op{put("free"), op4(nfs4.OpLookupP), op4(nfs4.OpLookupP)}},
			{"LOOKUP of ..", 0, root, "BADNAME", []op{put("free"), op4(nfs4.OpLookup, "..")}},
			{"LOOKUP of a path", 0, root, "BADCHAR", []op{put("free"), op4(nfs4.OpLookup, "../hidden")}},
			{
				"LOOKUP through a link to the host", 0, root, "SYMLINK",
				[]op{put("free"), op4(nfs4.OpLookup, "etc"), op4(nfs4.OpLookup, "passwd")},
			},
			{
				"LOOKUP through a link to another export", 0, root, "SYMLINK",
				[]op{put("free"), op4(nfs4.OpLookup, "beside"), op4(nfs4.OpLookup, "public")},
			},
			{"READ of a device", 0, root, "INVAL|WRONG_TYPE", []op{put("free/zero"), op4(nfs4.OpRead, noState, uint64(0), 10)}},
			{
				"WRITE to a device", 0, root, "INVAL|WRONG_TYPE",
				[]op{put("free/zero"), op4(nfs4.OpWrite, noState, uint64(0), 0, "evil")},
			},
			{
				"OPEN of a device", 1, root, "SYMLINK",
				[]op{put("free"), op4(nfs4.OpOpen, 0, 3, 0, uint64(0), "me", 0, 0, "zero")},
			},
			{
				"OPEN by its handle of what is another's", 1, other, "denied",
				[]op{put("free/secret"), op4(nfs4.OpOpen, 0, 1, 0, uint64(0), "me", 0, 4)},
			},
			{
				"READ past all locks of what is another's", 0, other, "denied",
				[]op{put("free/secret"), op4(nfs4.OpRead, allOnes, uint64(0), 10)},
			},
			{
				"attributes of trusted users", 2, other, "denied",
				[]op{put("free/public"), op4(nfs4.OpSetXattr, 0, "../trusted.x", "evil")},
			},
		} {
			if p.minor < c.minor {
				continue
			}
			if got := outcome(p.compound(c.as, nil, c.ops...)); !slices.Contains(strings.Split(c.want, "|"), got) {
				t.Errorf("%s, %s: %s, not %s", c.about, p, got, c.want)
			}
		}
		if now := state(base); now != before {
			t.Fatalf("%s: something was done:\n%s%s", p, before, now)
		}
		if p.minor > 0 {
			p.othersState(own, other, h["free/secret"])
		}
		for i := range h["free/secret"] {
			forged := slices.Clone(h["free/secret"])
			forged[i] ^= 1
			if st, err := p.on(root, forged, attrs); err != nil || st != nfs.ErrBadHandle {
				t.Errorf("%s: a handle with another byte %d: %v, %v", p, i, st, err)
			}
		}
	}
	// An export that was removed takes its handles with it, and one of the same place has its own
	// rules.
	dir := filepath.Join(base, "squashed")
	p := d.accessPeer("tcp", 2, client, nil)
	read := func() string {
		return outcome(p.on(own, h["squashed/secret"], op4(nfs4.OpRead, noState, uint64(0), 1)))
	}
	if got := read(); got != "done" {
		t.Error(got)
	}
	d.ctl("export", "remove", "/squashed")
	if got := read(); got != "STALE" {
		t.Errorf("after the export was removed: %s", got)
	}
	d.ctl("export", "add", dir+"=/again", "--client", friend.String()+"(rw)")
	if got := read(); got != "denied" && got != "STALE" {
		t.Errorf("after it was exported to somebody else: %s", got)
	}
}

var allOnes = [16]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}

// othersState has one user of a client use the open of another one, in the same session.
func (p *accessPeer) othersState(own, other *rpc.Cred, h []byte) {
	p.t.Helper()
	var id [16]byte
	st, err := p.compound(own, func(d *xdr.Decoder) {
		d.Skip(8 + 8)
		copy(id[:], d.Fixed(16))
	}, op4(nfs4.OpPutFH, h), op4(nfs4.OpOpen, 0, 3, 0, uint64(0), "mine", 0, 4))
	if st != nfs.OK || err != nil {
		p.t.Fatal(p, st, err)
	}
	for name, o := range map[string]op{
		"READ": op4(nfs4.OpRead, id, uint64(0), 10), "WRITE": op4(nfs4.OpWrite, id, uint64(0), 0, "evil"),
		"SETATTR": op4(nfs4.OpSetAttr, id, setSize.encode4),
	} {
		if got := outcome(p.on(other, h, o)); got != "denied" {
			p.t.Errorf("%s: %s by the open of another user: %s", p, name, got)
		}
		if got := outcome(p.on(own, h, op4(nfs4.OpRead, id, uint64(0), 10))); got != "done" {
			p.t.Errorf("%s: by his own: %s", p, got)
		}
	}
	if got := outcome(p.on(own, h, op4(nfs4.OpClose, 0, id))); got != "done" {
		p.t.Error(p, got)
	}
}
