package nfs4

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestMillionByProtocol makes a million opens and a million locks by COMPOUNDs, with
// RSTORED_LONG set, otherwise a few thousand: of 1000 files by as many owners of four
// clients as it takes. See state.TestMillion for what the state alone costs.
func TestMillionByProtocol(t *testing.T) {
	n := 4000
	if os.Getenv("RSTORED_LONG") != "" {
		n = 1_000_000
	}
	const files, clients = 1000, 4
	r := newRig(t)
	r.locks = lock.New(8 * n)
	r.start(8)
	var xs [clients]*sess
	for i := range xs {
		xs[i] = r.session(2, fmt.Sprint(i))
	}
	dir := xs[0].handle("one")
	fhs := make([][]byte, files)
	for i := range fhs {
		fhs[i], _ = xs[0].make(dir, fmt.Sprint("file", i))
	}
	r.s.observe = nil
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	serve := r.s.Programs()[0].Procs[ProcCompound].Serve
	c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(friend)}}
	var e xdr.Encoder
	// do serves PUTFH and an operation, and returns the stateid that begins its result.
	do := func(i int, o args) (id state.Stateid) {
		x := xs[i%clients]
		x.seq++
		e.Truncate(0)
		encodeCompound(&e, "", 2, x.sequence(x.seq, 0), op(OpPutFH, fhs[i%files]), o)
		c.Reset()
		c.Cred = rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"}
		c.Args = xdr.NewDecoder(e.B)
		if st := serve(c, true); st != rpc.Done || nfs.Status(binary.BigEndian.Uint32(c.Res.B)) != nfs.OK {
			t.Fatal(i, st, c.Res.B[:4])
		}
		d := xdr.NewDecoder(c.Res.B)
		d.Skip(4 + 4 + 4 + 8 + 36 + 8 + 8)
		return DecodeStateid(&d)
	}
	ids := make([]state.Stateid, n)
	was := heap()
	for _, step := range []struct {
		name string
		make func(i int) args
	}{
		{"open", func(i int) args {
			return op(OpOpen, uint32(0), uint32(state.Both|WantNoDeleg), uint32(0), uint64(0), fmt.Sprintf("open id: %16d", i),
				uint32(OpenNoCreate), uint32(ClaimFH))
		}},
		{"lock", func(i int) args {
			return op(OpLock, LockWrite, false, uint64(i), uint64(1), true, uint32(0), ids[i], uint32(0), uint64(0),
				fmt.Sprintf("lock id: %16d", i))
		}},
	} {
		begin, longest := time.Now(), time.Duration(0)
		for i := range n {
			at := time.Now()
			id := do(i, step.make(i))
			longest = max(longest, time.Since(at))
			if step.name == "open" {
				ids[i] = id
			}
		}
		took, now := time.Since(begin), heap()
		t.Logf("%s: %v each, the longest %v, %d bytes each", step.name, took/time.Duration(n), longest,
			int64(now-was)/int64(n))
		was = now
	}
	if got := r.s.State().Counts(); got.Opens != n+files || got.Locks != n {
		t.Errorf("%+v", got)
	}
	for i := range n {
		do(i, op(OpClose, uint32(0), ids[i]))
	}
	if got := r.s.State().Counts(); got.Opens != files || got.Locks != 0 {
		t.Errorf("%+v are left", got)
	}
}
