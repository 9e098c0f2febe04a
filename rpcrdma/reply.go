package rpcrdma

import (
	"bytes"
	"errors"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A reply is one list of work requests: RDMA WRITEs into the chunks that the
// client gave, then the SEND of the header and what is inline. The order of
// the queue pair makes the data visible before the message, and the completion
// of the SEND, the only one asked for, releases everything.

var errChunkTooSmall = errors.New("rpcrdma: a result is longer than the chunk for it")

// inside reports whether b starts in mem.
func inside(b, mem []byte) bool {
	p, m := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return len(b) > 0 && p >= m && p-m < uintptr(len(mem))
}

// lkey is the key of the registered memory that b lies in. Memory that is not
// of the pool is registered for this reply.
func (s *slot) lkey(b []byte) (uint32, error) {
	p := s.c.l.pool
	if len(b) == 0 || inside(b, p.arena.Bytes()) {
		return p.lkey, nil
	}
	mr, err := s.c.lent.take(b, 0)
	if mr == nil && err == nil {
		mr, err = s.c.l.pd.Register(b, 0)
	}
	if err != nil {
		return 0, err
	}
	s.mrs = append(s.mrs, mr)
	return mr.LKey(), nil
}

// filler fills the segments of a chunk in order with RDMA WRITEs.
type filler struct {
	s     *slot
	chunk Chunk
	i     int    // segment
	used  uint32 // bytes of it
}

func (f *filler) put(b []byte) error {
	key, err := f.s.lkey(b)
	if err != nil {
		return err
	}
	c, lender := f.s.c, f.s.lender(b)
	for len(b) > 0 {
		for f.i < len(f.chunk) && f.used == f.chunk[f.i].Length {
			f.i, f.used = f.i+1, 0
		}
		if f.i == len(f.chunk) {
			return errChunkTooSmall
		}
		seg := &f.chunk[f.i]
		n := min(len(b), int(seg.Length-f.used))
		c.sges = append(c.sges, rdma.SGE{Buf: b[:n], LKey: key})
		last := len(c.sges)
		c.wrs = append(c.wrs, rdma.SendWR{
			ID: workID(idWrite, f.s.index), Op: rdma.OpWrite, SGL: c.sges[last-1 : last : last],
			RemoteAddr: seg.Offset + uint64(f.used), RKey: seg.Handle, Volatile: lender,
		})
		f.used += uint32(n)
		b = b[n:]
	}
	return nil
}

// done turns the chunk into what the reply returns: the lengths become those
// written.
func (f *filler) done() {
	for i := range f.chunk {
		switch {
		case i == f.i:
			f.chunk[i].Length = f.used
		case i > f.i:
			f.chunk[i].Length = 0
		}
	}
}

func padded(n int) int { return n + xdr.Pad(n) }

// oneKey is the R_Key that all segments of a call share, if they do.
func (h *Header) oneKey() (uint32, bool) {
	var key uint32
	n := 0
	for i := range h.Reads {
		if n++; n > 1 && h.Reads[i].Handle != key {
			return 0, false
		}
		key = h.Reads[i].Handle
	}
	for i := range h.segs {
		if n++; n > 1 && h.segs[i].Handle != key {
			return 0, false
		}
		key = h.segs[i].Handle
	}
	return key, n > 0
}

// answer plans and posts the reply in s.call.Res.
func (s *slot) answer() {
	c, h, e := s.c, &s.hdr, &s.call.Res
	c.wrs, c.sges = c.wrs[:0], c.sges[:0]
	invalidate := c.peerInval && s.oneKey
	// A client that has to close memory to us may lose the connection, and with it the reply, until it has done so.
	s.final = invalidate || len(h.Reads)+len(h.segs) == 0
	for i := range e.Refs {
		if r := &e.Refs[i]; inside(r.Data, s.buf) {
			r.Data = bytes.Clone(r.Data) // the reply is built where the call lies
		}
	}
	inline, err := s.fillWrites()
	if err != nil {
		s.tooLong(err)
		return
	}
	h.Reads = h.Reads[:0]
	h.Type = TypeMsg
	switch {
	case h.Len()+inline <= c.inlineOut:
		s.unused(h.Reply)
	case h.HasReply && inline <= h.Reply.Len() && h.Len() <= c.inlineOut:
		h.Type = TypeNoMsg
		if err := s.fillReply(); err != nil {
			s.tooLong(err)
			return
		}
	default:
		s.tooLong(errChunkTooSmall)
		return
	}
	placed := 0
	for i := range c.wrs {
		placed += len(c.wrs[i].SGL[0].Buf)
	}
	c.l.n.writeBytes.Add(uint64(placed))
	c.writeBytes.Add(uint64(placed))

	h.Credits = c.credits(h.Credits)
	b := h.Append(s.buf[:0])
	if h.Type == TypeMsg {
		b = e.AppendFlat(b)
		c.l.n.add(sentMsg)
	} else {
		c.l.n.add(sentNoMsg)
	}
	s.send(b, invalidate, s.key)
}

// fillWrites fills the Write chunks with the bulk results, in order, and takes
// the data of those away: what is left, in bytes with its padding, is for the
// message itself.
func (s *slot) fillWrites() (inline int, err error) {
	e := &s.call.Res
	writes := s.hdr.Writes
	inline = len(e.B)
	for i := range e.Refs {
		r := &e.Refs[i]
		if i >= len(writes) || writes[i].Len() == 0 {
			inline += padded(len(r.Data))
			continue
		}
		if len(r.Data) > writes[i].Len() {
			return 0, errChunkTooSmall
		}
		f := filler{s: s, chunk: writes[i]}
		if err := f.put(r.Data); err != nil {
			return 0, err
		}
		f.done()
		r.Data = nil
	}
	for i := len(e.Refs); i < len(writes); i++ {
		s.unused(writes[i])
	}
	return inline, nil
}

func (s *slot) unused(c Chunk) {
	for i := range c {
		c[i].Length = 0
	}
}

// zeroPad is what padding is written from.
var zeroPad = make([]byte, 4)

// fillReply writes the whole message, less what went to Write chunks, to the
// Reply chunk.
func (s *slot) fillReply() error {
	e := &s.call.Res
	f := filler{s: s, chunk: s.hdr.Reply}
	at := 0
	for i := range e.Refs {
		r := &e.Refs[i]
		if len(r.Data) == 0 {
			continue
		}
		for _, b := range [...][]byte{e.B[at:r.At], r.Data, zeroPad[:xdr.Pad(len(r.Data))]} {
			if err := f.put(b); err != nil {
				return err
			}
		}
		at = r.At
	}
	if err := f.put(e.B[at:]); err != nil {
		return err
	}
	f.done()
	return nil
}

// tooLong answers a reply that fits nowhere.
func (s *slot) tooLong(why error) {
	c := s.c
	c.wrs, c.sges = c.wrs[:0], c.sges[:0]
	if !errors.Is(why, errChunkTooSmall) {
		s.fail(errReplyTooLong, "preparing a reply: %w", why)
		return
	}
	c.l.n.add(errReplyTooLong)
	s.refuse(CodeChunk)
}

// refuse answers with RDMA_ERROR.
func (s *slot) refuse(code ErrorCode) {
	c, h := s.c, &s.hdr
	c.l.n.add(sentError)
	s.state, s.final = slotReplying, false
	c.wrs, c.sges = c.wrs[:0], c.sges[:0]
	h.Type, h.Code, h.Low, h.High = TypeError, code, Version, Version
	h.Credits = c.credits(h.Credits)
	s.send(h.Append(s.buf[:0]), false, 0)
}

// send completes the list with the SEND of b, which lies in the slot's buffer.
func (s *slot) send(b []byte, invalidate bool, key uint32) {
	c := s.c
	c.l.n.inline.Add(uint64(len(b)))
	op := rdma.OpSend
	if invalidate {
		op = rdma.OpSendInv
		c.l.n.add(sentInvalidate)
	}
	c.sges = append(c.sges, rdma.SGE{Buf: b, LKey: c.l.pool.lkey})
	last := len(c.sges)
	c.wrs = append(c.wrs, rdma.SendWR{
		ID: workID(idSend, s.index), Op: op, Flags: rdma.Signaled, SGL: c.sges[last-1 : last : last], InvRKey: key,
	})
	if c.replies.head != nil || !c.mayReply(len(c.wrs)) {
		if len(c.wrs) > c.sqFree {
			c.l.n.add(errSendQueueWait)
		}
		s.keepReply()
		c.replies.push(s)
		return
	}
	s.postReply(c.wrs)
}

// keepReply has the slot keep the list until it may be posted, and unkeepReply forgets it, but for memory that the
// next one fits into.
func (s *slot) keepReply() {
	s.wrs, s.sges = append(s.wrs[:0], s.c.wrs...), append(s.sges[:0], s.c.sges...)
	for i := range s.wrs {
		s.wrs[i].SGL = s.sges[i : i+1 : i+1]
	}
}

func (s *slot) unkeepReply() {
	if len(s.wrs) > 8 {
		s.wrs, s.sges = nil, nil
	}
	clear(s.wrs)
	clear(s.sges)
	s.wrs, s.sges = s.wrs[:0], s.sges[:0]
}

func (s *slot) postReply(wrs []rdma.SendWR) {
	c := s.c
	s.posted = len(wrs)
	c.sqFree -= s.posted
	c.unheard++
	c.stall.start()
	if err := c.conn.QP().PostSend(wrs); err != nil {
		s.fail(errSendFailed, "posting a reply: %w", err)
	}
}
