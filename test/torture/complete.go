package torture

import (
	"bytes"
	"encoding/binary"

	"github.com/rstored/rstored/rdma"
)

// op is a request that was posted.
type op struct {
	e       Event
	data    []byte // what a WRITE or SEND carries
	sink    []byte // where a READ or atomic puts it
	done    bool
	success bool
}

// complete takes the completion of a request.
func (s *side) complete(wc *rdma.WC) {
	w := s.c.w
	id := int(wc.ID)
	if id >= len(s.ops) || id < s.completed || s.ops[id].done {
		w.failf("connection %d side %d: request %d completed again, or never was", s.c.n, s.i, id)
		return
	}
	for ; s.completed < id; s.completed++ {
		o := s.ops[s.completed]
		if !o.e.Quiet || s.failed {
			w.failf("connection %d side %d: request %d completed before request %d", s.c.n, s.i, id, s.completed)
			return
		}
		s.succeeded(s.completed)
	}
	o := s.ops[id]
	o.done = true
	if wc.Status != rdma.Success {
		if s.failed && wc.Status != rdma.WRFlushErr {
			w.failf("connection %d side %d: request %d failed (%v) after one before it", s.c.n, s.i, id, wc.Status)
		}
		switch wc.Status {
		case rdma.WRFlushErr, rdma.RetryExcErr:
		default:
			w.failf("connection %d side %d: request %d ended with %v", s.c.n, s.i, id, wc.Status)
		}
		s.failed = true
		s.completed++
		return
	}
	if s.failed || o.e.Quiet {
		w.failf("connection %d side %d: request %d succeeded after a failure, or was not to tell", s.c.n, s.i, id)
	}
	s.succeeded(id)
	s.completed++
}

// succeeded brings the model to where request id has been carried out, and checks what
// it brought.
func (s *side) succeeded(id int) {
	o := s.ops[id]
	o.done, o.success = true, true
	w := s.c.w
	at := o.e.Offset
	switch o.e.Op {
	case rdma.OpWrite, rdma.OpWriteImm:
		copy(s.model[at:], o.data)
	case rdma.OpRead:
		for i, b := range o.sink {
			if b != s.model[int(at)+i] && !s.later(id, at+uint32(i), b) {
				w.failf("connection %d side %d: READ %d of %d bytes at %d has %#x in byte %d, and %#x is there", s.c.n, s.i, id,
					o.e.Size, at, b, i, s.model[int(at)+i])
				return
			}
		}
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		old := binary.NativeEndian.Uint64(s.model[at:])
		if got := binary.NativeEndian.Uint64(o.sink); got != old {
			w.failf("connection %d side %d: atomic %d found %#x, and %#x was there", s.c.n, s.i, id, got, old)
			return
		}
		binary.NativeEndian.PutUint64(s.model[at:], o.change(old))
	}
}

// change is what an atomic makes of a word.
func (o *op) change(old uint64) uint64 {
	compare, swapAdd := o.e.Seed>>32, o.e.Seed&0xffffffff
	switch {
	case o.e.Op == rdma.OpFetchAdd:
		return old + swapAdd
	case old == compare:
		return swapAdd
	}
	return old
}

// messages reports whether the request takes a receive of the peer.
func (o *op) messages() bool {
	return o.e.Op == rdma.OpSend || o.e.Op == rdma.OpSendImm || o.e.Op == rdma.OpWriteImm
}

// before is the number of messages among the requests before id.
func (s *side) before(id int) (n int) {
	for _, o := range s.ops[:id] {
		if o.messages() {
			n++
		}
	}
	return n
}

// later reports whether a WRITE that was posted behind request id puts b there: the data
// of a READ may be fetched as late as that (IBTA 9.6, no order without a fence).
func (s *side) later(id int, at uint32, b byte) bool {
	for _, o := range s.ops[id+1:] {
		if (o.e.Op == rdma.OpWrite || o.e.Op == rdma.OpWriteImm) && at >= o.e.Offset && at-o.e.Offset < o.e.Size &&
			o.data[at-o.e.Offset] == b {
			return true
		}
	}
	return false
}

// received takes a message of the peer: they come whole, in order, once.
func (s *side) received(wc *rdma.WC) {
	w := s.c.w
	slot := wc.ID &^ recvID
	if wc.Status != rdma.Success {
		if wc.Status != rdma.WRFlushErr {
			w.failf("connection %d side %d: a receive ended with %v", s.c.n, s.i, wc.Status)
		}
		return
	}
	p := s.peer()
	n := s.gotten
	s.gotten++
	var o *op
	for _, x := range p.ops {
		if x.messages() {
			if n == 0 {
				o = x
				break
			}
			n--
		}
	}
	if o == nil {
		w.failf("connection %d side %d: message %d was never sent", s.c.n, s.i, s.gotten-1)
		return
	}
	b := s.sink.Bytes()[slot*sendMax : (slot+1)*sendMax]
	want := wc.Op == rdma.WCRecvWithImm
	switch {
	case want != (o.e.Op == rdma.OpWriteImm), wc.ByteLen != o.e.Size:
		w.failf("connection %d side %d: message %d is of %d bytes, want %d", s.c.n, s.i, s.gotten-1, wc.ByteLen, o.e.Size)
	case !want && !bytes.Equal(b[:wc.ByteLen], o.data):
		w.failf("connection %d side %d: message %d has other bytes", s.c.n, s.i, s.gotten-1)
	case (o.e.Op != rdma.OpSend) != (wc.Flags&rdma.WithImm != 0), o.e.Op != rdma.OpSend && wc.Imm != uint32(o.e.Seed):
		w.failf("connection %d side %d: message %d has the immediate %#x", s.c.n, s.i, s.gotten-1, wc.Imm)
	}
	again := func() {
		if s.usable() {
			if err := s.receive(slot); err != nil {
				w.failf("%w", err)
			}
		}
	}
	if w.rnd.IntN(3) == 0 {
		again()
	} else {
		s.host.dev.Loops()[0].After(rdma.Time(w.rnd.Int64N(int64(3*rdma.Millisecond))), again)
	}
}

// settled reports whether nothing more is going to happen to the side's requests.
func (s *side) settled() bool {
	if s.crashed {
		return true
	}
	if !s.up && !s.down {
		return false
	}
	for i := s.completed; i < len(s.ops); i++ {
		if !s.ops[i].e.Quiet || s.down && s.failed {
			return false
		}
	}
	return true
}
