package nfs4

import (
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// TestOffloadStatus: what a client hears that asks, and that a stateid is of one client
// and one file.
func TestOffloadStatus(t *testing.T) {
	r := newOffloadRig(t, "one")
	r.stepwise()
	id, _, _, _ := r.copy()
	<-r.begun
	if n, done, _, st := r.status(id); n != 0 || done || st != nfs.OK {
		t.Errorf("%d bytes, done %v, %v", n, done, st)
	}
	for name, c := range map[string]struct {
		fh []byte
		id state.Stateid
	}{
		"another file":    {r.from, id},
		"seqid 0":         {r.to, state.Stateid{Other: id.Other}},
		"another seqid":   {r.to, state.Stateid{Seq: 2, Other: id.Other}},
		"an open":         {r.to, r.toID},
		"a special one":   {r.to, state.Anonymous},
		"another special": {r.to, state.Bypass},
	} {
		for _, n := range []uint32{OpOffloadStatus, OpOffloadCancel} {
			if st := r.x.do(op(OpPutFH, c.fh), op(n, c.id)).ok(OpPutFH).next(n); st != nfs.ErrBadStateID {
				t.Errorf("%s: %v", name, st)
			}
		}
	}
	if st := r.x.do(op(OpPutRootFH),
		op(OpOffloadStatus, id)).ok(OpPutRootFH).next(OpOffloadStatus); st != nfs.ErrBadStateID {
		t.Errorf("the root: %v", st)
	}
	// Nor is it one of a READ, or to be freed.
	r.x.do(op(OpPutFH, r.to), op(OpRead, id, uint64(0), uint32(1))).ok(OpPutFH).fails(OpRead, nfs.ErrBadStateID)
	if st := r.x.do(op(OpFreeStateID, id)).next(OpFreeStateID); st != nfs.ErrBadStateID {
		t.Errorf("freed: %v", st)
	}
	r.back = nil
	other := r.session(2, "other")
	if st := other.do(op(OpPutFH, r.to),
		op(OpOffloadStatus, id)).ok(OpPutFH).next(OpOffloadStatus); st != nfs.ErrBadStateID {
		t.Errorf("another client: %v", st)
	}
	r.steps <- struct{}{}
	<-r.begun
	if n, done, _, st := r.status(id); n != copyStep || done || st != nfs.OK {
		t.Errorf("%d bytes, done %v, %v", n, done, st)
	}
	r.verdicts <- verdict{recall: nfs.ErrJukebox} // so that the stateid stays
	r.verdicts <- verdict{silent: true}
	for range 2 {
		r.steps <- struct{}{}
		<-r.begun
	}
	r.steps <- struct{}{}
	r.told()
	r.told()
	if n, done, result, st := r.status(id); n != offloadSize || !done || result != nfs.OK || st != nfs.OK {
		t.Errorf("%d bytes, done %v, %v, %v", n, done, result, st)
	}
	r.cl.end()
}

// TestOffloadCancel: nothing is written any more when it is answered, and nobody called.
func TestOffloadCancel(t *testing.T) {
	r := newOffloadRig(t, "one")
	r.stepwise()
	id, _, _, _ := r.copy()
	<-r.begun
	answered := make(chan nfs.Status)
	go func() { answered <- r.cancel(id) }()
	r.over() // the stateid is, the step is not
	select {
	case st := <-answered:
		t.Fatalf("%v in the middle of a step", st)
	case r.steps <- struct{}{}:
	}
	if st := <-answered; st != nfs.OK {
		t.Error(st)
	}
	r.same(copyStep)
	a, err := r.fs.GetAttr(&blockstore.Cred{}, r.file(r.to).Handle)
	if err != nil || a.Size != copyStep {
		t.Errorf("%d bytes after the first step, %v", a.Size, err)
	}
	if st := r.cancel(id); st != nfs.ErrBadStateID {
		t.Errorf("again: %v", st)
	}
	r.s.Close() // so that nothing is under way
	if len(r.seen) != 0 {
		t.Error("the client was called")
	}
	if f := r.s.Faults(); f[CountCancelled] != 1 {
		t.Errorf("counted %v", f)
	}
}

// TestOffloadTold: until when a client is called, and by what.
func TestOffloadTold(t *testing.T) {
	for _, c := range []struct {
		name     string
		verdicts []verdict
		calls    int
	}{
		{"yes", nil, 1},
		{"an error of the client's", []verdict{{recall: nfs.ErrBadHandle}}, 1},
		{"unknown operation", []verdict{{illegal: true}}, 1},
		{"come again", []verdict{{recall: nfs.ErrJukebox}, {recall: nfs.ErrJukebox}}, 3},
		{"slot in use", []verdict{{sequence: nfs.ErrJukebox}}, 2},
		{"executed before", []verdict{{sequence: nfs.ErrRetryUncachedRep}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newOffloadRig(t, "one")
			for _, v := range c.verdicts {
				r.verdicts <- v
			}
			r.copy()
			for range c.calls {
				r.told()
			}
			r.over()
			r.s.Close()
			if len(r.seen) > 0 {
				t.Errorf("%d calls more", len(r.seen))
			}
		})
	}
}

// TestOffloadNextConnection: the connection is lost before the client has answered, and
// it is called by the next one, in the same slot with the same sequence.
func TestOffloadNextConnection(t *testing.T) {
	r := newOffloadRig(t, "one")
	r.verdicts <- verdict{silent: true}
	id, _, _, _ := r.copy()
	first := r.told()
	r.cl.end()
	next := newCallee(t)
	next.seqs[first.slot] = first.seq - 1
	next.answer = r.answer
	r.back = next
	if _, st := r.x.bind(bindForeOrBoth); st != nfs.OK {
		t.Fatal(st)
	}
	k := r.told()
	if k.slot != first.slot || k.seq != first.seq || k.offload.id != id || k.offload.count != offloadSize {
		t.Errorf("%+v %+v after %+v", k, k.offload, first)
	}
	r.over()
}

// TestOffloadFails: what becomes of a copy that does not get to the end.
func TestOffloadFails(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps int // that succeed
		err   error
		want  nfs.Status
	}{
		{"at once", 0, blockstore.ErrNoSpace, nfs.ErrNoSpc},
		{"the export is gone", 0, blockstore.ErrStale, nfs.ErrStale},
		{"on the way", 2, blockstore.ErrNoSpace, nfs.OK},
		{"badly", 0, errors.New("panic"), nfs.ErrServerFault},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newOffloadRig(t, "one")
			steps := 0
			r.fs.copyFails = func() error {
				if steps++; steps <= c.steps {
					return nil
				}
				if c.want == nfs.ErrServerFault {
					panic(c.err)
				}
				return c.err
			}
			r.copy()
			o := r.told().offload
			if o.status != c.want || o.count != uint64(c.steps)*copyStep {
				t.Errorf("%v, %d bytes", o.status, o.count)
			}
			r.over()
			if len(r.s.offloads.turns) != copiers {
				t.Errorf("%d turns are left", len(r.s.offloads.turns))
			}
		})
	}
}

// TestOffloadEnds: a copy ends when its client does, and when the server does; a client
// that is silent for longer than its lease gets no further.
func TestOffloadEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(r *offloadRig)
		told bool
	}{
		{"the client is sent away", func(r *offloadRig) { r.s.State().Evict(r.x.client) }, false},
		{"the lease runs out", func(r *offloadRig) { r.now = r.now.Add(2 * time.Minute) }, true},
		{"the client is forgotten", func(r *offloadRig) { r.now = r.now.Add(time.Hour) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newOffloadRig(t, "one")
			steps := 0
			// The step is in the goroutine that reads the clock.
			r.fs.copies = func() {
				if steps++; steps == 2 {
					c.do(r)
				}
			}
			r.copy()
			if c.told {
				if o := r.told().offload; o.status != nfs.OK || o.count != 2*copyStep {
					t.Errorf("%v, %d bytes", o.status, o.count)
				}
			}
			r.over()
			r.s.Close()
			if steps != 2 || !c.told && len(r.seen) > 0 {
				t.Errorf("%d steps, %d calls", steps, len(r.seen))
			}
		})
	}
	r := newOffloadRig(t, "one")
	r.stepwise()
	r.copy()
	<-r.begun
	closed := make(chan struct{})
	go func() { r.s.Close(); close(closed) }()
	<-r.s.offloads.stop
	r.steps <- struct{}{}
	<-closed
	if n := r.s.State().Offloads(); n != 0 || len(r.seen) > 0 {
		t.Errorf("%d copies, %d calls after the end of the server", n, len(r.seen))
	}
}

// TestOffloadTurns: copies are made side by side, no more of them than there are turns,
// no more for one client than are allowed, and each gets its share.
func TestOffloadTurns(t *testing.T) {
	r := newOffloadRig(t, "one")
	r.fs.FS = memfs.New(memfs.Options{FSID: 77, MaxBytes: 1 << 30})
	r.from, r.fromID = r.x.make(r.x.handle("one"), "from")
	h := r.file(r.from).Handle
	if _, err := r.fs.SetAttr(&blockstore.Cred{}, h, &blockstore.SetAttr{Size: new(uint64)}, nil); err != nil {
		t.Fatal(err)
	}
	size := uint64(offloadSize)
	if _, err := r.fs.SetAttr(&blockstore.Cred{}, h, &blockstore.SetAttr{Size: &size}, nil); err != nil {
		t.Fatal(err)
	}
	r.stepwise()
	const copies = 8
	for i := range copies {
		r.to, r.toID = r.x.make(r.x.handle("one"), "to"+string(rune('a'+i)))
		r.verdicts <- verdict{silent: true} // so that the stateid stays
		if _, async, _, _ := r.copy(); !async {
			t.Errorf("copy %d is synchronous", i)
		}
		if i < copiers {
			<-r.begun
		}
	}
	if n := len(r.s.offloads.turns); n != 0 {
		t.Errorf("%d turns are left", n)
	}
	go func() {
		for range r.begun { //nolint:revive // the steps that are still to come
		}
	}()
	close(r.steps)
	for range copies {
		if o := r.told().offload; o.status != nfs.OK || o.count != size {
			t.Errorf("%v, %d bytes", o.status, o.count)
		}
	}
	r.to, r.toID = r.x.make(r.x.handle("one"), "synchronous")
	if _, async, n, _ := r.copy(); async || n == 0 {
		t.Errorf("more copies than are allowed, %d bytes", n)
	}
	r.s.Close()
	if n := len(r.s.offloads.turns); n != copiers {
		t.Errorf("%d turns are left", n)
	}
}

// TestOffloadHolds: nobody has a file delegated that is being written by a copy, also
// when it is no longer open.
func TestOffloadHolds(t *testing.T) {
	r := newOffloadRig(t, "one")
	r.stepwise()
	r.copy()
	<-r.begun
	r.x.do(op(OpPutFH, r.to), op(OpClose, uint32(0), r.toID)).ok(OpPutFH).ok(OpClose)
	y := r.called("other", newCallee(t))
	p := y.openFH(r.to, state.Read, "o").ok(OpOpen)
	p.opened()
	if p.delegKind != DelegNone {
		t.Errorf("delegation %d of what is being written", p.delegKind)
	}
	go func() {
		for range r.begun { //nolint:revive // the steps that are still to come
		}
	}()
	close(r.steps)
	r.told()
	r.over()
	r.s.Close()
	p = y.openFH(r.to, state.Read, "again").ok(OpOpen)
	p.opened()
	if p.delegKind != delegRead {
		t.Errorf("delegation %d afterwards", p.delegKind)
	}
}

var _ request = (*offload)(nil)
