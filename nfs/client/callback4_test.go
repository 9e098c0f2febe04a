package client

import (
	"bytes"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// calledOps are the operations of a client of a test with one session.
type calledOps struct {
	back  backchannel
	calls int
}

var calledSession = state.SessionID{1, 2, 3}

func (o *calledOps) sequence(id state.SessionID, minor uint32) *backchannel {
	if id != calledSession || minor != o.back.minor {
		return nil
	}
	return &o.back
}

func (o *calledOps) recall(h Handle, _ state.Stateid) nfs.Status {
	o.calls++
	if string(h) != "file" {
		return nfs.ErrBadHandle
	}
	return nfs.OK
}

func (o *calledOps) getAttr(Handle) (change, size uint64, st nfs.Status) {
	o.calls++
	return 5, 1 << 40, nfs.OK
}

func (o *calledOps) recallAny(uint32, nfs4.Bitmap) nfs.Status { o.calls++; return nfs.OK }

func (o *calledOps) notifyLock(Handle, string) nfs.Status { o.calls++; return nfs.OK }

// cbCompound encodes a CB_COMPOUND4args. Each operation is a function.
func cbCompound(minor uint32, ops ...func(*xdr.Encoder)) []byte {
	var e xdr.Encoder
	e.String("tag")
	e.Uint32s(minor, 0, uint32(len(ops)))
	for _, f := range ops {
		f(&e)
	}
	return e.B
}

func cbSeq(id state.SessionID, seq, slot uint32) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		e.Uint32(opCBSequence)
		e.Fixed(id[:])
		e.Uint32s(seq, slot, slot, 0, 1) // one list of referring calls
		e.Fixed(id[:])
		e.Uint32s(1, 7, 0)
	}
}

func cbOf(num uint32, args ...any) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		e.Uint32(num)
		for _, a := range args {
			switch a := a.(type) {
			case uint32:
				e.Uint32(a)
			case string:
				e.String(a)
			case nfs4.Bitmap:
				a.Encode(e)
			case state.Stateid:
				nfs4.EncodeStateid(e, a)
			}
		}
	}
}

func recallOf(name string) func(*xdr.Encoder) {
	return cbOf(opCBRecall, state.Stateid{Seq: 1}, uint32(0), name)
}

// TestCallbacks: the statuses of callbacks, and how often they execute something (RFC 8881 sections
// 20 and 2.10.6.1).
func TestCallbacks(t *testing.T) {
	o := &calledOps{back: backchannel{minor: 1}}
	for _, c := range []struct {
		name  string
		args  []byte
		want  []uint32 // status, then operation and status of each result
		calls int
	}{
		{"alone", cbCompound(1, cbSeq(calledSession, 1, 0)), []uint32{0, 11, 0}, 0},
		{"recall", cbCompound(1, cbSeq(calledSession, 2, 0), recallOf("file")), []uint32{0, 11, 0, 4, 0}, 1},
		{"the same again", cbCompound(1, cbSeq(calledSession, 2, 0), recallOf("file")), []uint32{0, 11, 0, 4, 0}, 0},
		{"one left out", cbCompound(1, cbSeq(calledSession, 4, 0)), []uint32{10063, 11, 10063}, 0},
		{"an old one", cbCompound(1, cbSeq(calledSession, 1, 0)), []uint32{10063, 11, 10063}, 0},
		{"another slot", cbCompound(1, cbSeq(calledSession, 1, 7)), []uint32{0, 11, 0}, 0},
		{"no slot", cbCompound(1, cbSeq(calledSession, 1, 8)), []uint32{10053, 11, 10053}, 0},
		{"no session", cbCompound(1, cbSeq(state.SessionID{9}, 1, 0)), []uint32{10052, 11, 10052}, 0},
		{"of 4.0", cbCompound(0, recallOf("file")), []uint32{10021}, 0},
		{"of 4.3", cbCompound(3, cbSeq(calledSession, 3, 0)), []uint32{10021}, 0},
		{"the other minor version", cbCompound(2, cbSeq(calledSession, 3, 0)), []uint32{10052, 11, 10052}, 0},
		{"nothing", cbCompound(1), []uint32{0}, 0},
		{"without sequence", cbCompound(1, recallOf("file")), []uint32{10071, 4, 10071}, 0},
		{"no operation", cbCompound(1, cbOf(99)), []uint32{10044, 10044, 10044}, 0},
		{
			"sequence twice", cbCompound(1, cbSeq(calledSession, 3, 0), cbSeq(calledSession, 1, 1)),
			[]uint32{10064, 11, 0, 11, 10064},
			0,
		},
		{
			"no file, and no further", cbCompound(1, cbSeq(calledSession, 4, 0), recallOf("none"), recallOf("file")),
			[]uint32{10001, 11, 0, 4, 10001},
			1,
		},
		{
			"no such operation behind", cbCompound(1, cbSeq(calledSession, 5, 0), cbOf(16)),
			[]uint32{10044, 11, 0, 10044, 10044},
			0,
		},
		{"not supported", cbCompound(1, cbSeq(calledSession, 6, 0), cbOf(5)), []uint32{10004, 11, 0, 5, 10004}, 0},
		{"cut", cbCompound(1, cbSeq(calledSession, 7, 0), cbOf(4)), []uint32{10036, 11, 0, 4, 10036}, 0},
		{
			"any", cbCompound(1, cbSeq(calledSession, 8, 0), cbOf(8, uint32(3), nfs4.BitmapOf(kindRead))),
			[]uint32{0, 11, 0, 8, 0},
			1,
		},
		{
			"lock", cbCompound(1, cbSeq(calledSession, 9, 0), cbOf(13, "file", uint32(0), uint32(1), "owner")),
			[]uint32{0, 11, 0, 13, 0},
			1,
		},
		{
			"too many", cbCompound(1, cbSeq(calledSession, 10, 0), recallOf("file"), recallOf("file"), recallOf("file"),
				recallOf("file"), recallOf("file"), recallOf("file"), recallOf("file"), recallOf("file")),
			[]uint32{10070, 11, 10070},
			0,
		},
	} {
		before := o.calls
		d, e := xdr.NewDecoder(c.args), xdr.Encoder{}
		if st := serveCallback(o, procCBCompound, &d, &e); st != rpc.RPCSuccess {
			t.Errorf("%s: %v", c.name, st)
		}
		r := xdr.NewDecoder(e.B)
		got := []uint32{r.Uint32()}
		if tag := r.String(10); tag != "tag" {
			t.Errorf("%s: tag %q", c.name, tag)
		}
		for range r.Uint32() {
			op, st := r.Uint32(), r.Uint32()
			got = append(got, op, st)
			if op == opCBSequence && st == 0 {
				r.Skip(16 + 4*4)
			}
		}
		if r.Err() != nil || r.Remaining() != 0 || !equalWords(got, c.want) {
			t.Errorf("%s: %v instead of %v, %v", c.name, got, c.want, r.Err())
		}
		if n := o.calls - before; n != c.calls {
			t.Errorf("%s: %d executions", c.name, n)
		}
	}
}

func equalWords(a, b []uint32) bool {
	var x, y xdr.Encoder
	x.Uint32s(a...)
	y.Uint32s(b...)
	return bytes.Equal(x.B, y.B)
}

// TestCallbackAttrs: CB_GETATTR returns what is asked for, and nothing else.
func TestCallbackAttrs(t *testing.T) {
	o := &calledOps{back: backchannel{minor: 2}}
	args := cbCompound(2, cbSeq(calledSession, 1, 0),
		cbOf(opCBGetattr, "file", nfs4.BitmapOf(nfs4.AttrType, nfs4.AttrChange, nfs4.AttrSize, nfs4.AttrMode)))
	d, e := xdr.NewDecoder(args), xdr.Encoder{}
	serveCallback(o, procCBCompound, &d, &e)
	r := xdr.NewDecoder(e.B)
	r.Uint32()
	r.Opaque(10)
	r.Skip(4 + 4 + 4 + 16 + 4*4 + 4 + 4)
	has, _ := nfs4.DecodeBitmap(&r)
	vals := xdr.NewDecoder(r.Opaque(100))
	if change, size := vals.Uint64(), vals.Uint64(); has != nfs4.BitmapOf(nfs4.AttrChange, nfs4.AttrSize) ||
		change != 5 || size != 1<<40 || vals.Err() != nil || vals.Remaining() != 0 || r.Remaining() != 0 {
		t.Errorf("%v: %d, %d, %v", has, change, size, vals.Err())
	}
}

// FuzzCallback: no call of a server makes the client fall over, the reply decodes, and its length
// is bounded by that of the call.
func FuzzCallback(f *testing.F) {
	call := func(prog, vers, proc uint32, args []byte) []byte {
		var e xdr.Encoder
		rpc.EncodeCall(&e, 7, prog, vers, proc, &rpc.Cred{Flavor: rpc.AuthSys, Machine: "server"})
		return append(e.B, args...)
	}
	for _, args := range [][]byte{
		nil, cbCompound(1), cbCompound(1, cbSeq(calledSession, 1, 0), recallOf("file")),
		cbCompound(1, cbSeq(calledSession, 1, 3), cbOf(opCBGetattr, "file", ofDelegated), cbOf(opCBRecallAny, uint32(1),
			nfs4.BitmapOf(kindWrite)), cbOf(opCBNotifyLock, "file", uint32(0), uint32(1), "owner")),
	} {
		f.Add(call(callbackProg, callbackVersion, procCBCompound, args))
	}
	f.Add(call(callbackProg, callbackVersion, procCBNull, nil))
	f.Add(call(callbackProg, 2, procCBNull, nil))
	f.Add(call(1, 1, 1, nil))
	f.Fuzz(func(t *testing.T, msg []byte) {
		o := &calledOps{back: backchannel{minor: 1}}
		for range 2 {
			before := o.calls
			reply := rpc.Answer(msg, callbackProg, callbackVersion,
				func(proc uint32, d *xdr.Decoder, e *xdr.Encoder) rpc.AcceptStat { return serveCallback(o, proc, d, e) })
			if reply == nil {
				if rpc.IsCall(msg) && len(msg) >= 24 {
					t.Error("a call without an answer")
				}
				return
			}
			if len(reply) > len(msg)+64*backOps+256 {
				t.Errorf("%d bytes of reply to %d", len(reply), len(msg))
			}
			if o.calls-before >= backOps {
				t.Errorf("%d operations", o.calls-before)
			}
			if rpc.ReplyXID(reply) != rpc.ReplyXID(msg) || !rpc.IsReply(reply) {
				t.Errorf("reply %x", reply)
			}
		}
	})
}
