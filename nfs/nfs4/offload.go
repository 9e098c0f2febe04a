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

// A COPY that is asynchronous continues after its reply (RFC 7862 section 4.8), in a goroutine of
// its own. state.Config bounds their number. They take turns: at most copiers steps are under way
// at one time, and a copy that has had its turn goes to the end of the line. The buffer belongs to
// the turn. So the load of all copies together is that of copiers copies, however many clients ask.
//
// When the copy has ended, the same goroutine sends CB_OFFLOAD until the client answers it.

// copiers is how many copies move bytes at one time.
const copiers = 2

// How long to wait between two CB_OFFLOADs: at first, and at most.
const (
	tellAgain    = 50 * time.Millisecond
	tellAgainMax = time.Second
)

// offloads are the copies that go on after their replies.
type offloads struct {
	turns chan []byte // as many as copiers; of nfs.MaxIO bytes, or nil

	mu     sync.Mutex
	closed bool
	stop   chan struct{} // closed by close
	wg     sync.WaitGroup
	all    map[*state.Offload]*offload

	// While the server is paused: the turns, and the copies of the process before, which begin when it
	// resumes.
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

// enter begins a goroutine, unless the server is being closed.
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

// offload is a COPY that goes on after its reply.
type offload struct {
	*state.Offload
	s *Server
	c *copying

	notified atomic.Bool
	news     chan struct{} // a callback has ended; of length 1
}

// offload makes the copy asynchronous. It returns nil, with OK, if it cannot: then the copy is made
// before the reply, as the server may do with any COPY (RFC 7862 section 15.2.3).
func (k *compound) offload(c *copying) (*offload, nfs.Status) {
	s := k.s // k is of the call
	if !s.offloads.enter() {
		return nil, nfs.OK
	}
	st, ok := k.client.Offload(k.file(), k.origin())
	if !ok {
		s.offloads.wg.Done()
		return nil, nfs.OK
	}
	// The client may close the file before the copy ends. Then nothing else keeps the file from
	// being delegated to another client.
	held, ok := s.beginChange(k.now, k.file(), k.client)
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

// run copies.
func (o *offload) run(held bool) (st nfs.Status) {
	defer func() {
		if held {
			o.s.state.Unhold(o.File)
		}
		if r := recover(); r != nil {
			o.s.cfg.Logger.Error("a copy failed badly", "panic", r)
			st = nfs.ErrServerFault
		}
	}()
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

// step is a step of the copy, in a turn that it gives back.
func (o *offload) step(turn *[]byte) (n uint64, err error) {
	defer func() { o.s.offloads.turns <- *turn }()
	if o.c.pieces && *turn == nil {
		*turn = make([]byte, nfs.MaxIO)
	}
	n, err = o.c.step(turn)
	o.Add(n)
	return n, err
}

// ended is the status of a copy that stopped early. If it has copied anything, that is a success
// with fewer bytes, as for a synchronous COPY: the client continues with another one, which then
// fails.
func (o *offload) ended(st nfs.Status) nfs.Status {
	if o.c.done > 0 {
		return nfs.OK
	}
	return st
}

// tell sends CB_OFFLOAD until the client has answered it.
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

// wait waits for what a callback brings, or until there is no reason to.
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

// An offload is what a callback asks for: CB_OFFLOAD (section 16.1).

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
	e.Uint32(0) // no stateid, which is above
	e.Uint64(n)
	e.Uint32(uint32(blockstore.Unstable))
	e.Fixed(o.c.verf[:])
}

func (o *offload) answered(_ *Server, received bool, st nfs.Status, _ *xdr.Decoder) {
	if received && st != nfs.ErrJukebox {
		o.notified.Store(true)
	}
	select {
	case o.news <- struct{}{}:
	default:
	}
}

// findOffload reads the stateid of a copy into the current file.
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

// offloadStatus is OFFLOAD_STATUS (section 15.9): the bytes copied so far, and a status only if the
// copy has ended.
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

// offloadCancel is OFFLOAD_CANCEL (section 15.8). After the reply nothing more is written, so it
// waits for the step under way. No CB_OFFLOAD follows.
func offloadCancel(k *compound) nfs.Status {
	o, st := k.findOffload()
	if st != nfs.OK {
		return st
	}
	o.Drop()
	<-o.Done() // a step at most
	return nfs.OK
}
