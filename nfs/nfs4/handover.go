package nfs4

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Before another process takes the server over, this one is paused: no call of a client is under
// way, no callback is sent, and copies wait between two steps. Then Snapshot describes everything
// that clients know of. The next process restores it and resumes: it sends callbacks that were not
// answered again, as they were, and continues the copies.

// Pause stops the server for an upgrade, or resumes it. While it is paused no callback is sent,
// nothing is recalled for programs of the host, and copies wait between two steps. Pause waits for
// the steps under way.
func (s *Server) Pause(on bool) {
	s.acting.Lock()
	s.calling.Lock()
	was := s.paused
	s.paused = on
	s.calling.Unlock()
	s.acting.Unlock()
	if was == on {
		return
	}
	s.state.Freeze(on)
	f := &s.offloads
	if on {
		for i := range f.taken {
			f.taken[i] = <-f.turns
		}
		return
	}
	for i := range f.taken {
		f.turns <- f.taken[i]
		f.taken[i] = nil
	}
	for _, o := range f.restored {
		if f.enter() {
			go o.resume()
		}
	}
	f.restored = nil
	for _, x := range s.state.Lost() {
		s.callBack(x, probing{}) // sends what was lost first
	}
}

// mayCall reports whether callbacks may be sent, until done is called.
func (s *Server) mayCall() (done func(), ok bool) {
	s.calling.RLock()
	if s.paused {
		s.calling.RUnlock()
		return nil, false
	}
	return s.calling.RUnlock, true
}

// snapCopy is a copy that goes on after its reply, as a gob value, to which fields may be
// added.
type snapCopy struct {
	From, To          snapObject
	SourceOff, DstOff uint64
	Count, Done       uint64
	Reads, Writes     snapCred
	Verifier          []byte
	Pieces, Told      bool
}

type snapObject struct {
	Export uint32
	Handle []byte
}

type snapCred struct {
	UID, GID uint32
	Groups   []uint32
}

func objectSnap(o *object) snapObject {
	return snapObject{Export: o.x.ID, Handle: bytes.Clone(o.h.Bytes())}
}

func credSnap(c *blockstore.Cred) snapCred { return snapCred{c.UID, c.GID, c.Groups} }

func (c *snapCred) cred() blockstore.Cred {
	return blockstore.Cred{UID: c.UID, GID: c.GID, Groups: c.Groups}
}

// Snapshot describes what the server remembers, while it stands still. connection numbers the
// connections that the next process will have, too; see state.SnapshotFuncs.
func (s *Server) Snapshot(connection func(rpc.Caller) (id uint64, ok bool)) ([]byte, error) {
	return s.state.Snapshot(s.cfg.Now(), state.SnapshotFuncs{
		Connection: connection, Callback: s.pending, Copy: s.offloads.snapshot,
	})
}

// pending describes a callback.
func (s *Server) pending(what any) (a state.PendingCallback) {
	r, ok := what.(request)
	if !ok {
		return a
	}
	var e xdr.Encoder
	r.encode(s, &e)
	a.Op, a.Args, a.Origin = r.op(), e.B, r.refers()
	if r, ok := what.(recalling); ok {
		a.Recall = r.Number()
	}
	return a
}

func (f *offloads) snapshot(st *state.Offload) ([]byte, error) {
	f.mu.Lock()
	o := f.all[st]
	f.mu.Unlock()
	if o == nil {
		return nil, errors.New("a copy has just ended")
	}
	c := o.c
	x := snapCopy{
		From: objectSnap(&c.from), To: objectSnap(&c.to), SourceOff: c.sourceOff, DstOff: c.dstOff, Count: c.count,
		Done:  c.done,
		Reads: credSnap(&c.reads), Writes: credSnap(&c.writes), Verifier: bytes.Clone(c.verf[:]),
		Pieces: c.pieces, Told: o.notified.Load(),
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&x)
	return b.Bytes(), err
}

// Restore has a server that stands still and has no clients go on from a snapshot, once it
// stands still no more. connection finds a connection by its number, or is nil. The lock table
// and the exports are there. After an error the server is of no use.
func (s *Server) Restore(data []byte, connection func(id uint64) rpc.Caller) error {
	if len(s.journal.mem) > 0 {
		s.journal.load(s.journal.mem, s.cfg.Now()) // the process of before has written since
	}
	return s.state.Restore(data, s.cfg.Now(), state.RestoreFuncs{
		Connection: connection, Callback: callbackAgain, Copy: s.restoreCopy, Leased: s.leaseAgain, Connect: s.cfg.CallBack,
	})
}

// resent is a callback of the process of before.
type resent struct {
	number uint32
	args   string
	origin state.Origin
	refer  bool
}

func (r resent) op() uint32                       { return r.number }
func (r resent) encode(_ *Server, e *xdr.Encoder) { e.Fixed([]byte(r.args)) }

func (r resent) refers() *state.Origin {
	if !r.refer {
		return nil
	}
	return &r.origin
}

// answered implements request. Nothing waits for the answer: the operation that asked was answered
// by the process before, or will ask again.
func (resent) answered(*Server, bool, nfs.Status, *xdr.Decoder) {}

func callbackAgain(a *state.PendingCallback, r *state.Recall) any {
	switch {
	case a.Op == 0:
		return probing{}
	case r != nil && a.Op == opCBRecall:
		return recalling{r}
	}
	out := resent{number: a.Op, args: string(a.Args)}
	if a.Origin != nil {
		out.origin, out.refer = *a.Origin, true
	}
	return out
}

// leaseAgain is compound.lease for a delegation that was handed over.
func (s *Server) leaseAgain(f lock.File, write bool) (leave func()) {
	x := s.cfg.Exports.ByID(f.Export)
	if x == nil {
		return nil
	}
	l, ok := x.FS.(blockstore.Leaser)
	if !ok {
		return nil
	}
	leave, err := l.Lease(f.Handle, write, func() { s.wanted(f) })
	if err != nil {
		s.cfg.Logger.Warn("the host does not tell any more what its programs do with a delegated file", "export", f.Export,
			"error", err)
		s.unleased.Add(1)
		return nil
	}
	return leave
}

func (s *Server) objectOf(x *snapObject) (object, error) {
	h, ok := blockstore.MakeHandle(x.Handle)
	if !ok {
		return object{}, fmt.Errorf("the handle of a copied file has %d bytes", len(x.Handle))
	}
	return object{x: s.cfg.Exports.ByID(x.Export), h: h}, nil
}

func (s *Server) restoreCopy(st *state.Offload, data []byte) error {
	var x snapCopy
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&x); err != nil {
		return fmt.Errorf("a copy in progress: %w", err)
	}
	from, err1 := s.objectOf(&x.From)
	to, err2 := s.objectOf(&x.To)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	c := &copying{
		from: from, to: to, transfer: transfer{sourceOff: x.SourceOff, dstOff: x.DstOff, count: x.Count},
		reads: x.Reads.cred(), writes: x.Writes.cred(), done: x.Done, pieces: x.Pieces,
	}
	if len(x.Verifier) != len(c.verf) || x.Done > x.Count {
		return errors.New("a copy in progress is damaged")
	}
	copy(c.verf[:], x.Verifier)
	o := &offload{Offload: st, s: s, c: c, news: make(chan struct{}, 1)}
	o.notified.Store(x.Told)
	f := &s.offloads
	f.mu.Lock()
	f.all[st] = o
	f.mu.Unlock()
	f.restored = append(f.restored, o)
	return nil
}

// resume is the goroutine of a copy that was handed over.
func (o *offload) resume() {
	defer o.s.offloads.wg.Done()
	if _, done, _ := o.Progress(); !done {
		if o.c.from.x == nil || o.c.to.x == nil {
			o.Finish(o.ended(nfs.ErrStale)) // an export is gone
		} else {
			held, _ := o.s.state.Hold(o.s.cfg.Now(), o.File, o.Client)
			o.Finish(o.run(held))
		}
	}
	o.tell()
}
