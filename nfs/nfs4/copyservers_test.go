package nfs4

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// fakePartners are CopyPartners without a network.
type fakePartners struct {
	off  atomic.Bool
	open func(ctx context.Context, s *CopySource) (RemoteFile, error)
}

const partner = "10.0.0.2" // the address of reader

func (p *fakePartners) Enabled() bool            { return !p.off.Load() }
func (p *fakePartners) Admits(a netip.Addr) bool { return !p.off.Load() && a.String() == partner }
func (p *fakePartners) Connects(at netip.AddrPort) bool {
	return p.Admits(at.Addr()) && at.Port() == 2049
}

func (p *fakePartners) Open(ctx context.Context, s *CopySource) (RemoteFile, error) {
	return p.open(ctx, s)
}

func address(netid, addr string) args { return part(uint32(locAddress), netid, addr) }

// TestCopyNotify: who may read with a copy stateid, as whom, and until when.
func TestCopyNotify(t *testing.T) {
	r := newRig(t)
	r.uid = 1000
	x := r.session(2, "client")
	r.uid = 0
	dir := x.handle("one")
	chmod := func(fh []byte, mode uint32) {
		x.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrMode), mode))).ok(OpPutFH).ok(OpSetAttr)
	}
	chmod(dir, 0o777)
	r.uid = 1000
	fh, id := x.make(dir, "mine")
	other, _ := x.make(dir, "other")
	chmod(fh, 0o600)
	x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), 0, "some data")).ok(OpPutFH).ok(OpWrite)
	notify := func(id state.Stateid, to args) *reply {
		t.Helper()
		return x.do(op(OpPutFH, fh), op(OpCopyNotify, id, to)).ok(OpPutFH)
	}
	good := address("tcp", partner+".8.1")
	grantedAt := func(dst args, transport rpc.Transport, at string) state.Stateid {
		t.Helper()
		was := r.conn.Transport
		defer func() { r.conn.Transport = was }()
		r.conn.Local, r.conn.Transport = netip.MustParseAddrPort("10.0.0.9:2050"), transport
		p := notify(id, dst).ok(OpCopyNotify)
		if s, ns := p.Uint64(), p.Uint32(); s != 90 || ns != 0 {
			t.Errorf("a lease of %d s", s)
		}
		cid := DecodeStateid(p.Decoder)
		n, kind, netid, addr := p.Uint32(), p.Uint32(), p.String(9), p.String(99)
		if n != 1 || kind != locAddress || netid+" "+addr != at {
			t.Errorf("source %d %d %s %s instead of %s", n, kind, netid, addr, at)
		}
		p.end()
		return cid
	}
	granted := func() state.Stateid {
		t.Helper()
		return grantedAt(good, rpc.TransportRDMA, "tcp 10.0.0.9.8.1")
	}
	notify(id, good).fails(OpCopyNotify, nfs.ErrNotSupp)
	r.partners.off.Store(false)
	notify(id, address("tcp", "10.0.0.7.8.1")).fails(OpCopyNotify, nfs.ErrAcces)
	notify(id, address("tcp", "nonsense")).fails(OpCopyNotify, nfs.ErrAcces)
	notify(id, part(uint32(locName), "there")).fails(OpCopyNotify, nfs.ErrAcces)
	notify(id, part(uint32(9), "there")).fails(OpCopyNotify, nfs.ErrBadXDR)
	notify(state.Anonymous, good).fails(OpCopyNotify, nfs.ErrBadStateID)
	if n := r.s.Faults()["nfs4_copies_denied"]; n != 3 {
		t.Errorf("%d counted", n)
	}
	x.do(op(OpPutFH, fh), op(OpCopyNotify, id, good), op(OpOffloadCancel, state.Current)).ends(nfs.OK)
	grantedAt(good, rpc.TransportTCP, "tcp 10.0.0.9.8.2")
	grantedAt(address("rdma", partner+".78.81"), rpc.TransportTCP, "tcp 10.0.0.9.8.2")
	grantedAt(address("rdma", partner+".78.81"), rpc.TransportRDMA, "tcp 10.0.0.9.8.1")
	cid := granted()

	r.peer, r.uid = reader, 5 // a user who may not read
	y := r.session(2, "destination")
	read := func(fh []byte, id state.Stateid) nfs.Status {
		t.Helper()
		p := y.do(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(100))).ok(OpPutFH)
		st := p.next(OpRead)
		if st == nfs.OK && (!p.Bool() || p.String(100) != "some data") {
			t.Error("other data")
		}
		return st
	}
	expect := func(what string, got, want nfs.Status) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v instead of %v", what, got, want)
		}
	}
	expect("no stateid", read(fh, state.Anonymous), nfs.ErrAcces)
	expect("by its open", read(fh, id), nfs.ErrBadStateID)
	expect("the copy stateid", read(fh, cid), nfs.OK)
	expect("without its seqid", read(fh, state.Stateid{Other: cid.Other}), nfs.OK)
	expect("another seqid", read(fh, state.Stateid{Seq: 2, Other: cid.Other}), nfs.ErrBadStateID)
	expect("another file", read(other, cid), nfs.ErrBadStateID)
	guess := cid
	guess.Other[11] ^= 1
	expect("a guess", read(fh, guess), nfs.ErrBadStateID)
	// The identity is for that operation alone.
	p := y.do(op(OpPutFH, fh), op(OpRead, cid, uint64(0), uint32(0)), op(OpRead, state.Anonymous, uint64(0), uint32(9)))
	p.ok(OpPutFH).ok(OpRead).Skip(8)
	p.fails(OpRead, nfs.ErrAcces)
	y.do(op(OpPutFH, fh), op(OpSeek, cid, uint64(0), uint32(0)), op(OpAccess, uint32(1))).ok(OpPutFH).ok(OpSeek)
	y.do(op(OpPutFH, fh), op(OpReadPlus, cid, uint64(0), uint32(100))).ok(OpPutFH).ok(OpReadPlus)
	for _, o := range ops42 {
		if o.op == OpSeek || o.op == OpReadPlus {
			continue
		}
		p := y.do(op(OpPutFH, fh), op(OpSaveFH), op(OpPutFH, fh), o.args(cid, cid)).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH)
		if st := p.next(o.op); st == nfs.OK {
			t.Errorf("%s with a copy stateid", o.name)
		}
	}
	expect("cancelled by another", y.do(op(OpPutFH, fh), op(OpOffloadCancel, cid)).ok(OpPutFH).next(OpOffloadCancel),
		nfs.ErrBadStateID)
	r.succeed()
	expect("after a handover", read(fh, cid), nfs.OK)

	r.peer, r.uid = friend, 1000
	expect("status", x.do(op(OpPutFH, fh), op(OpOffloadStatus, cid)).ok(OpPutFH).next(OpOffloadStatus), nfs.ErrBadStateID)
	expect("cancelled", x.do(op(OpPutFH, fh), op(OpOffloadCancel, cid)).ok(OpPutFH).next(OpOffloadCancel), nfs.OK)
	one, two := granted(), granted()
	r.peer, r.uid = reader, 5
	expect("after it was cancelled", read(fh, cid), nfs.ErrBadStateID)
	r.peer = friend
	z := r.session(2, "elsewhere")
	z.do(op(OpPutFH, fh), op(OpRead, one, uint64(0), uint32(9))).ok(OpPutFH).fails(OpRead, nfs.ErrAcces)
	r.peer = reader
	r.partners.off.Store(true)
	expect("no partner any more", read(fh, one), nfs.ErrAcces)
	r.partners.off.Store(false)
	for range 2 {
		r.now = r.now.Add(60 * time.Second)
		expect("with its lease renewed", read(fh, two), nfs.OK)
		r.peer, r.uid = friend, 1000
		x.do(op(OpPutFH, fh)).ok(OpPutFH)
		r.peer, r.uid = reader, 5
	}
	expect("after its lease", read(fh, one), nfs.ErrExpired)
	r.peer, r.uid = friend, 1000
	x.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
	r.peer, r.uid = reader, 5
	expect("after CLOSE", read(fh, two), nfs.ErrBadStateID)
}

// remoteBytes is a source in memory. wait, if not nil, is called before each READ.
type remoteBytes struct {
	data   []byte
	wait   func(ctx context.Context, off uint64) error
	closed chan struct{}
}

func (f *remoteBytes) ReadAt(ctx context.Context, p []byte, off uint64) (int, bool, error) {
	if f.wait != nil {
		if err := f.wait(ctx, off); err != nil {
			return 0, false, err
		}
	}
	n := copy(p, f.data[min(off, uint64(len(f.data))):])
	return n, off+uint64(n) >= uint64(len(f.data)), nil
}

func (f *remoteBytes) Close() error { close(f.closed); return nil }

// endless is a file that never returns the end of the file.
type endless struct{ *remoteBytes }

func (f endless) ReadAt(ctx context.Context, p []byte, off uint64) (int, bool, error) {
	n, _, err := f.remoteBytes.ReadAt(ctx, p, off)
	return n, false, err
}

// pullRig is an offloadRig whose source is on another server.
type pullRig struct {
	*offloadRig
	file *remoteBytes
	fh   []byte
	from CopySource // of the last copy
}

func newPullRig(t *testing.T) *pullRig {
	r := &pullRig{offloadRig: newOffloadRig(t, "one"), fh: bytes.Repeat([]byte{7}, FHMax)}
	r.file = &remoteBytes{data: r.data, closed: make(chan struct{})}
	r.partners.off.Store(false)
	r.partners.open = func(_ context.Context, s *CopySource) (RemoteFile, error) {
		r.from = *s
		return r.file, nil
	}
	return r
}

var foreignID = state.Stateid{Seq: 1, Other: [12]byte{1, 2, 3}}

func (r *pullRig) ask(count uint64, synchronous bool, servers ...args) *reply {
	r.t.Helper()
	rest := []any{foreignID, r.toID, uint64(0), uint64(0), count, true, synchronous, uint32(len(servers))}
	for _, s := range servers {
		rest = append(rest, s)
	}
	return r.x.do(op(OpPutFH, r.fh), op(OpSaveFH), op(OpPutFH, r.to), op(OpCopy, rest...)).ok(OpPutFH).ok(OpSaveFH).
		ok(OpPutFH)
}

func (r *pullRig) begin(count uint64) state.Stateid {
	r.t.Helper()
	p := r.ask(count, false, part(uint32(locURL), "nfs://elsewhere"), address("tcp", "10.0.0.77.8.1"),
		address("tcp", partner+".8.1")).ok(OpCopy)
	if n := p.Uint32(); n != 1 {
		r.t.Fatalf("%d stateids", n)
	}
	return DecodeStateid(p.Decoder)
}

// TestCopyFromServer: a COPY from another server is made after its reply, by READs of the source.
func TestCopyFromServer(t *testing.T) {
	for _, count := range []uint64{offloadSize, 0, offloadSize * 2} {
		r := newPullRig(t)
		id := r.begin(count)
		if o := r.told().offload; o.status != nfs.OK || o.count != offloadSize || o.id != id {
			t.Errorf("count %d: %v, %d bytes", count, o.status, o.count)
		}
		r.over()
		r.same(offloadSize)
		<-r.file.closed
		if s := r.from; s.At.String() != partner+":2049" || !bytes.Equal(s.Handle, r.fh) || s.Stateid != foreignID {
			t.Errorf("read from %v with %x, %v", s.At, s.Handle, s.Stateid)
		}
	}
}

// TestCopyFromServerRefused: what is refused at once.
func TestCopyFromServerRefused(t *testing.T) {
	r := newPullRig(t)
	good := address("tcp", partner+".8.1")
	r.ask(9, false, address("tcp", "10.0.0.77.8.1")).fails(OpCopy, nfs.ErrOffloadDenied)
	r.ask(9, false, address("tcp", partner+".0.22")).fails(OpCopy, nfs.ErrOffloadDenied)
	r.ask(9, false, part(uint32(locName), partner)).fails(OpCopy, nfs.ErrOffloadDenied)
	r.ask(9, false, part(uint32(9), partner)).fails(OpCopy, nfs.ErrBadXDR)
	// A source admits this server to more than to the client's own files.
	for _, id := range []state.Stateid{state.Anonymous, state.Bypass, state.Current, state.Invalid} {
		r.x.do(op(OpPutFH, r.fh), op(OpSaveFH), op(OpPutFH, r.to), op(OpCopy, id, r.toID, uint64(0), uint64(0), uint64(9),
			true, false, uint32(1), good)).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(OpCopy, nfs.ErrBadStateID)
	}
	p := r.ask(9, true, good)
	if st := p.next(OpCopy); st != nfs.ErrOffloadNoReqs {
		t.Errorf("synchronous: %v", st)
	} else if consecutive, synchronous := p.Bool(), p.Bool(); !consecutive || synchronous {
		t.Error("what would do is something else")
	}
	p.end()
	r.ask(1<<63-1, false, good).ok(OpCopy) // up to the end
	r.told()
	r.ask(1<<63, false, good).fails(OpCopy, nfs.ErrFBig)
	// The handle of another server is good for nothing else.
	copyOp := op(OpCopy, foreignID, r.toID, uint64(0), uint64(0), uint64(9), true, false, uint32(1), good)
	for n, rest := range map[uint32][]any{OpRestoreFH: nil, OpLink: {"x"}, OpRename: {"x", "y"}, OpCopy: {
		foreignID, r.toID, uint64(0), uint64(0), uint64(9), true, true, uint32(0),
	}} {
		p := r.x.do(op(OpPutFH, r.fh), op(OpSaveFH), op(OpPutFH, r.to), copyOp, op(n, rest...))
		p.ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy).Skip(4 + 16 + 8 + 4 + 8 + 8)
		if st := p.next(n); st != nfs.ErrStale {
			t.Errorf("operation %d: %v", n, st)
		}
	}
	r.x.do(op(OpPutFH, r.fh), op(OpSaveFH)).fails(OpPutFH, nfs.ErrBadHandle)
	r.x.do(op(OpPutFH, r.fh), op(OpGetFH)).fails(OpPutFH, nfs.ErrBadHandle)
	r.x.do(op(OpPutFH, r.to), op(OpSaveFH), op(OpLookup, "x"), copyOp).ok(OpPutFH).ok(OpSaveFH).next(OpLookup)
	r.partners.off.Store(true)
	r.ask(9, false, good).fails(OpCopy, nfs.ErrOffloadDenied)
	r.back = nil
	r.partners.off.Store(false)
	x := r.session(2, "no backchannel")
	x.do(op(OpPutFH, r.fh), op(OpSaveFH), op(OpPutFH, r.to), op(OpCopy, foreignID, state.Anonymous, uint64(0), uint64(0),
		uint64(9), true, false, uint32(1), good)).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(OpCopy, nfs.ErrOffloadDenied)
}

// TestCopyFromServerFails: what the client is told when the source fails, or the own store.
func TestCopyFromServerFails(t *testing.T) {
	for _, c := range []struct {
		want         nfs.Status
		opens, reads error
		after        uint64
	}{
		{want: nfs.ErrOffloadDenied, opens: errors.New("no route to host")},
		{want: nfs.ErrPartnerNoAuth, reads: nfs.ErrBadStateID},
		{want: nfs.ErrOffloadDenied, reads: nfs.ErrNotSupp},
		{want: nfs.ErrOffloadDenied, reads: nfs.ErrWrongSec}, // the source's export demands Kerberos
		{want: nfs.OK, reads: nfs.ErrExpired, after: 2 << 20},
	} {
		r := newPullRig(t)
		r.file.wait = func(_ context.Context, off uint64) error {
			if off >= c.after {
				return c.reads
			}
			return nil
		}
		if c.opens != nil {
			r.partners.open = func(context.Context, *CopySource) (RemoteFile, error) { return nil, c.opens }
		}
		r.begin(offloadSize)
		if o := r.told().offload; o.status != c.want || o.count != c.after {
			t.Errorf("%v instead of %v, %d bytes", o.status, c.want, o.count)
		}
		r.over()
	}
	r := newPullRig(t)
	r.file.wait = func(_ context.Context, off uint64) error {
		r.partners.off.Store(off > 0) // no partner any more
		return nil
	}
	r.begin(offloadSize)
	if o := r.told().offload; o.status != nfs.OK || o.count != 2*nfs.MaxIO {
		t.Errorf("%v, %d bytes", o.status, o.count)
	}
	r.over()
	r = newPullRig(t)
	r.file.data = nil
	r.partners.open = func(context.Context, *CopySource) (RemoteFile, error) { return endless{r.file}, nil }
	r.begin(offloadSize)
	if o := r.told().offload; o.status != nfs.ErrOffloadDenied {
		t.Errorf("a source without bytes and without an end: %v", o.status)
	}
	r.over()
	r = newPullRig(t)
	r.file.data = make([]byte, 200<<20) // more than the store has
	r.begin(0)
	if o := r.told().offload; o.status != nfs.OK || o.count == 0 || o.count > 128<<20 {
		t.Errorf("%v, %d bytes", o.status, o.count)
	}
	r.over()
	r.begin(0)
	r.told()
}

// TestCopyFromServerEnds: a cancelled copy leaves its source at once, and a paused server writes
// nothing; the next process goes on.
func TestCopyFromServerEnds(t *testing.T) {
	r := newPullRig(t)
	asked := make(chan struct{}, 64)
	r.file.wait = func(ctx context.Context, off uint64) error {
		if off < 1<<20 {
			return nil
		}
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	id := r.begin(offloadSize)
	<-asked
	if n, done, _, st := r.status(id); n != 1<<20 || done || st != nfs.OK {
		t.Errorf("%d bytes, %v, %v", n, done, st)
	}
	if st := r.cancel(id); st != nfs.OK {
		t.Error(st)
	}
	<-r.file.closed
	r.over()

	r = newPullRig(t)
	gate := make(chan struct{})
	r.file.wait = func(ctx context.Context, off uint64) error {
		if off < 1<<20 {
			return nil
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	id = r.begin(offloadSize)
	<-asked
	next := &remoteBytes{data: r.data, closed: make(chan struct{}), wait: func(_ context.Context, off uint64) error {
		if off < 1<<20 {
			return errors.New("it begins again")
		}
		return nil
	}}
	r.partners.open = func(_ context.Context, s *CopySource) (RemoteFile, error) {
		r.from = *s
		return next, nil
	}
	r.succeed(r.cl)
	if o := r.told().offload; o.status != nfs.OK || o.count != offloadSize || o.id != id {
		t.Errorf("%v, %d bytes, %v", o.status, o.count, o.id)
	}
	r.over()
	r.same(offloadSize)
	if !bytes.Equal(r.from.Handle, r.fh) || r.from.At.String() != partner+":2049" {
		t.Errorf("the next process reads from %v", r.from.At)
	}
}
