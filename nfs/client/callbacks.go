package client

import (
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// callbacksMax bounds the callbacks that wait or are executed. A server has at most as many in
// flight as the backchannels of its sessions have slots. TCP has no bound of its own.
const callbacksMax = 64

// callbacks answers the server's calls on the connections of a session. Each call runs in a
// goroutine: the transport must not wait. Calls beyond callbacksMax are dropped.
type callbacks struct {
	mu       sync.Mutex // guards sessions and their backchannels
	sessions map[state.SessionID]*called

	// execution is locked while a CB_COMPOUND is executed. CB_COMPOUNDs are short. One at a time
	// keeps the order in which the server sends them.
	execution sync.Mutex

	user    atomic.Pointer[DelegationUser]
	calls   atomic.Uint64 // CB_COMPOUNDs that were executed
	waiting atomic.Int32  // callbacks that wait or are executed
}

// called is a session with a backchannel.
type called struct {
	s    *session4
	back backchannel
}

// add makes the client answer callbacks of a session.
func (c *callbacks) add(id state.SessionID, s *session4, minor uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions == nil {
		c.sessions = make(map[state.SessionID]*called)
	}
	c.sessions[id] = &called{s: s, back: backchannel{minor: minor}}
}

// remove makes the client answer callbacks of the session with BADSESSION.
func (c *callbacks) remove(id state.SessionID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, id)
}

// receive is an rpc.BackwardFunc.
func (c *callbacks) receive(msg []byte, reply func([]byte)) {
	if c.waiting.Add(1) > callbacksMax {
		c.waiting.Add(-1)
		return
	}
	go func() {
		defer c.waiting.Add(-1)
		c.execution.Lock()
		defer c.execution.Unlock()
		x := &execution{c: c}
		b := rpc.Answer(msg, callbackProg, callbackVersion,
			func(proc uint32, d *xdr.Decoder, e *xdr.Encoder) rpc.AcceptStat { return serveCallback(x, proc, d, e) })
		if b != nil {
			c.calls.Add(1)
			reply(b)
		}
	}()
}

// execution is the execution of one callback. It implements cbOps.
type execution struct {
	c *callbacks
	s *session4 // of its CB_SEQUENCE
}

func (x *execution) sequence(id state.SessionID, minor uint32) *backchannel {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	k := x.c.sessions[id]
	if k == nil || k.back.minor != minor {
		return nil
	}
	x.s = k.s
	return &k.back // x.c.execution guards it
}

func (x *execution) recall(h Handle, id state.Stateid) nfs.Status { return x.s.opens.recall(h, id) }

func (x *execution) getAttr(h Handle) (change, size uint64, st nfs.Status) {
	return x.s.opens.callbackAttr(h)
}

func (x *execution) recallAny(keep uint32, kinds nfs4.Bitmap) nfs.Status {
	return x.s.opens.recallAny(keep, kinds)
}

func (x *execution) notifyLock(h Handle, owner string) nfs.Status {
	x.s.opens.lockFree(h, owner)
	return nfs.OK
}
