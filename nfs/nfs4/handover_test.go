package nfs4

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// succeed puts another server, with other tables, in the place of the one there is, which stands
// still from then on. The connections are those of the callees.
func (r *rig) succeed(conns ...*callee) {
	r.t.Helper()
	r.s.Pause(true)
	b, err1 := r.s.Snapshot(func(c rpc.Caller) (uint64, bool) {
		i := slices.IndexFunc(conns, func(x *callee) bool { return rpc.Caller(x) == c })
		return uint64(i), i >= 0
	})
	locks, err2 := r.locks.Snapshot()
	drc, err3 := r.srv.Snapshot()
	if err := errors.Join(err1, err2, err3); err != nil {
		r.t.Fatal(err)
	}
	old := r.s
	r.t.Cleanup(old.Close)
	r.locks = lock.New(0)
	r.start(4711)
	r.s.Pause(true)
	if err := errors.Join(
		r.locks.Restore(locks, nil), r.srv.Restore(drc, false),
		r.s.Restore(b, func(id uint64) rpc.Caller {
			if id < uint64(len(conns)) {
				return conns[id]
			}
			return nil
		}),
	); err != nil {
		r.t.Fatal(err)
	}
	r.s.Pause(false)
	r.t.Cleanup(r.s.Close)
}

// TestSucceeded: what a client has it can use, and what others have stands against it.
func TestSucceeded(t *testing.T) {
	r := newRig(t)
	cl := newCallee(t)
	a := r.called("a", cl)
	r.back = nil
	b := r.session(1, "b")
	fh, open := a.make(a.handle("one"), "locked")
	p := a.do(op(OpPutFH, fh), op(OpLock, LockWrite, false, uint64(0), uint64(10), true, uint32(0), open, uint32(0),
		uint64(0), "o"))
	lockID := DecodeStateid(p.ok(OpPutFH).ok(OpLock).Decoder)
	dfh := b.file("delegated")
	p = a.openFH(dfh, state.Both, "o").ok(OpOpen)
	dOpen, _, _ := p.opened()
	deleg := p.deleg
	if p.delegKind != delegWrite {
		t.Fatal("no delegation")
	}
	a.cache = true
	a.do(op(OpPutFH, fh), op(OpWrite, lockID, uint64(0), uint32(0), []byte("data"))).ok(OpPutFH).ok(OpWrite)
	reply := bytes.Clone(r.raw)
	again := func(x byte) {
		t.Helper()
		a.seq--
		a.do(op(OpPutFH, fh), op(OpWrite, lockID, uint64(0), uint32(0), []byte{'d', 'a', 't', x}))
	}
	for range 2 {
		r.succeed(cl)
		if again('a'); !bytes.Equal(r.raw[4:], reply[4:]) {
			t.Errorf("the retry was answered\n%x\n%x", r.raw, reply)
		}
		if flags := b.flags(); flags != 0 {
			t.Errorf("flags %x", flags)
		}
		b.do(op(OpPutFH, fh), op(OpLockT, LockRead, uint64(5), uint64(1), b.client, "x")).ok(OpPutFH).fails2(OpLockT,
			nfs.ErrDenied, 8+8+4+8+4+4)
		a.do(op(OpPutFH, fh), op(OpRead, lockID, uint64(0), uint32(4))).ok(OpPutFH).ok(OpRead)
		a.do(op(OpPutFH, dfh), op(OpWrite, deleg, uint64(0), uint32(0), []byte("x"))).ok(OpPutFH).ok(OpWrite)
		a.do(op(OpPutFH, dfh), op(OpRead, dOpen, uint64(0), uint32(4))).ok(OpPutFH).ok(OpRead)
		a.do(op(OpPutFH, fh), op(OpWrite, lockID, uint64(0), uint32(0), []byte("data"))).ok(OpPutFH).ok(OpWrite)
		reply = bytes.Clone(r.raw)
		// A new client gets an ID that there was not.
		if id, _, _ := r.exchange("later", byte(len(reply))); id == a.client || id == b.client {
			t.Errorf("client %#x twice", id)
		}
	}
	// Somebody wants the file: its client is called on the connection that it had.
	b.openFH(dfh, state.Read, "o").fails(OpOpen, nfs.ErrJukebox)
	if cl.recalls() != 1 || cl.recall[0].id != deleg {
		t.Errorf("recalled %+v", cl.recall)
	}
	r.succeed(cl)
	b.openFH(dfh, state.Read, "o").fails(OpOpen, nfs.ErrJukebox)
	if cl.recalls() != 1 {
		t.Error("who has heard of it was asked again")
	}
	a.do(op(OpPutFH, dfh), op(OpClose, uint32(0), dOpen)).ok(OpPutFH).ok(OpClose)
	a.do(op(OpPutFH, dfh), op(OpDelegReturn, deleg)).ok(OpPutFH).ok(OpDelegReturn)
	b.openFH(dfh, state.Read, "o").ok(OpOpen)
	a.do(op(OpPutFH, fh), op(OpLockU, LockWrite, uint32(0), lockID, uint64(0), uint64(10))).ok(OpPutFH).ok(OpLockU)
	b.do(op(OpPutFH, fh), op(OpLockT, LockRead, uint64(5), uint64(1), b.client, "x")).ok(OpPutFH).ok(OpLockT)
}

// TestRecallSucceeded: a recall that was not answered is sent again in the same slot with the
// same number, at once, and what its client says then counts.
func TestRecallSucceeded(t *testing.T) {
	for _, c := range []struct {
		name string
		v    verdict
	}{
		{"it had not arrived", verdict{}},
		{"it had arrived", verdict{sequence: nfs.ErrRetryUncachedRep}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			cl := newCallee(t)
			a := r.called("a", cl)
			r.back = nil
			b := r.session(2, "b")
			fh := b.file("f")
			p := a.openFH(fh, state.Both, "o").ok(OpOpen)
			p.opened()
			var seen []*callback
			cl.answer = func(k *callback) verdict {
				if k.recall != nil {
					seen = append(seen, k)
				}
				if len(seen) == 1 {
					return verdict{silent: true}
				}
				if k.recall != nil && c.v.sequence != nfs.OK {
					cl.seqs[k.slot] = k.seq // by the first
				}
				if k.recall != nil {
					return c.v
				}
				return verdict{}
			}
			b.openFH(fh, state.Read, "o").fails(OpOpen, nfs.ErrJukebox)
			r.succeed(cl)
			if len(seen) != 2 || seen[0].slot != seen[1].slot || seen[0].seq != seen[1].seq || seen[1].recall.id != p.deleg ||
				!slices.Equal(seen[0].refers, seen[1].refers) {
				t.Fatalf("%+v", seen)
			}
			b.openFH(fh, state.Read, "o").fails(OpOpen, nfs.ErrJukebox)
			if len(seen) != 2 {
				t.Error("who has heard of it was asked again")
			}
		})
	}
}

// TestConnectionLost: a client whose connection did not come along hears of it, and is called on
// the one that it binds then.
func TestConnectionLost(t *testing.T) {
	r := newRig(t)
	cl := newCallee(t)
	a := r.called("a", cl)
	r.back = nil
	b := r.session(2, "b")
	fh := b.file("f")
	a.openFH(fh, state.Read, "o").ok(OpOpen).opened()
	r.succeed()
	if flags := a.flags(); flags&(statusPathDown|statusSessionPathDown) == 0 {
		t.Errorf("flags %x", flags)
	}
	b.openFH(fh, state.Write, "o").fails(OpOpen, nfs.ErrJukebox)
	next := newCallee(t)
	next.seqs = cl.seqs
	r.back = next
	r.compound(2, op(OpBindConnToSession, a.id, uint32(bindForeOrBoth), false)).ok(OpBindConnToSession)
	if flags := a.flags(); flags != 0 {
		t.Errorf("flags %x", flags)
	}
	r.now = r.now.Add(2 * again)
	b.openFH(fh, state.Write, "o").fails(OpOpen, nfs.ErrJukebox)
	if next.recalls() != 1 {
		t.Errorf("%d recalls", next.recalls())
	}
}

// again is longer than it takes until a client that did not answer is called again.
const again = time.Second

// TestLeaseSucceeded: the store tells the next server of what others do with delegated files.
func TestLeaseSucceeded(t *testing.T) {
	r, l, cl, a, fh := leased(t)
	a.openFH(fh, state.Both, "o").ok(OpOpen).opened()
	r.succeed(cl)
	if l.leases != 2 || !l.write || l.released != 0 {
		t.Fatalf("%d leases, %d released", l.leases, l.released)
	}
	done := make(chan struct{})
	go func() { l.broken(); close(done) }()
	for end := time.Now().Add(10 * time.Second); cl.recalls() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it was not recalled")
		}
	}
	r.s.State().Evict(a.client)
	<-done
	if l.released != 1 {
		t.Errorf("%d released", l.released)
	}
	// A store that cannot tell any more is no reason to take anything back.
	r, l, cl, a, fh = leased(t)
	p := a.openFH(fh, state.Both, "o").ok(OpOpen)
	p.opened()
	l.err = errors.New("no")
	r.succeed(cl)
	a.do(op(OpPutFH, fh), op(OpWrite, p.deleg, uint64(0), uint32(0), []byte("x"))).ok(OpPutFH).ok(OpWrite)
}

// TestOffloadSucceeded: a copy goes on where it is, with the stateid that it has.
func TestOffloadSucceeded(t *testing.T) {
	for _, export := range [][]string{{"one"}, {"one", "nested"}} {
		r := newOffloadRig(t, export...)
		var steps atomic.Int32
		first := make(chan struct{})
		wait := make(chan struct{})
		if len(export) == 1 {
			r.fs.copies = func() {
				if steps.Add(1) == 1 {
					close(first)
					<-wait
				}
			}
		} else {
			r.fs.reads = func(bool) error {
				if steps.Add(1) == 1 {
					close(first)
					<-wait
				}
				return nil
			}
		}
		id, async, _, verf := r.copy()
		if !async {
			t.Fatal("it was made at once")
		}
		<-first
		go func() {
			// It stands still after this step.
			for r.mayHold() {
				time.Sleep(time.Millisecond)
			}
			close(wait)
		}()
		r.succeed(r.cl)
		o := r.told().offload
		if o.status != nfs.OK || o.count != offloadSize || o.id != id || !bytes.Equal(o.fh, r.to) || o.verf != verf {
			t.Errorf("%v: told of %d bytes, %v, %v, %x", export, o.count, o.status, o.id, o.verf)
		}
		r.over()
		r.same(offloadSize)
		n := (offloadSize + copyStep - 1) / copyStep
		if len(export) > 1 {
			n = (offloadSize + nfs.MaxIO - 1) / nfs.MaxIO
		}
		if got := int(steps.Load()); got != n {
			t.Errorf("%v: %d steps instead of %d", export, got, n)
		}
	}
}

// mayHold reports whether the server may call yet.
func (r *offloadRig) mayHold() bool {
	done, ok := r.s.mayCall()
	if ok {
		done()
	}
	return ok
}

// TestOffloadToldByTheNext: a copy that has ended, of which its client has not heard.
func TestOffloadToldByTheNext(t *testing.T) {
	r := newOffloadRig(t, "one")
	r.verdicts <- verdict{silent: true}
	id, _, _, _ := r.copy()
	if k := r.told(); k.offload.id != id {
		t.Fatal(k.offload)
	}
	r.succeed(r.cl)
	if k := r.told(); k.offload.id != id || k.offload.count != offloadSize {
		t.Errorf("%+v", k.offload)
	}
	r.over()
	r.same(offloadSize)
}

// TestGoesOn: a server whose successor has failed goes on as it was.
func TestGoesOn(t *testing.T) {
	r := newRig(t)
	cl := newCallee(t)
	a := r.called("a", cl)
	r.back = nil
	b := r.session(2, "b")
	fh := b.file("f")
	p := a.openFH(fh, state.Both, "o").ok(OpOpen)
	p.opened()
	r.s.Pause(true)
	if _, err := r.s.Snapshot(nil); err != nil {
		t.Fatal(err)
	}
	b.openFH(fh, state.Read, "o").fails(OpOpen, nfs.ErrJukebox)
	if cl.recalls() != 0 {
		t.Error("a server that stands still has called")
	}
	r.s.Pause(false)
	r.s.Pause(false)
	r.now = r.now.Add(2 * again)
	b.openFH(fh, state.Read, "o").fails(OpOpen, nfs.ErrJukebox)
	if cl.recalls() != 1 {
		t.Error("it was not recalled")
	}
	a.do(op(OpPutFH, fh), op(OpDelegReturn, p.deleg)).ok(OpPutFH).ok(OpDelegReturn)
	b.openFH(fh, state.Read, "o").ok(OpOpen)
}
