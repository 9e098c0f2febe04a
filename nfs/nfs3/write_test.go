package nfs3

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func TestInlineWriteLength(t *testing.T) {
	for procs, want := range map[int]int{1: nfs.MaxIO, 2: nfs.MaxIO, 4: nfs.MaxIO, 5: 64 << 10, 64: 64 << 10} {
		if n := inlineWrite(procs); n != want {
			t.Errorf("%d bytes with %d processors, want %d", n, procs, want)
		}
	}
}

// slow is a store whose writes have to wait.
type slow struct{ blockstore.FS }

// losing is a store in which, during every write and commit, a sync of somebody else's fails.
type losing struct {
	blockstore.FS
	verf [8]byte
}

func (f *losing) Verifier() [8]byte { return f.verf }

func (f *losing) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int,
	blockstore.Stability, blockstore.Wcc, error,
) {
	f.verf[0]++
	return f.FS.WriteAt(c, h, p, off, how)
}

func (f *losing) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, n uint32) (blockstore.Wcc, error) {
	f.verf[0]++
	return f.FS.Commit(c, h, off, n)
}

// TestVerifierOfLostWrites: what is lost while a WRITE or a COMMIT is under way, the client sees by
// the verifiers: that of a WRITE is of before, that of a COMMIT of after.
func TestVerifierOfLostWrites(t *testing.T) {
	r := newRig(t)
	f := &losing{FS: r.fs}
	rule := nfs.ClientRule{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Squash: nfs.NoRootSquash}
	if err := r.table.Replace([]*nfs.Export{{ID: 1, Pseudo: "/one", FS: f, Clients: []nfs.ClientRule{rule}}}); err != nil {
		t.Fatal(err)
	}
	mode := uint32(0o600)
	h, _ := r.make(ProcCreate, dirArgs(r.root(), "f", words(uint32(blockstore.Unchecked)),
		sattr(&blockstore.SetAttr{Mode: &mode})))
	was := f.verf
	st, d := r.nfs(ProcWrite, func(e *xdr.Encoder) {
		EncodeHandle(e, h)
		e.Uint64(0)
		e.Uint32(4)
		e.Uint32(uint32(blockstore.Unstable))
		e.Opaque([]byte("data"))
	})
	DecodeWcc(d)
	d.Uint32()
	d.Uint32()
	if got := d.Fixed(8); st != nfs.OK || !bytes.Equal(got, was[:]) {
		t.Errorf("WRITE: %v, verifier %x, before it that was %x", st, got, was)
	}
	st, d = r.nfs(ProcCommit, readArgs(h, 0, 0))
	DecodeWcc(d)
	if got := d.Fixed(8); st != nfs.OK || !bytes.Equal(got, f.verf[:]) {
		t.Errorf("COMMIT: %v, verifier %x, after it that is %x", st, got, f.verf)
	}
}

// TestWriteWhereItArrived: a WRITE over RDMA is done on the loop if the store need not wait, and it
// is no failure; all others move to a worker and end there as they would without.
func TestWriteWhereItArrived(t *testing.T) {
	r := newRig(t)
	r.srv.Close() // so that what moves to a worker is dropped
	root, err := r.fs.Root()
	if err != nil {
		t.Fatal(err)
	}
	mode := uint32(0o600)
	h, _, _, err := r.fs.Create(nil, root, "f", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	rule := nfs.ClientRule{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Squash: nfs.NoRootSquash}
	more := []*nfs.Export{
		{ID: 1, Pseudo: "/one", FS: r.fs, Clients: []nfs.ClientRule{rule}},
		{ID: 2, Pseudo: "/two", FS: r.fs, ReadOnly: true, Clients: []nfs.ClientRule{rule}},
		{ID: 3, Pseudo: "/three", FS: slow{r.fs}, Clients: []nfs.ClientRule{rule}},
	}
	if err := r.table.Replace(more); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		over   rpc.Transport
		export uint32
		uid    uint32
		n      int
		inline bool
	}{
		{"over RDMA", rpc.TransportRDMA, 1, 0, 100, true},
		{"over TCP", rpc.TransportTCP, 1, 0, 100, false},
		{"of a read-only export", rpc.TransportRDMA, 2, 0, 100, false},
		{"to a store that waits", rpc.TransportRDMA, 3, 0, 100, false},
		{"without permission", rpc.TransportRDMA, 1, 1000, 100, false},
		{"to no export", rpc.TransportRDMA, 9, 0, 100, true},
	} {
		var e xdr.Encoder
		rpc.EncodeCall(&e, 1, Program, Version, ProcWrite,
			&rpc.Cred{Flavor: rpc.AuthSys, Machine: "client", UID: c.uid, GID: c.uid})
		var b [nfs.HandleMax]byte
		EncodeHandle(&e, r.codec.Append(b[:0], c.export, &h))
		e.Uint64(0)
		e.Uint32(uint32(c.n))
		e.Uint32(uint32(blockstore.Unstable))
		e.Opaque(make([]byte, c.n))
		replies, dropped := 0, false
		call := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(friend), Transport: c.over}, BulkMax: -1}
		call.Reply = func(_ *rpc.Call, drop bool) { replies, dropped = replies+1, drop }
		r.srv.Dispatch(call, xdr.NewDecoder(e.AppendFlat(nil)), false)
		if replies != 1 || dropped == c.inline {
			t.Errorf("%s: %d replies, dropped %v", c.name, replies, dropped)
		}
	}
}
