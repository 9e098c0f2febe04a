package bridge

import (
	"bytes"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func compound(n uint32, ops func(e *xdr.Encoder)) []byte {
	var e xdr.Encoder
	e.String("tag")
	e.Uint32(2)
	e.Uint32(n)
	ops(&e)
	return e.B
}

func planFor(args []byte) (*plan, bool) {
	return planOf(&rpc.Call{Prog: nfs4.Program, Vers: nfs4.Version, Proc: nfs4.ProcCompound, Args: xdr.NewDecoder(args)})
}

// read appends PUTFH and a READ of n bytes.
func read(e *xdr.Encoder, n uint32) {
	e.Uint32(nfs4.OpPutFH)
	e.String("handle")
	e.Uint32(nfs4.OpRead)
	e.Fixed(make([]byte, 16+8))
	e.Uint32(n)
}

// TestCompoundPlans: the data of compounds has chunks of its own, or room in the Reply chunk, and
// arguments pass as they are but for counts that are too large.
func TestCompoundPlans(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 5001)
	write := compound(4, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpSequence)
		e.Fixed(make([]byte, 32))
		e.Uint32(nfs4.OpWrite)
		e.Fixed(make([]byte, 16+8+4))
		e.Opaque(data)
		e.Uint32(nfs4.OpGetAttr)
		e.Uint32(1)
		e.Uint32(8)
		e.Uint32(nfs4.OpGetFH)
	})
	for _, k := range []struct {
		name       string
		args, want []byte // want nil: args
		result     int
		least      int // of room for other results
		bulk       []byte
	}{
		{"READ", compound(2, func(e *xdr.Encoder) { read(e, 5000) }), nil, 5000, 512, nil},
		{
			"READ of too much", compound(2, func(e *xdr.Encoder) { read(e, 1<<31) }),
			compound(2, func(e *xdr.Encoder) { read(e, nfs.MaxIO) }), nfs.MaxIO, 512, nil,
		},
		{"READ and more", compound(3, func(e *xdr.Encoder) { read(e, 70000); e.Uint32(nfs4.OpGetFH) }), nil, 0, 70512, nil},
		{"WRITE", write, nil, 0, 512, data},
		{"OPEN", compound(1, func(e *xdr.Encoder) { e.Uint32(nfs4.OpOpen); e.Uint32(9) }), nil, 0, nfs.MaxIO, nil},
		{
			"an ACL", compound(1, func(e *xdr.Encoder) { e.Uint32(nfs4.OpGetAttr); e.Uint32(1); e.Uint32(1 << 12) }), nil, 0,
			attrsMax, nil,
		},
		{"cut off", write[:60], nil, 0, 0, nil},
		{"nothing", nil, nil, 0, 0, nil},
	} {
		p, ok := planFor(bytes.Clone(k.args))
		if !ok {
			t.Errorf("%s: refused", k.name)
			continue
		}
		var e xdr.Encoder
		p.encode(&e)
		want := k.want
		if want == nil {
			want = k.args
		}
		if got := e.AppendFlat(nil); !bytes.Equal(got, want) {
			t.Errorf("%s: the arguments become\n%x\n%x", k.name, got, want)
		}
		if p.result != k.result || p.resMax < k.least || !bytes.Equal(p.bulk, k.bulk) {
			t.Errorf("%s: a result of %d bytes, room for %d, an argument of %d", k.name, p.result, p.resMax, len(p.bulk))
		}
	}
}

// FuzzCompound: whatever a client sends passes unchanged in its length, and asks for bounded
// memory.
func FuzzCompound(f *testing.F) {
	f.Add(compound(2, func(e *xdr.Encoder) { read(e, 5000) }))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := planFor(bytes.Clone(b))
		if !ok {
			return
		}
		var e xdr.Encoder
		p.encode(&e)
		if n := len(e.AppendFlat(nil)); n != len(b) || p.result > nfs.MaxIO || p.resMax > anyMax {
			t.Errorf("%d bytes become %d; a result of %d bytes, room for %d", len(b), n, p.result, p.resMax)
		}
	})
}
