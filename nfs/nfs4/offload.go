package nfs4

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// An asynchronous COPY continues after its reply (RFC 7862 section 4.8), in a goroutine of its own.
// state.Config bounds their number. The copies take turns: at most copiers steps are under way at
// one time, and after its step a copy goes to the end of the line. The buffer belongs to the turn.
// So all copies together cause the load of copiers copies.
//
//	client                          server
//	COPY ------------------------>  stateid; delegations of the target recalled and stopped
//	     <------------------------  COPY4resok with the stateid, 0 bytes
//	                                steps, each of at most copyStep bytes
//	OFFLOAD_STATUS -------------->  bytes so far
//	OFFLOAD_CANCEL -------------->  no step any more; the stateid ends, no CB_OFFLOAD
//	     <------------------------  CB_OFFLOAD: bytes, verifier or status
//	OK ------------------------->   the stateid ends
//
// When the copy has ended, the same goroutine sends CB_OFFLOAD until the client answers it.
// CB_OFFLOAD can arrive before the reply to COPY; its referring call list names the COPY.
//
// A copy stops when
//
//	the client cancels it, or ends   at once, no CB_OFFLOAD
//	the client is silent             after a lease; CB_OFFLOAD is tried for up to 4 leases
//	the store fails                  the status is in CB_OFFLOAD, unless bytes were copied
//	the server is closed             no CB_OFFLOAD; the next start answers BADSESSION
//	the server is paused             between two steps; the successor continues
//
// Nothing of a copy is stable before the client's COMMIT. The verifier in CB_OFFLOAD is the one
// from the beginning of the copy, so after a crash of the store the client repeats the copy.

// copiers is how many copies move bytes at one time.
const copiers = 2

// The time between two CB_OFFLOADs: at first, and at most. It doubles each time.
const (
	tellAgain    = 50 * time.Millisecond
	tellAgainMax = time.Second
)

// offloads are the copies that go on after their replies.
type offloads struct {
	// turns has copiers elements. An element is a buffer of nfs.MaxIO bytes, or nil as long as no
	// copy has needed one. The goroutine that has received the element owns the buffer.
	turns chan []byte

	// mu guards closed and all. It is the last lock of the order in doc.go: package state calls
	// snapshot with locks of its own, so no code calls package state with mu held.
	mu     sync.Mutex
	closed bool
	stop   chan struct{}  // closed by Close
	wg     sync.WaitGroup // the goroutines of copies, and those of Server.wanted
	all    map[*state.Offload]*offload

	// taken and restored belong to Pause and Restore, which never run at the same time. taken has
	// the turns while the server is paused: without them no step begins. restored has the copies of
	// the previous process, whose goroutines begin when the server resumes.
	taken    [copiers][]byte
	restored []*offload

	begun, cancelled atomic.Uint64
}

func (f *offloads) init() {
	f.turns, f.stop, f.all = make(chan []byte, copiers), make(chan struct{}), make(map[*state.Offload]*offload)
	for range copiers {
		f.turns <- nil
	}
}

// enter counts a goroutine that is about to begin, unless the server is being closed. The goroutine
// calls wg.Done. mu orders the wg.Add before the wg.Wait of Close.
func (f *offloads) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.wg.Add(1)
	}
	return !f.closed
}

// Close ends the asynchronous copies, and waits for them. Their clients get no CB_OFFLOAD. A COPY
// after Close is synchronous. The stores must be open until Close returns.
func (s *Server) Close() {
	f := &s.offloads
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		close(f.stop)
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// offload is a COPY that goes on after its reply. Its goroutine alone changes c. The snapshot of a
// paused server reads c while no step is under way.
type offload struct {
	*state.Offload
	s *Server
	c *copying

	notified atomic.Bool   // the client has answered CB_OFFLOAD
	news     chan struct{} // a callback has ended; capacity 1
}

// offload makes the copy asynchronous. If it cannot, it returns nil and OK, and the caller copies
// before the reply, as the server may do with any COPY (RFC 7862 section 15.2.3). The reasons are
//
//	the server is being closed
//	Config.Offloads or Config.ClientOffloads is reached, or the client's limit of states
//	no session of minor version 2 has a backchannel that has answered: CB_OFFLOAD cannot be sent
//
// DELAY means that another client has not returned its delegation of the target yet.
func (k *compound) offload(c *copying) (*offload, nfs.Status) {
	s := k.s // the goroutine must not refer to k, which the next call reuses
	if !s.offloads.enter() {
		return nil, nfs.OK
	}
	st, ok := k.client.Offload(k.file(), k.origin())
	if !ok {
		s.offloads.wg.Done()
		return nil, nfs.OK
	}
	// The client may close the file before the copy ends. Only this reservation then keeps the server
	// from delegating the file to another client.
	held, ok := s.beginChange(k.now, k.file(), k.client, 0)
	if !ok {
		st.Drop()
		s.offloads.wg.Done()
		return nil, nfs.ErrJukebox
	}
	o := &offload{Offload: st, s: s, c: c, news: make(chan struct{}, 1)}
	s.offloads.begun.Add(1)
	s.offloads.mu.Lock()
	s.offloads.all[st] = o
	s.offloads.mu.Unlock()
	go func() {
		defer s.offloads.wg.Done()
		o.Finish(o.run(held))
		o.tell()
	}()
	return o, nfs.OK
}

// run copies, and returns the status for CB_OFFLOAD. It owns the reservation (held) and ends it
// before Finish, so that the file can be delegated again when the client learns of the end. A panic
// of the store ends only this copy, not the process.
func (o *offload) run(held bool) (st nfs.Status) {
	defer func() {
		if held {
			o.s.state.EndChange(o.File)
		}
		if r := recover(); r != nil {
			o.s.cfg.Logger.Error("a copy failed badly", "panic", r)
			st = nfs.ErrServerFault
		}
	}()
	if o.c.remote != nil {
		return o.pull()
	}
	f := &o.s.offloads
	for o.c.done < o.c.count {
		if stop, _ := o.Silent(o.s.cfg.Now()); stop {
			return o.ended(nfs.ErrJukebox)
		}
		select {
		case <-o.Gone():
			f.cancelled.Add(1)
			return nfs.OK
		case <-f.stop:
			return o.ended(nfs.ErrJukebox)
		default:
		}
		var turn []byte
		select {
		case turn = <-f.turns:
		case <-o.Gone():
			continue
		case <-f.stop:
			continue
		}
		n, err := o.step(&turn)
		if err != nil {
			return o.ended(nfs.StatusOf(err))
		}
		if n == 0 {
			break
		}
	}
	return nfs.OK
}

// step executes a step of the copy. It gives the turn back, with the buffer, even if the store
// panics. Otherwise Pause would wait for the turn for ever.
func (o *offload) step(turn *[]byte) (n uint64, err error) {
	defer func() { o.s.offloads.turns <- *turn }()
	if o.c.pieces && *turn == nil {
		*turn = make([]byte, nfs.MaxIO)
	}
	n, err = o.c.step(turn)
	o.Add(n)
	return n, err
}

// ended returns the status of a copy that stopped early. If it has copied anything, that is OK with
// fewer bytes, as for a synchronous COPY. The client continues with another COPY, which then fails.
func (o *offload) ended(st nfs.Status) nfs.Status {
	if o.c.done > 0 {
		return nfs.OK
	}
	return st
}

// tell sends CB_OFFLOAD until the client has answered it, by each of the client's backchannels in
// turn. Then it ends the stateid. A client that does not answer gets about one call per second and
// backchannel, and no more after four leases of silence. It cannot destroy its client ID before the
// stateid has ended.
func (o *offload) tell() {
	defer func() {
		o.Drop()
		f := &o.s.offloads
		f.mu.Lock()
		delete(f.all, o.Offload)
		f.mu.Unlock()
	}()
	for wait := tellAgain; !o.over(); wait = min(2*wait, tellAgainMax) {
		for _, x := range o.Client.Backchannels() {
			if x.Minor < 2 || !o.s.callBack(x, o) {
				continue
			}
			o.wait(nil)
			if o.over() {
				return
			}
		}
		t := time.NewTimer(wait)
		o.wait(t.C)
		t.Stop()
	}
}

// wait returns when t fires, a callback has ended, the stateid has ended, or the server is closed.
func (o *offload) wait(t <-chan time.Time) {
	select {
	case <-t:
	case <-o.news:
	case <-o.Gone():
	case <-o.s.offloads.stop:
	}
}

// over reports whether the client need not be called any more.
func (o *offload) over() bool {
	select {
	case <-o.Gone():
		return true
	case <-o.s.offloads.stop:
		return true
	default:
	}
	_, forget := o.Silent(o.s.cfg.Now())
	return forget || o.notified.Load()
}

// An offload is a request of a callback: CB_OFFLOAD (RFC 7862 section 16.1).
//
//	coa_fh, coa_stateid
//	coa_status  OK      write_response4: callback_id<1>, count, committed, verifier
//	            other   bytes copied
//
// callback_id has no element, because coa_stateid names the copy already. The bytes are those from
// the beginning of the range. The client continues behind them with another COPY.

func (o *offload) op() uint32            { return opCBOffload }
func (o *offload) refers() *state.Origin { return &o.Origin }

func (o *offload) encode(s *Server, e *xdr.Encoder) {
	s.encodeFile(e, &o.File)
	EncodeStateid(e, o.ID())
	n, _, st := o.Progress()
	e.Uint32(uint32(st))
	if st != nfs.OK {
		e.Uint64(n)
		return
	}
	e.Uint32(0) // callback_id<1> is empty: the stateid is above
	e.Uint64(n)
	e.Uint32(uint32(blockstore.Unstable))
	e.Fixed(o.c.verf[:])
}

// answered implements request. It may run on a transport's loop, so it never blocks on news. Any
// status except DELAY ends the notification: a client that answers BAD_STATEID has forgotten the
// copy, and would answer the same again.
func (o *offload) answered(_ *Server, received bool, st nfs.Status, _ *xdr.Decoder) {
	if received && st != nfs.ErrJukebox {
		o.notified.Store(true)
	}
	select {
	case o.news <- struct{}{}:
	default:
	}
}

// findOffload reads the stateid of a copy into the current file. All parts of the stateid must
// match: server start, client, number and seqid. A copy of another client is BAD_STATEID, so no
// client can observe or cancel it by a guessed stateid.
func (k *compound) findOffload() (*state.Offload, nfs.Status) {
	id := k.stateid(DecodeStateid(&k.c.Args))
	switch {
	case k.bad():
		return nil, nfs.ErrBadXDR
	case k.cur.x == nil:
		return nil, nfs.ErrBadStateID
	}
	return k.client.FindOffload(id, k.file())
}

// offloadStatus is OFFLOAD_STATUS (RFC 7862 section 15.9): osr_count, the bytes copied so far, and
// osr_complete<1>, a status only if the copy has ended. BAD_STATEID means that the client has
// answered CB_OFFLOAD already, or that the copy was cancelled.
func offloadStatus(k *compound) nfs.Status {
	o, st := k.findOffload()
	if st != nfs.OK {
		return st
	}
	n, done, st := o.Progress()
	e := &k.c.Res
	e.Uint64(n)
	if done {
		e.Uint32(1)
		e.Uint32(uint32(st))
	} else {
		e.Uint32(0)
	}
	return nfs.OK
}

// offloadCancel is OFFLOAD_CANCEL (RFC 7862 section 15.8). After its reply the server writes
// nothing more, so the operation waits for the step under way: a late step could overwrite what the
// client writes next. No new CB_OFFLOAD follows, but one that is in flight may still arrive.
//
// The stateid of a COPY_NOTIFY, at the source of a copy, is cancelled as well.
func offloadCancel(k *compound) nfs.Status {
	args := k.c.Args
	o, st := k.findOffload()
	if st == nfs.ErrBadStateID && k.cur.x != nil {
		return k.client.CancelNotice(k.stateid(DecodeStateid(&args)), k.file())
	}
	if st != nfs.OK {
		return st
	}
	o.Drop()
	<-o.Done() // at most one step: a copy that waits for its turn ends at once
	return nfs.OK
}
