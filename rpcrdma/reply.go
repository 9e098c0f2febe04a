package rpcrdma

import (
	"bytes"
	"errors"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A reply is one list of work requests: RDMA WRITEs into the chunks of the client, then the SEND of
// the transport header and what is inline. A reliable connection executes them in order,
// so the client has the data before it sees the message. Only the SEND is signaled: its completion
// covers the WRITEs, and releases everything that the reply used.

var errChunkTooSmall = errors.New("rpcrdma: a result is longer than the chunk for it")

// inside reports whether b starts in mem. It does not check the end: the callers pass slices that
// lie in one allocation.
func inside(b, mem []byte) bool {
	p, m := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return len(b) > 0 && p >= m && p-m < uintptr(len(mem))
}

// lkey returns the L_Key for b. Memory outside of the pool is registered for this reply, if
// possible with a region that an earlier reply left; drop returns it.
func (s *slot) lkey(b []byte) (uint32, error) {
	p := s.c.l.pool
	if len(b) == 0 || inside(b, p.arena.Bytes()) {
		return p.lkey, nil
	}
	mr, err := s.c.sendRegions.take(b, 0)
	if mr == nil && err == nil {
		mr, err = s.c.l.pd.Register(b, 0)
	}
	if err != nil {
		return 0, err
	}
	s.mrs = append(s.mrs, mr)
	return mr.LKey(), nil
}

// chunkWriter fills the segments of a chunk, in order, with RDMA WRITEs. It checks the length
// before it adds a WRITE: a WRITE beyond the client's memory would end the connection.
type chunkWriter struct {
	s     *slot
	chunk Chunk
	i     int    // segment
	used  uint32 // bytes of it
}

// addWrites adds RDMA WRITEs of b to the next segments. The WRITEs refer to b: it must not change
// before the SEND of the reply has completed.
func (f *chunkWriter) addWrites(b []byte) error {
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

// setLengths turns the chunk into the one that the reply returns: each length becomes the number of
// bytes written, 0 for unused segments (RFC 8166 section 3.4.6).
func (f *chunkWriter) setLengths() {
	for i := range f.chunk {
		switch {
		case i == f.i:
			f.chunk[i].Length = f.used
		case i > f.i:
			f.chunk[i].Length = 0
		}
	}
}

// oneKey returns the R_Key of all segments of a call, if they have the same. The reply can then
// invalidate all of the call's memory at once.
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

// answer plans and posts the reply in s.call.Res. It chooses the form by size (RFC 8166 section
// 3.5): RDMA_MSG if header and rest fit the inline threshold, else RDMA_NOMSG if the rest fits the
// Reply chunk, else ERR_CHUNK.
//
//	form                  inline                      RDMA WRITEs
//	RDMA_MSG              header, reply without       bulk results into the Write chunks
//	                      the results in chunks
//	RDMA_NOMSG            header                      likewise, and the rest into the Reply chunk
//	RDMA_ERROR, ERR_CHUNK header                      none
//
// A result whose Write chunk is missing or has no segments goes into the message.
func (s *slot) answer() {
	c, h, e := s.c, &s.hdr, &s.call.Res
	c.wrs, c.sges = c.wrs[:0], c.sges[:0]
	invalidate := c.peerInval && s.oneKey
	// If the client must invalidate its memory itself, the connection can break after the SEND's
	// completion and before the client has processed the reply. So this completion does not show
	// that the client has the reply, and the cached reply must stay.
	s.final = invalidate || len(h.Reads)+len(h.segs) == 0
	for i := range e.Refs {
		if r := &e.Refs[i]; inside(r.Data, s.buf) {
			r.Data = bytes.Clone(r.Data) // the reply header overwrites the call's buffer
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
		if err := s.fillReply(inline); err != nil {
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

// fillWrites fills the Write chunks with the bulk results, in order (RFC 8166 section 4.3.2), and
// removes these from the encoder. inline is the length of what is left for the message, with
// padding. Padding is not written to a Write chunk: a client may not have room for it.
func (s *slot) fillWrites() (inline int, err error) {
	e := &s.call.Res
	writes := s.hdr.Writes
	inline = len(e.B)
	for i := range e.Refs {
		r := &e.Refs[i]
		if i >= len(writes) || writes[i].Len() == 0 {
			inline += xdr.Padded(len(r.Data))
			continue
		}
		if len(r.Data) > writes[i].Len() {
			return 0, errChunkTooSmall
		}
		f := chunkWriter{s: s, chunk: writes[i]}
		if err := f.addWrites(r.Data); err != nil {
			return 0, err
		}
		f.setLengths()
		r.Data = nil
	}
	for i := len(e.Refs); i < len(writes); i++ {
		s.unused(writes[i])
	}
	return inline, nil
}

// unused sets all lengths of c to zero. This tells the client that the chunk was not used (RFC
// 8166 section 3.4.6).
func (s *slot) unused(c Chunk) {
	for i := range c {
		c[i].Length = 0
	}
}

// zeroPad is the source of padding in chunks. It is in Go memory that is never freed, and is
// registered like other memory outside of the pool.
var zeroPad = make([]byte, 4)

// flatMost is the mean size up to which bulk results in a Reply chunk are copied into one piece. An
// RDMA WRITE for each of them, and one for what is between them, would cost more than the copy.
const flatMost = 32 << 10

// fillReply writes the message, without what is in Write chunks, to the Reply chunk (RFC 8166
// section 3.5.3). inline is its length.
func (s *slot) fillReply(inline int) error {
	e := &s.call.Res
	f := chunkWriter{s: s, chunk: s.hdr.Reply}
	if n := len(e.Refs); n > 1 && inline <= n*flatMost {
		if b := s.alloc(inline); b != nil {
			if err := f.addWrites(e.AppendFlat(b[:0])); err != nil {
				return err
			}
			f.setLengths()
			return nil
		}
	}
	at := 0
	for i := range e.Refs {
		r := &e.Refs[i]
		if len(r.Data) == 0 {
			continue
		}
		for _, b := range [...][]byte{e.B[at:r.At], r.Data, zeroPad[:xdr.Pad(len(r.Data))]} {
			if err := f.addWrites(b); err != nil {
				return err
			}
		}
		at = r.At
	}
	if err := f.addWrites(e.B[at:]); err != nil {
		return err
	}
	f.setLengths()
	return nil
}

// tooLong answers with ERR_CHUNK if why is errChunkTooSmall (RFC 8166 section 4.5.3): the reply
// fits nowhere. The call has already been executed. For any other error tooLong ends the
// connection.
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

// refuse answers with RDMA_ERROR (RFC 8166 section 4.5). The client's XID and version are in s.hdr.
func (s *slot) refuse(code ErrorCode) {
	c, h := s.c, &s.hdr
	c.l.n.add(sentError)
	s.state, s.final = slotReplying, false
	c.wrs, c.sges = c.wrs[:0], c.sges[:0]
	h.Type, h.Code, h.Low, h.High = TypeError, code, Version, Version
	h.Credits = c.credits(h.Credits)
	s.send(h.Append(s.buf[:0]), false, 0)
}

// send completes the list with the SEND of b, which lies in the slot's buffer, and posts it, or
// saves it while there is no room. Replies are posted in the order of send.
//
//	owner of the memory until the completion of the SEND
//	slot's buffer          transport header and inline reply
//	room, extra            results in memory of the pool
//	loans                  borrowed memory, sent from where it lies
//	mrs                    registrations of other memory, for this reply
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
	flags := rdma.Signaled
	if c.repliesInFlight < min(c.slack(), c.grant/4) && s.small() {
		flags |= rdma.DelayAck
	}
	c.wrs = append(c.wrs, rdma.SendWR{
		ID: workID(idSend, s.index), Op: op, Flags: flags, SGL: c.sges[last-1 : last : last], InvRKey: key,
	})
	if c.replies.head != nil || !c.mayReply(len(c.wrs)) {
		if len(c.wrs) > c.sqFree {
			c.l.n.add(errSendQueueWait)
		}
		s.saveReply()
		c.replies.push(s)
		return
	}
	s.postReply(c.wrs)
}

// small reports whether the SEND of the reply releases nothing but the buffer of the slot. Its
// completion is not urgent while enough receives are posted (slack) and the slots in use do not
// make the grant larger (arrived).
func (s *slot) small() bool {
	return len(s.room)+len(s.extra)+len(s.mrs)+len(s.loans)+len(s.readMem) == 0
}

// saveReply copies the list from the connection's scratch to the slot until it can be posted.
func (s *slot) saveReply() {
	s.wrs, s.sges = append(s.wrs[:0], s.c.wrs...), append(s.sges[:0], s.c.sges...)
	for i := range s.wrs {
		s.wrs[i].SGL = s.sges[i : i+1 : i+1]
	}
}

// clearSavedReply empties the saved list. It retains the memory of short lists for reuse.
func (s *slot) clearSavedReply() {
	if len(s.wrs) > 8 {
		s.wrs, s.sges = nil, nil
	}
	clear(s.wrs)
	clear(s.sges)
	s.wrs, s.sges = s.wrs[:0], s.sges[:0]
}

// postReply posts the list of a reply. The device copies the list; the memory that it refers to
// belongs to the device until the SEND has completed.
func (s *slot) postReply(wrs []rdma.SendWR) {
	c := s.c
	s.posted = len(wrs)
	c.sqFree -= s.posted
	c.repliesInFlight++
	c.watchdog.start()
	if err := c.conn.QP().PostSend(wrs); err != nil {
		s.fail(errSendFailed, "posting a reply: %w", err)
	}
}
