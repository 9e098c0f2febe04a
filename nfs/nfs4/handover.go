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

// A handover moves the state of the server from an old process to a new one while the clients stay
// connected. They see neither a new boot nor a grace period:
//
//	old process                             new process
//	transports stop taking calls            New, with no clients
//	Pause(true)                             Pause(true)
//	Snapshot           --- bytes --->       Restore
//	ends, or Pause(false) if that failed    Pause(false)
//
// In a paused server no callback is sent, no recall for a program of the host begins, and copies
// wait between two steps. The transports ensure that no call of a client is under way. Snapshot
// describes everything that clients can observe. The new process sends again, unchanged, the
// callbacks that have no answer, and continues the copies.
//
// Only one of the two processes may resume: both have the same stateids and session slots.

// Pause stops the server for an upgrade (on is true), or resumes it. A second Pause with the
// same argument does nothing. One goroutine calls Pause, Snapshot and Restore: nothing guards
// offloads.taken and offloads.restored.
//
// Pause(true) waits, in this order, for recalls for programs of the host (background), for
// callbacks that are being sent (calling), for changes of the list of clients that may reclaim
// (Freeze), and for the steps of copies under way. It takes all turns of the copies, so that no
// copy can begin another step. A step is at most copyStep (16 MiB). Pause does not wait for the
// replies to callbacks: the snapshot has these callbacks as pending.
func (s *Server) Pause(on bool) {
	s.background.Lock()
	s.calling.Lock()
	was := s.paused
	s.paused = on
	s.calling.Unlock()
	s.background.Unlock()
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
	for _, dir := range s.dirs.restored {
		go s.wanted(dir)
	}
	s.dirs.restored = nil
	s.resumeLocks()
	for _, x := range s.state.Lost() {
		// callBack first sends the lost callbacks of the session, in their slots and with their
		// sequence numbers. probing alone asks the client for nothing.
		s.callBack(x, probing{})
	}
}

// mayCall reports whether callbacks may be sent. If ok is true the caller holds calling for reading
// until it calls done. Pause waits for that, so the caller must not wait for a reply, nor call
// Pause. If ok is false, done is nil.
func (s *Server) mayCall() (done func(), ok bool) {
	s.calling.RLock()
	if s.paused {
		s.calling.RUnlock()
		return nil, false
	}
	return s.calling.RUnlock, true
}

// snapCopy is a copy that goes on after its reply, as a gob value. Fields may be added: gob leaves
// a field zero that the stream does not have. A type or name must not change, since an older
// process writes the stream that a newer one reads.
type snapCopy struct {
	From, To          snapObject
	SourceOff, DstOff uint64   // of the whole copy, in bytes
	Count, Done       uint64   // bytes in all, and copied so far; Done <= Count
	Reads, Writes     snapCred // identities for the two files
	Verifier          []byte   // of the COPY's reply, 8 bytes
	Pieces, Notified  bool     // see copying.pieces, offload.notified
	Remote            *CopySource
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

// Snapshot describes what the server remembers. The server must be paused. connection numbers the
// connections that the new process gets as well; see state.SnapshotFuncs. The result is a copy: it
// refers to nothing of the server.
func (s *Server) Snapshot(connection func(rpc.Caller) (id uint64, ok bool)) ([]byte, error) {
	return s.state.Snapshot(s.cfg.Now(), state.SnapshotFuncs{
		Connection: connection, Callback: s.pending, Copy: s.offloads.snapshot,
	})
}

// pending describes a callback without an answer. Its arguments are encoded now and stored as
// bytes. A retry must be the same request in the same slot with the same sequence number (RFC 8881
// section 2.10.6.2); else a client may answer SEQ_FALSE_RETRY. The zero value is CB_SEQUENCE alone.
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

// snapshot describes one copy. The copy stands between two steps, so done is exact and the new
// process continues there. Snapshot fails if the goroutine of a copy ends at this moment: Pause
// does not stop a goroutine that has no step left.
func (f *offloads) snapshot(st *state.Offload) ([]byte, error) {
	f.mu.Lock()
	o := f.all[st]
	f.mu.Unlock()
	if o == nil {
		return nil, errors.New("a copy has just ended")
	}
	c := o.c
	x := snapCopy{
		To: objectSnap(&c.to), Remote: c.remote, SourceOff: c.sourceOff, DstOff: c.dstOff, Count: c.count,
		Done:  c.done,
		Reads: credSnap(&c.reads), Writes: credSnap(&c.writes), Verifier: bytes.Clone(c.verf[:]),
		Pieces: c.pieces, Notified: o.notified.Load(),
	}
	if c.remote == nil {
		x.From = objectSnap(&c.from)
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&x)
	return b.Bytes(), err
}

// Restore fills a server that is paused and has no clients from a snapshot. The copies and
// callbacks of the snapshot begin with Pause(false). connection finds a connection by its number,
// or is nil. The lock table and the exports must have been restored before. After an error the
// server must not be used.
//
// The snapshot comes from another process of the same server, and not from a client. It is still
// checked for damage, such as a cut stream or lengths that do not match.
func (s *Server) Restore(data []byte, connection func(id uint64) rpc.Caller) error {
	if len(s.journal.mem) > 0 {
		// New has loaded the journal while the old process was still writing records into it.
		s.journal.load(s.journal.mem, s.cfg.Now())
	}
	return s.state.Restore(data, s.cfg.Now(), state.RestoreFuncs{
		Connection: connection, Callback: callbackAgain, Copy: s.restoreCopy, Leased: s.leaseAgain, Connect: s.cfg.CallBack,
	})
}

// resent is a callback of the old process, with its arguments as bytes. It is comparable, as
// request wants: args is a string for this reason.
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

// answered implements request. Nothing waits for the answer: no call of a client is under way
// during a handover, and a GETATTR that needs a CB_GETATTR sends a new one.
func (resent) answered(*Server, bool, nfs.Status, *xdr.Decoder) {}

// callbackAgain returns the request for a callback of the snapshot. A CB_RECALL stays a recalling,
// so that its answer counts for the delegation. r is nil if the delegation was returned or revoked.
// The callback is sent all the same, as its slot stays in use until the client answers.
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

// leaseAgain takes the host's lease for a delegation that was handed over, because the lease of the
// old process ended with its descriptor. If a program of the host has opened the file in between,
// the delegation is recalled. If there is no lease for another reason the delegation stays, but the
// server does not learn of further opens by the host. Both are logged and counted. leave belongs to
// package state, which calls it once when the delegation ends.
//
// The delegation of a directory is recalled when the server resumes: nobody has seen what programs
// of the host changed in between.
func (s *Server) leaseAgain(f lock.File, write, dir bool) (leave func()) {
	if dir {
		s.dirs.restored = append(s.dirs.restored, f)
		return nil
	}
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
		if errors.Is(err, blockstore.ErrJukebox) {
			go s.wanted(f) // it waits for Pause(false)
		}
		return nil
	}
	return leave
}

// objectOf returns the object of a copy. Its x is nil if the export is gone; resume then ends the
// copy. Its rule is nil: a copy has the identities of its COPY, and asks for no rule.
func (s *Server) objectOf(x *snapObject) (object, error) {
	h, ok := blockstore.MakeHandle(x.Handle)
	if !ok {
		return object{}, fmt.Errorf("the handle of a copied file has %d bytes", len(x.Handle))
	}
	return object{x: s.cfg.Exports.ByID(x.Export), h: h}, nil
}

// restoreCopy enters a copy of the snapshot. It starts nothing: the server is paused, and
// Pause(false) starts the goroutine of each copy in offloads.restored.
func (s *Server) restoreCopy(st *state.Offload, data []byte) error {
	var x snapCopy
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&x); err != nil {
		return fmt.Errorf("a copy in progress: %w", err)
	}
	to, err := s.objectOf(&x.To)
	var from object
	if err == nil && x.Remote == nil {
		from, err = s.objectOf(&x.From)
	}
	if err != nil {
		return err
	}
	c := &copying{
		from: from, to: to, transfer: transfer{sourceOff: x.SourceOff, dstOff: x.DstOff, count: x.Count},
		reads: x.Reads.cred(), writes: x.Writes.cred(), done: x.Done, pieces: x.Pieces, remote: x.Remote,
	}
	if len(x.Verifier) != len(c.verf) || x.Done > x.Count {
		return errors.New("a copy in progress is damaged")
	}
	copy(c.verf[:], x.Verifier)
	if _, done, _ := st.Progress(); !done && to.x != nil && to.x.FS.Verifier() != c.verf {
		// What was copied may be lost, as in a failover. The copy begins again here; otherwise the client
		// would begin it again, after its end.
		st.Add(-c.done)
		c.done, c.verf = 0, to.x.FS.Verifier()
	}
	o := &offload{Offload: st, s: s, c: c, news: make(chan struct{}, 1)}
	o.notified.Store(x.Notified)
	f := &s.offloads
	f.mu.Lock()
	f.all[st] = o
	f.mu.Unlock()
	f.restored = append(f.restored, o)
	return nil
}

// resume is the goroutine of a copy that was handed over. Pause has counted it in offloads.wg. If
// the copy was complete already, resume only sends CB_OFFLOAD. If an export is gone, the copy is
// STALE. The reservation against delegations is not in the snapshot, so resume makes it again: the
// client may have closed the file.
func (o *offload) resume() {
	defer o.s.offloads.wg.Done()
	if _, done, _ := o.Progress(); !done {
		if o.c.from.x == nil && o.c.remote == nil || o.c.to.x == nil {
			o.Finish(o.ended(nfs.ErrStale)) // an export is gone
		} else {
			held, _ := o.s.state.BeginChange(o.s.cfg.Now(), o.File, o.Client)
			o.Finish(o.run(held))
		}
	}
	o.tell()
}
