package nfs4

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestPace counts compounds before their data is there, in every minor version, and leaves alone
// those that do not begin with a file handle.
func TestPace(t *testing.T) {
	r := newRig(t)
	root, err := r.fs.Root()
	if err != nil {
		t.Fatal(err)
	}
	fh := r.codec.Append(nil, 1, &root)
	const size = 1 << 20
	x := *r.table.Exports()[0]
	x.Limit = nfs.Limit{Bytes: size}
	if err := r.table.Replace([]*nfs.Export{&x}); err != nil {
		t.Fatal(err)
	}
	if !r.table.Limited() {
		t.Fatal("nothing is limited")
	}
	pace := func(minor uint32, bulk int, take bool, ops ...args) (uint32, time.Duration) {
		var e xdr.Encoder
		encodeCompound(&e, "tag", minor, ops...)
		c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(r.peer)}, Args: xdr.NewDecoder(e.AppendFlat(nil))}
		limit, wait, ok := r.s.pace(c, bulk, take)
		if !ok || c.Paid != (take && limit != 0) {
			t.Errorf("paid %v, %v", c.Paid, ok)
		}
		return limit, wait
	}
	sequence := op(OpSequence, state.SessionID{}, uint32(1), uint32(0), uint32(0), false)
	put, read := op(OpPutFH, fh), op(OpRead, state.Anonymous, uint64(0), uint32(size))
	if limit, wait := pace(2, 0, false, sequence, put, read); limit == 0 || wait != 0 {
		t.Errorf("asked without taking: %d, %v", limit, wait)
	}
	if limit, wait := pace(0, 0, true, put, read); limit == 0 || wait != 0 {
		t.Errorf("the first: %d, %v", limit, wait)
	}
	if _, wait := pace(2, 0, true, sequence, put, read); wait < 800*time.Millisecond || wait > time.Second {
		t.Errorf("the second waits %v", wait)
	}
	if _, wait := pace(1, size, true, sequence, put, op(OpGetAttr)); wait < 1800*time.Millisecond || wait > 2*time.Second {
		t.Errorf("the third waits %v", wait)
	}
	for name, ops := range map[string][]args{
		"root": {sequence, op(OpPutRootFH)}, "cut off": {sequence},
		"no handle": {sequence, op(OpPutFH, []byte("x"))},
	} {
		if limit, _ := pace(2, 0, true, ops...); limit != 0 {
			t.Errorf("%s: limit %d", name, limit)
		}
	}
}
