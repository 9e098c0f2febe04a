package nfs3

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestOnLoop: GETATTR and LOOKUP are served on a transport's loop where the store has the answer in
// memory. Otherwise a worker serves them, with the same reply.
func TestOnLoop(t *testing.T) {
	r := newRig(t)
	call := func(proc uint32, args func(*xdr.Encoder)) (reply []byte, detached bool) {
		var e xdr.Encoder
		rpc.EncodeCall(&e, 1, Program, 3, proc, &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"})
		args(&e)
		done := make(chan []byte, 1)
		c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(r.peer), Transport: rpc.TransportRDMA}, BulkMax: -1}
		c.Reply = func(c *rpc.Call, _ bool) {
			detached = c.Detached()
			done <- c.Res.AppendFlat(nil)
		}
		r.srv.Dispatch(c, xdr.NewDecoder(e.AppendFlat(nil)), false)
		return <-done, detached
	}
	h := r.oneRoot()
	forged := bytes.Clone(h)
	forged[len(forged)-1] ^= 1
	var got [2][]byte
	each := func(fh []byte, do func(i int, what string, reply []byte, moved bool)) {
		b, moved := call(ProcGetAttr, fhArgs(fh))
		do(0, "GETATTR", b, moved)
		b, moved = call(ProcLookup, dirArgs(fh, "f"))
		do(1, "LOOKUP", b, moved)
	}
	r.file(h, "f", "")
	each(h, func(i int, what string, b []byte, moved bool) {
		if got[i] = b; moved {
			t.Errorf("%s: a store that need not wait was asked on a worker", what)
		}
	})
	each(forged, func(i int, what string, b []byte, _ bool) {
		if len(b) != 28+4*i {
			t.Errorf("%s of a forged handle: % x", what, b)
		}
	})
	if _, moved := call(ProcLookup, dirArgs(h, "none")); !moved {
		t.Error("a failure was found on the loop")
	}
	x := *r.table.ByID(1)
	x.FS = slow{r.fs}
	if err := r.table.Replace([]*nfs.Export{&x}); err != nil {
		t.Fatal(err)
	}
	each(h, func(i int, what string, b []byte, moved bool) {
		if !moved {
			t.Errorf("%s: a store that may wait was asked on the loop", what)
		}
		if !bytes.Equal(got[i], b) {
			t.Errorf("%s, on the loop:\n% x\non a worker:\n% x", what, got[i], b)
		}
	})
}
