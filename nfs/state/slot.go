package state

import (
	"time"

	"github.com/rstored/rstored/nfs"
)

// slot is one entry of the reply cache (RFC 8881 section 2.10.6.1). The exported fields describe
// the last request that was executed, and the other fields the request in execution:
//
//	idle  --SEQUENCE with Seq+1-->  busy  --Finish-->  idle, Seq+1, reply replaced
//	                                  `--Cancel-->  idle, unchanged
//
// An error of SEQUENCE changes no slot (RFC 8881 section 2.10.6.1.2).
type slot struct {
	Seq    uint32 // 0: before the first request; wraps around to 0
	Digest uint64 // of the request with Seq; 0: none was executed yet
	Cached bool   // Reply is valid
	Reply  []byte
	busy   bool          // seq+1 is being executed
	next   uint64        // its digest
	done   chan struct{} // closed at the end, for a retry that waits; nil: none waits
}

// Request has the arguments of SEQUENCE, and what the caller knows of the compound.
type Request struct {
	Session  SessionID
	From     From
	Sequence uint32
	Slot     uint32
	Highest  uint32 // highest slot that the client uses
	Digest   uint64 // of arguments and credential, to tell a retry from another request
	Ops      uint32 // operations of the compound
	Size     uint32 // of the whole RPC message in bytes
	Minor    uint32
	MayWait  bool // the caller can wait for Use.Done
}

// Verdict is what the caller does with a request.
type Verdict uint8

// Verdicts of Sequence.
const (
	// Execute it, and then call Use.Finish or Use.Cancel.
	Execute Verdict = iota
	// Replay: answer with Use.Reply.
	Replay
	// Uncached: the request was executed, but the slot has no reply.
	Uncached
	// Wait: the request is being executed. Call Sequence again when Use.Done is closed. Done is nil
	// if the request cannot wait.
	Wait
)

// Use is a slot in use by a request.
type Use struct {
	Session *Session
	Slot    uint32
	// Sequence is that of the request.
	Sequence uint32
	Reply    []byte // Replay: a copy
	Done     <-chan struct{}
}

// Sequence is the part of SEQUENCE that decides about a request (RFC 8881 section 18.46.3). After
// Execute without an error the caller owns the slot until Finish or Cancel. A retry of a request in
// execution waits, or gets DELAY (section 2.10.6.2). One retry of a slot can wait: a client cannot
// tie up more workers than it has slots. An error changes no slot:
//
//	BADSESSION                 no such session, another identity, or another minor version
//	CONN_NOT_BOUND_TO_SESSION  an address from which the client has not named itself, or with state
//	                           protection a connection that the client has not bound
//	BADSLOT, BAD_HIGH_SLOT     beyond the slots of the session
//	SEQ_MISORDERED             neither the next nor the last number of the slot
//	SEQ_FALSE_RETRY            the last number, another request (section 2.10.6.1.3.1)
//	TOO_MANY_OPS, REQ_TOO_BIG  beyond what CREATE_SESSION has granted
func (s *Server) Sequence(now time.Time, r *Request) (Use, Verdict, nfs.Status) {
	x := s.Session(r.Session)
	if x == nil {
		return Use{}, Execute, nfs.ErrBadSession
	}
	if c := x.Client; !c.at(&r.From) {
		s.denied(c, "SEQUENCE", &r.From)
		if !c.is(&r.From.Identity) {
			return Use{}, Execute, nfs.ErrBadSession
		}
		return Use{}, Execute, nfs.ErrConnNotBound // the client may have another address
	}
	switch {
	case !x.attached(r.From.Conn):
		s.denied(x.Client, "SEQUENCE", &r.From)
		return Use{}, Execute, nfs.ErrConnNotBound
	case r.Slot >= x.Fore.MaxSlots:
		return Use{}, Execute, nfs.ErrBadSlot
	case r.Highest >= x.Fore.MaxSlots:
		return Use{}, Execute, nfs.ErrBadHighSlot
	case r.Minor != x.Minor:
		return Use{}, Execute, nfs.ErrBadSession
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.Slot >= uint32(len(x.slots)) {
		x.slots = append(x.slots, make([]slot, r.Slot+1-uint32(len(x.slots)))...) // at most MaxSlots
	}
	k := &x.slots[r.Slot]
	u := Use{Session: x, Slot: r.Slot, Sequence: r.Sequence}
	switch {
	case k.busy && r.Sequence == k.Seq+1 && !r.MayWait:
		return u, Wait, nfs.OK
	case k.busy && r.Sequence == k.Seq+1:
		if r.Digest != k.next || k.done != nil {
			return u, Execute, nfs.ErrJukebox // another retry of this slot waits already
		}
		k.done = make(chan struct{})
		u.Done = k.done
		return u, Wait, nfs.OK
	case k.busy:
		return u, Execute, nfs.ErrSeqMisordered
	case r.Sequence == k.Seq+1:
	case r.Sequence == k.Seq && k.Seq == 0 && k.Digest == 0:
		return u, Execute, nfs.ErrSeqMisordered // the slot has executed no request yet
	case r.Sequence == k.Seq:
		x.Client.renew(now)
		if r.Digest != k.Digest {
			return u, Execute, nfs.ErrSeqFalseRetry
		}
		if !k.Cached {
			return u, Uncached, nfs.OK
		}
		u.Reply = append([]byte(nil), k.Reply...)
		return u, Replay, nfs.OK
	default:
		return u, Execute, nfs.ErrSeqMisordered
	}
	switch {
	case r.Ops > x.Fore.MaxOps:
		return u, Execute, nfs.ErrTooManyOps
	case r.Size > x.Fore.MaxRequest:
		return u, Execute, nfs.ErrReqTooBig
	}
	k.busy, k.next = true, r.Digest
	x.Client.renew(now)
	return u, Execute, nfs.OK
}

// replyMax is the capacity, in bytes, up to which a slot reuses the buffer of its last reply.
const replyMax = 1 << 10

// Finish ends a request that was executed, and copies reply into the slot. After a nil reply a
// retry is Uncached (RETRY_UNCACHED_REP, RFC 8881 section 2.10.6.1.3). Finish runs before the reply
// is sent: a client that loses the reply finds it in the slot.
func (u *Use) Finish(reply []byte) {
	x := u.Session
	x.mu.Lock()
	defer x.mu.Unlock()
	k := &x.slots[u.Slot]
	k.Seq++
	k.Digest = k.next
	k.Cached = reply != nil
	if cap(k.Reply) > replyMax {
		k.Reply = nil
	}
	k.Reply = append(k.Reply[:0], reply...)
	k.free()
}

// Cancel frees the slot of a request of which nothing was executed. The same request may come
// again.
func (u *Use) Cancel() {
	x := u.Session
	x.mu.Lock()
	defer x.mu.Unlock()
	x.slots[u.Slot].free()
}

func (k *slot) free() {
	k.busy = false
	if k.done != nil {
		close(k.done)
		k.done = nil
	}
}
