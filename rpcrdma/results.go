package rpcrdma

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// The memory of results: of the pool (alloc), or borrowed. drop releases both.

// alloc is rpc.Call.Alloc. It runs on the handler's goroutine. It takes room first, and then single
// blocks of the pool. It never waits, because calls that wait for memory while they hold memory
// could wait for each other.
//
//	n fits what is left of room        part of room, reserved before the call was served
//	a block is free                    a block of its own, in extra
//	else                               nil: the handler answers with a retryable error
func (s *slot) alloc(n int) []byte {
	if n < 0 || n > s.c.l.cfg.MaxMessage {
		return nil
	}
	if n == 0 {
		return []byte{}
	}
	if at := s.roomOff; n <= len(s.room)-at {
		s.roomOff = min(alignUp(at+n), len(s.room))
		return s.room[at : at+n : at+n]
	}
	if len(s.extra) == MaxWriteChunks {
		return nil
	}
	b := s.c.l.pool.alloc(n)
	if b == nil {
		return nil
	}
	s.extra = append(s.extra, b)
	return b
}

// Borrows implements rpc.Lender. Only results with a Write chunk of their own can be sent without
// a copy; others become part of a message that is built in our buffer. A handler asks before it
// borrows: the length is checked against the client's chunk here, because a loan that does not
// fit could not be sent at all.
func (s *slot) Borrows(call *rpc.Call, n int) bool {
	i, h := len(call.Res.Refs), &s.hdr
	return i < len(h.Writes) && n <= h.Writes[i].Len() && len(s.loans) < MaxWriteChunks
}

// Borrow implements rpc.Lender. The slot owns the loan until drop, which calls Release. A device
// that reads the memory late (Volatile) gets a copy from the store if the file was truncated or
// written meanwhile.
func (s *slot) Borrow(b rpc.Borrowed) {
	s.loans = append(s.loans, b)
	s.c.l.n.lent.Add(uint64(len(b.Bytes())))
}

// lender returns the owner of the borrowed memory that b lies in, or nil.
func (s *slot) lender(b []byte) rdma.Volatile {
	for _, l := range s.loans {
		if inside(b, l.Bytes()) {
			return l
		}
	}
	return nil
}
