package rpcrdma

import (
	"cmp"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// readChunk is a chunk of the Read list (RFC 8166 section 3.4.5): n bytes that belong at offset pos
// of the message.
type readChunk struct {
	pos, n int
	mem    []byte // n bytes, and their padding
}

// chunkAlign is the alignment of chunks in memory: decoded data begins at a cache line.
const chunkAlign = 64

// alignUp rounds n up to a multiple of chunkAlign.
func alignUp(n int) int { return (n + chunkAlign - 1) &^ (chunkAlign - 1) }

// queue puts the call in a queue for bulk memory.
func (s *slot) queue() {
	c := s.c
	c.order++
	s.order = c.order
	if s.fetching > 0 {
		c.memWaitReads.push(s)
	} else {
		c.memWait.push(s)
	}
}

// plan groups the Read list into chunks and checks that the message can be assembled from them,
// before memory is reserved and before anything is fetched.
//
// Entries with the same position are one chunk (RFC 8166 section 3.4.5). A position counts the
// bytes of the message with all chunks in place. In an RDMA_NOMSG message the chunk at position 0
// is the message itself, the other chunks belong into it (section 3.5.3). The peer chooses
// positions and lengths, so both are checked against the message and against MaxMessage.
//
//	message      | header, args | opaque data, pad | args |      positions count these bytes
//	             0              p                         ^
//	inline       | header, args |                  | args |      RDMA_MSG: without the chunk
//	Read chunk                  | data |                         position p, length without pad
func (s *slot) plan() error {
	h, most := &s.hdr, s.c.l.cfg.MaxMessage
	s.key, s.oneKey = h.oneKey()
	s.waited = false
	s.chunks, s.fetching, s.roomLen = s.chunks[:0], 0, 0
	slices.SortStableFunc(h.Reads, func(a, b ReadSegment) int { return cmp.Compare(a.Position, b.Position) })
	for i := range h.Reads {
		r := &h.Reads[i]
		if i == 0 || r.Position != h.Reads[i-1].Position {
			s.chunks = append(s.chunks, readChunk{pos: int(r.Position)})
		}
		s.chunks[len(s.chunks)-1].n += int(r.Length)
		if s.fetching += int(r.Length); s.fetching > most {
			return errTooLong
		}
	}
	rest, stream := s.chunks, len(s.inline)
	if h.Type == TypeNoMsg {
		if len(rest) == 0 || rest[0].pos != 0 || rest[0].n == 0 {
			return errNoCall
		}
		stream, rest = rest[0].n, rest[1:]
	}
	// in counts the bytes taken from the stream (inline or position 0), out is the offset in the
	// assembled message. A chunk needs a 4-byte aligned position at or behind out, and enough of
	// the stream in front of it.
	in, out := 0, 0
	for i := range rest {
		k := &rest[i]
		if k.pos == 0 || k.pos%4 != 0 || k.pos < out || k.pos-out > stream-in {
			return errBadPosition
		}
		in += k.pos - out
		out = k.pos + k.n + xdr.Pad(k.n)
	}
	for _, w := range h.Writes {
		s.roomLen += alignUp(min(w.Len(), most))
	}
	s.roomLen = min(s.roomLen, alignUp(most))
	return nil
}

// reserve reserves all the memory that the call is known to need: one block for the Read chunks,
// one for the Write chunks. If there is none now it reports false, and the connection is pumped
// again when there may be some. A call never holds one of the blocks while it waits for the
// other.
//
//	there is memory                       blocks are allocated
//	there is none                         the allocation waits in the queue of Memory
//	another slot of the connection waits  the slot waits behind it
//	the connection has its share          the slot waits for a call of the connection
func (s *slot) reserve() bool {
	c := s.c
	n := 0
	for i := range s.chunks {
		n += alignUp(s.chunks[i].n + xdr.Pad(s.chunks[i].n))
	}
	need := blockSize(n) + blockSize(s.roomLen)
	p, t := c.l.pool, &c.allocation
	var ok bool
	switch {
	case c.waiting == s:
		ok = p.claim(t)
	case c.waiting != nil: // another call of the connection waits with the allocation
	case c.bulkHeld > 0 && c.bulkHeld+need > p.ceiling(c.l.cfg.ConnMemory):
		// The connection has its share. A call of its own that completes pumps it again.
	default:
		t.n, t.m, t.have = n, s.roomLen, false
		if ok = p.allocBoth(t); !ok {
			c.waiting = s
			c.count()
		}
	}
	if !ok {
		if !s.waited {
			s.waited = true
			c.l.n.add(errMemoryWait)
		}
		return false
	}
	s.readMem, s.room = t.a, t.b
	t.a, t.b, t.have = nil, nil, false
	c.waiting = nil
	c.addBulk(need)
	at := 0
	for i := range s.chunks {
		k := &s.chunks[i]
		end := at + k.n + xdr.Pad(k.n)
		k.mem = s.readMem[at:end:end]
		clear(k.mem[k.n:])
		at = alignUp(end)
	}
	s.seg, s.off, s.reads, s.roomOff = 0, 0, 0, 0
	return true
}

// nextRead appends the next RDMA READ of the Read list to the collected ones. It reports false if
// that was the last of the call. A segment longer than ReadSize becomes several RDMA READs. Their
// completions arrive in order, and the last one of the last segment completes the message. The
// R_Key and the address are the client's: if they are wrong the READ fails, and the connection
// ends.
func (s *slot) nextRead() bool {
	c := s.c
	s.skipRead()
	r := &s.hdr.Reads[s.seg]
	// The bytes go behind those of the preceding segments of the same chunk.
	k := 0
	for s.chunks[k].pos != int(r.Position) {
		k++
	}
	at := s.off
	for i := s.seg - 1; i >= 0 && s.hdr.Reads[i].Position == r.Position; i-- {
		at += int(s.hdr.Reads[i].Length)
	}
	n := min(int(r.Length)-s.off, c.l.cfg.ReadSize)
	c.readSGEs = append(c.readSGEs, rdma.SGE{Buf: s.chunks[k].mem[at : at+n], LKey: c.l.pool.lkey})
	last := len(c.readSGEs)
	c.readWRs = append(c.readWRs, rdma.SendWR{
		ID: workID(idRead, s.index), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: c.readSGEs[last-1 : last : last],
		RemoteAddr: r.Offset + uint64(s.off), RKey: r.Handle,
	})
	s.off += n
	s.reads++
	c.reading += n
	return s.skipRead()
}

// skipRead moves seg and off behind segments that are read, and reports whether there is another
// one.
func (s *slot) skipRead() bool {
	for s.seg < len(s.hdr.Reads) && s.off == int(s.hdr.Reads[s.seg].Length) {
		s.seg, s.off = s.seg+1, 0
	}
	return s.seg < len(s.hdr.Reads)
}

// fetched counts an RDMA READ that completed. An RDMA READ that fails never arrives here: its
// completion has an error status and ends the connection (failed).
func (s *slot) fetched(n int) {
	s.c.l.n.readBytes.Add(uint64(n))
	s.c.readBytes.Add(uint64(n))
	s.reads--
	if s.reads == 0 && s.seg == len(s.hdr.Reads) {
		s.dispatch()
	}
}

// assemble lists the parts of the whole message: the stream (inline, or the chunk at position 0)
// with the other chunks at their positions. Nothing is copied.
//
//	RDMA_MSG      inline[0:p1]  chunk1+pad  inline[p1:...]  chunk2+pad  ...
//	RDMA_NOMSG    chunk0[0:p1]  chunk1+pad  chunk0[p1:...]  ...
//
// The parts refer to the receive buffer and to readMem. Both belong to the slot until drop, so the
// handler may use its arguments until it calls Reply.
func (s *slot) assemble() {
	s.parts = s.parts[:0]
	stream, rest := s.inline, s.chunks
	if s.hdr.Type == TypeNoMsg {
		stream, rest = rest[0].mem[:rest[0].n], rest[1:]
	}
	out := 0
	for i := range rest {
		k := &rest[i]
		if d := k.pos - out; d > 0 {
			s.parts = append(s.parts, stream[:d])
			stream = stream[d:]
		}
		if k.n > 0 {
			s.parts = append(s.parts, k.mem)
		}
		out = k.pos + len(k.mem)
	}
	s.parts = append(s.parts, stream)
}
