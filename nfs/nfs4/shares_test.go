package nfs4

import (
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// TestReadWhileDenied: who reads without an open is served on the transport's loop as long
// as nobody denies anything, and the denials of a silent client end where that may wait.
func TestReadWhileDenied(t *testing.T) {
	r := newRig(t)
	x, y := r.session(2, "one"), r.session(2, "two")
	fh := x.file("f")
	read := func(id state.Stateid, want nfs.Status, onLoop bool) {
		t.Helper()
		p := y.do(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(10))).ok(OpPutFH)
		if st := p.next(OpRead); st != want || r.noBlock != onLoop {
			t.Errorf("%v, without a worker: %v", st, r.noBlock)
		}
	}
	read(state.Anonymous, nfs.OK, true)
	opened := func() state.Stateid {
		id, _, _ := x.do(op(OpPutFH, x.handle("one")),
			openOp(state.Read, state.Read, "p", "f")).ok(OpPutFH).ok(OpOpen).opened()
		return id
	}
	id := opened()
	read(state.Anonymous, nfs.ErrLocked, false)
	read(state.Bypass, nfs.OK, false)
	x.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
	read(state.Anonymous, nfs.OK, true)
	opened()
	r.now = r.now.Add(80 * time.Second)
	read(state.Bypass, nfs.OK, false) // this client is heard of
	r.now = r.now.Add(80 * time.Second)
	read(state.Anonymous, nfs.OK, false)
	read(state.Anonymous, nfs.OK, true)
}
