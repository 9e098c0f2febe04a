package nfs4

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// BenchmarkCompound is what the server does for a call of the kernel's client, but
// for the transport's part.
func BenchmarkCompound(b *testing.B) {
	r := newRig(b)
	x := r.session(2, "one")
	fh, id := x.make(x.handle("one"), "file")
	data := make([]byte, 4096)
	x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(0), data)).ok(OpPutFH).ok(OpWrite)
	standard := BitmapOf(1, 3, 4, 8, 20, 33, 35, 36, 37, 41, 45, 47, 52, 53, 55)
	for _, bm := range []struct {
		name string
		ops  []args
	}{
		{"SEQUENCE", nil},
		{"READ of 4 KiB", []args{op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(4096))}},
		{"WRITE of 4 KiB", []args{
			op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(0), data),
			op(OpGetAttr, BitmapOf(3, 4, 52, 53)),
		}},
		{"GETATTR", []args{op(OpPutFH, fh), op(OpGetAttr, standard)}},
		{"LOOKUP", []args{op(OpPutFH, x.handle("one")), op(OpLookup, "file"), op(OpGetFH), op(OpGetAttr, standard)}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var e xdr.Encoder
			encodeCompound(&e, "", 2, append([]args{x.sequence(0, 1)}, bm.ops...)...)
			const seqAt = 4 + 4 + 4 + 4 + 16
			mem := make([]byte, 8192)
			c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(friend)}, Alloc: func(n int) []byte { return mem[:n] }}
			c.Cred = rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"}
			serve := r.s.Programs()[0].Procs[ProcCompound].Serve
			seq := &slotSeq
			b.ReportAllocs()
			for b.Loop() {
				*seq++
				binary.BigEndian.PutUint32(e.B[seqAt:], *seq)
				c.Reset()
				c.Cred.Flavor = rpc.AuthSys
				c.Args = xdr.NewDecoder(e.B)
				if st := serve(c, true); st != rpc.Done || nfs.Status(binary.BigEndian.Uint32(c.Res.B)) != nfs.OK {
					b.Fatal(st, c.Res.B[:4])
				}
			}
		})
	}
}

// slotSeq is the sequence of the slot that the benchmarks share.
var slotSeq uint32

// BenchmarkCreate makes files in a directory of the host and closes them, with the journal of calls
// and without it.
func BenchmarkCreate(b *testing.B) {
	for _, journal := range []bool{false, true} {
		b.Run(fmt.Sprintf("journal %v", journal), func(b *testing.B) {
			fs, err := posixfs.Open(b.TempDir(), posixfs.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer fs.Close()
			r := newRigOver(b, func(blockstore.FS) blockstore.FS { return fs })
			if journal {
				r.calls = make([]byte, 16*callRecord)
				r.start(8)
			}
			x := r.session(2, "one")
			dir := x.handle("one")
			r.s.observe = nil
			c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(friend)}}
			serve := r.s.Programs()[0].Procs[ProcCompound].Serve
			var e xdr.Encoder
			mode := attrs(BitmapOf(AttrMode), uint32(0o644))
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				x.seq++
				n++
				e.Truncate(0)
				encodeCompound(&e, "", 2, x.sequence(x.seq, 0), op(OpPutFH, dir),
					op(OpOpen, uint32(0), uint32(3), uint32(0), x.client, "owner", uint32(OpenCreate), uint32(CreateUnchecked), mode,
						uint32(ClaimNull), fmt.Sprint("file", n)),
					op(OpGetFH), op(OpGetAttr, BitmapOf(AttrType, AttrChange, AttrSize, AttrFileID, AttrMode)),
					op(OpClose, uint32(0), state.Current))
				c.Reset()
				c.Cred.Flavor = rpc.AuthSys
				c.Args = xdr.NewDecoder(e.B)
				if st := serve(c, true); st != rpc.Done || nfs.Status(binary.BigEndian.Uint32(c.Res.B)) != nfs.OK {
					b.Fatal(st, c.Res.B[:4])
				}
			}
		})
	}
}
