package nfs3

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestGetAttrOnLoop: GETATTR is served on a transport's loop where the store has the attributes in
// memory. Otherwise a worker serves it, with the same reply.
func TestGetAttrOnLoop(t *testing.T) {
	r := newRig(t)
	getAttr := func(fh []byte) (reply []byte, detached bool) {
		var e xdr.Encoder
		rpc.EncodeCall(&e, 1, Program, 3, ProcGetAttr, &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"})
		fhArgs(fh)(&e)
		done := make(chan []byte, 1)
		c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(r.peer)}, BulkMax: -1}
		c.Reply = func(c *rpc.Call, _ bool) {
			detached = c.Detached()
			done <- c.Res.AppendFlat(nil)
		}
		r.srv.Dispatch(c, xdr.NewDecoder(e.AppendFlat(nil)), false)
		return <-done, detached
	}
	h := r.oneRoot()
	got, moved := getAttr(h)
	if moved {
		t.Error("a store that need not wait was asked on a worker")
	}
	forged := bytes.Clone(h)
	forged[len(forged)-1] ^= 1
	if b, _ := getAttr(forged); len(b) != 28 {
		t.Errorf("of a forged handle: % x", b)
	}
	x := *r.table.ByID(1)
	x.FS = slow{r.fs}
	if err := r.table.Replace([]*nfs.Export{&x}); err != nil {
		t.Fatal(err)
	}
	want, moved := getAttr(h)
	if !moved {
		t.Error("a store that may wait was asked on the loop")
	}
	if !bytes.Equal(got, want) {
		t.Errorf("on the loop:\n% x\non a worker:\n% x", got, want)
	}
}
