package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

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

var (
	setSize  = setAttr{size: new(uint64(3))}
	setMode  = setAttr{mode: new(uint32(0o4777))}
	setOwner = setAttr{uid: new(uint32(1002))}
	setGroup = setAttr{gid: new(uint32(3333))}
	setTime  = setAttr{mtime: new(uint64(12345))}
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

var newMode = setAttr{mode: new(uint32(0o755))}
