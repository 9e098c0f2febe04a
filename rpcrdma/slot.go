package rpcrdma

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

type slotState uint8

const (
	slotPosted   slotState = iota // the buffer is posted for a receive
	slotWaiting                   // for memory, or for its Read chunks
	slotServing                   // in the handler
	slotReplying                  // until the SEND of the reply completes
)

// slot is the call that came in a receive buffer, until the buffer is posted again.
type slot struct {
	c     *serverConn
	index int
	buf   []byte // the message, and later the reply
	size  int    // of the message that came, in bytes
	state slotState
	next  *slot // in a slotQueue
	came  uint64
	// arrived is when the message did.
	arrived rdma.Time
	limit   uint32    // that it is under
	due     rdma.Time // when that lets it go on; 0 before it has asked
	held    bool      // it had to wait for that

	hdr    Header
	inline []byte // what followed the header
	call   rpc.Call
	finish func() // the call's reply, on the loop
	dropIt bool   // for finish: send no reply
	waited bool   // for memory; counted

	// final: when the SEND of the reply completes, the client has the reply for good.
	final bool

	// The reply may invalidate this key, if there is exactly one in the call.
	key    uint32
	oneKey bool

	// Read chunks. Their memory is one block; reads counts the RDMA READs
	// that are not complete, seg and off are where the next one starts.
	chunks   []readChunk
	readMem  []byte
	fetching int // bytes of Read chunks
	reads    int
	seg      int
	off      int
	parts    [][]byte // of the assembled message

	// Memory for results: room was set aside for the Write chunks before the
	// call was served, extra was asked for beyond it.
	room    []byte
	roomLen int // bytes to set aside
	roomOff int // bytes of room that are handed out
	extra   [][]byte
	mrs     []rdma.MR // registrations for this reply alone
	loans   []rpc.Borrowed

	posted int           // entries of the send queue that the reply takes
	wrs    []rdma.SendWR // the reply, while it may not be posted
	sges   []rdma.SGE    // of it
}

// readChunk is a chunk of the Read list: n bytes that belong at offset pos of
// the message.
type readChunk struct {
	pos, n int
	mem    []byte // n bytes, and their padding
}

func newSlot(c *serverConn) *slot {
	s := &slot{c: c}
	s.call.Peer, s.call.Back = c.peer, c.back.calls
	s.call.TransportData = s
	s.call.Alloc = s.alloc
	if c.l.volatile {
		s.call.Loans = s
	}
	s.call.BulkNext = s.bulkNext
	s.call.Reply = s.reply
	s.finish = func() {
		s.finished()
		c.pump()
	}
	return s
}

// Errors of a Read list.
var (
	errBadPosition = errors.New("rpcrdma: a Read chunk lies where it cannot belong")
	errTooLong     = errors.New("rpcrdma: Read chunks longer than allowed")
	errNoCall      = errors.New("rpcrdma: RDMA_NOMSG without a call in a chunk")
)

// alignment of chunks in memory, so that decoded data starts on a cache line.
const chunkAlign = 64

func alignUp(n int) int { return (n + chunkAlign - 1) &^ (chunkAlign - 1) }

// receive takes a message that arrived.
func (s *slot) receive(n int) {
	c := s.c
	count := &c.l.n
	count.inline.Add(uint64(n))
	s.state = slotWaiting
	s.size = n
	s.arrived = c.loop.Now()
	var err error
	s.inline, err = s.hdr.Parse(s.buf[:n])
	if err == nil && s.hdr.Type == TypeMsg && rpc.IsReply(s.inline) {
		count.add(recvMsg)
		c.back.receive(s)
		return
	}
	switch {
	case errors.Is(err, ErrShort):
		count.add(errShort)
		s.recycle()
		return
	case errors.Is(err, ErrVersion):
		count.add(errVersion)
		s.refuse(CodeVers)
		return
	case errors.Is(err, ErrTooComplex):
		count.add(errTooComplex)
		s.refuse(CodeChunk)
		return
	case err != nil:
		count.add(errMalformed)
		s.refuse(CodeChunk)
		return
	}
	switch s.hdr.Type {
	case TypeMsgP:
		count.add(recvMsgP)
		count.add(errObsolete)
		s.refuse(CodeChunk)
		return
	case TypeDone:
		count.add(recvDone)
		s.recycle()
		return
	case TypeError:
		count.add(recvError)
		s.recycle()
		return
	case TypeMsg:
		count.add(recvMsg)
		if len(s.inline) < 8 {
			count.add(errShort)
			s.recycle()
			return
		}
	case TypeNoMsg:
		count.add(recvNoMsg)
	}
	if err := s.plan(); err != nil {
		if errors.Is(err, errTooLong) {
			count.add(errCallTooLong)
		} else {
			count.add(errPosition)
		}
		s.refuse(CodeChunk)
		return
	}
	c.calls.Add(1)
	s.call.Reset()
	s.limit, s.due, s.held = 0, 0, false
	if s.fetching == 0 && s.roomLen == 0 {
		s.dispatch()
		return
	}
	if !c.throttle.hold(s) {
		s.queue()
	}
}

// queue has the call wait for its memory.
func (s *slot) queue() {
	c := s.c
	c.came++
	s.came = c.came
	if s.fetching > 0 {
		c.fetch.push(s)
	} else {
		c.admit.push(s)
	}
}

// plan groups the Read list into chunks and checks that the message can be put
// together from them, before anything is fetched or set aside.
func (s *slot) plan() error {
	h, most := &s.hdr, s.c.l.cfg.MaxMessage
	s.key, s.oneKey = h.oneKey()
	s.waited = false
	s.chunks, s.fetching, s.roomLen = s.chunks[:0], 0, 0
	slices.SortStableFunc(h.Reads, func(a, b ReadSegment) int {
		switch {
		case a.Position < b.Position:
			return -1
		case a.Position > b.Position:
			return 1
		}
		return 0
	})
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
	in, out := 0, 0 // consumed of the stream, offset in the message
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

// reserve sets aside the memory that the call is known to need. If there is
// none now, it reports false and the connection will be pumped again.
func (s *slot) reserve() bool {
	c := s.c
	n := 0
	for i := range s.chunks {
		n += alignUp(s.chunks[i].n + xdr.Pad(s.chunks[i].n))
	}
	need := blockSize(n) + blockSize(s.roomLen)
	p, t := c.l.pool, &c.ticket
	var ok bool
	switch {
	case c.waits == s:
		ok = p.claim(t)
	case c.waits != nil: // another call of the connection has the turn
	case c.held > 0 && c.held+need > p.ceiling(c.l.cfg.ConnMemory): // until one of its own calls completes
	default:
		t.n, t.m, t.have = n, s.roomLen, false
		if ok = p.allocBoth(t); !ok {
			c.waits = s
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
	c.waits = nil
	c.hold(need)
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

// nextRead appends the next RDMA READ of the Read list to the connection's
// list. It reports false if that was the last.
func (s *slot) nextRead() bool {
	c := s.c
	for s.seg < len(s.hdr.Reads) && s.off == int(s.hdr.Reads[s.seg].Length) {
		s.seg, s.off = s.seg+1, 0
	}
	r := &s.hdr.Reads[s.seg]
	// Where the bytes go: past those of the segments before it in its chunk.
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
	for s.seg < len(s.hdr.Reads) && s.off == int(s.hdr.Reads[s.seg].Length) {
		s.seg, s.off = s.seg+1, 0
	}
	return s.seg < len(s.hdr.Reads)
}

// fetched counts an RDMA READ that completed.
func (s *slot) fetched(n int) {
	s.c.l.n.readBytes.Add(uint64(n))
	s.c.readBytes.Add(uint64(n))
	s.reads--
	if s.reads == 0 && s.seg == len(s.hdr.Reads) {
		s.dispatch()
	}
}

// assemble lists the parts of the whole message: what is inline or in the
// chunk at position 0, with the other chunks put in where they belong.
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

// dispatch hands the call to the handler.
func (s *slot) dispatch() {
	c := s.c
	s.assemble()
	if len(s.parts[0]) < 4 || rpc.ReplyXID(s.parts[0]) != s.hdr.XID {
		c.l.n.add(errXID)
		s.refuse(CodeChunk)
		return
	}
	c.last.parse(s.parts[0])
	if c.first == (RPC{}) {
		c.first = c.last
	}
	s.call.BulkMax = s.bulkMax()
	s.call.Meta.Fetch = time.Duration(c.loop.Now() - s.arrived)
	s.state = slotServing
	c.serving++
	c.handler.Dispatch(&s.call, xdr.NewSegmented(s.parts), false)
}

// replyOverhead is what a reply with a bulk result holds beside it when the
// bulk result is to travel in the same message.
const replyOverhead = 256

// bulkMax is how long the first bulk result may be.
func (s *slot) bulkMax() int {
	h := &s.hdr
	if len(h.Writes) > 0 && h.Writes[0].Len() > 0 {
		return min(h.Writes[0].Len(), s.c.l.cfg.MaxMessage)
	}
	n := s.c.inlineOut - minMessage
	if h.HasReply {
		n = max(n, min(h.Reply.Len(), s.c.l.cfg.MaxMessage))
	}
	return max(n-replyOverhead, 0)
}

// bulkNext is rpc.Call.BulkNext: the next bulk result goes into its own Write chunk,
// or has what is left of the message or the Reply chunk.
func (s *slot) bulkNext() int {
	h, e, most := &s.hdr, &s.call.Res, s.c.l.cfg.MaxMessage
	i := len(e.Refs)
	if i < len(h.Writes) && h.Writes[i].Len() > 0 {
		return min(h.Writes[i].Len(), most)
	}
	n := s.c.inlineOut - h.Len()
	if h.HasReply {
		n = max(n, min(h.Reply.Len(), most))
	}
	n -= len(e.B)
	for j := range e.Refs {
		if j >= len(h.Writes) || h.Writes[j].Len() == 0 {
			n -= padded(len(e.Refs[j].Data))
		}
	}
	return max(n-replyOverhead, 0)
}

// alloc is rpc.Call.Alloc. The slot belongs to the handler during its call.
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

// Borrows implements rpc.Lender: what has a Write chunk of its own goes there as it is.
func (s *slot) Borrows(call *rpc.Call, n int) bool {
	i, h := len(call.Res.Refs), &s.hdr
	return i < len(h.Writes) && n <= h.Writes[i].Len() && len(s.loans) < MaxWriteChunks
}

// Borrow implements rpc.Lender.
func (s *slot) Borrow(b rpc.Borrowed) {
	s.loans = append(s.loans, b)
	s.c.l.n.lent.Add(uint64(len(b.Bytes())))
}

// lender is who lent the memory that b lies in, or nil.
func (s *slot) lender(b []byte) rdma.Volatile {
	for _, l := range s.loans {
		if inside(b, l.Bytes()) {
			return l
		}
	}
	return nil
}

// reply is rpc.Call.Reply.
func (s *slot) reply(call *rpc.Call, drop bool) {
	s.dropIt = drop
	if call.Detached() {
		s.c.loop.Submit(s.finish) // if it ended, so did everything we could release
		return
	}
	s.finished()
}

// finished sends the reply that the handler left in the call.
func (s *slot) finished() {
	c := s.c
	c.serving--
	s.state = slotReplying
	if !s.held {
		c.throttle.served(s.call.Deferred())
	}
	switch {
	case c.dead:
		if c.closed {
			s.drop()
			if c.serving == 0 {
				c.release()
			}
		}
	case s.dropIt:
		s.recycle()
	default:
		s.answer()
	}
}

// keepMax is the most memory that an idle slot keeps for its next reply.
const keepMax = 16 << 10

// drop gives back everything that the call holds.
func (s *slot) drop() {
	held := 0
	for _, b := range [...][]byte{s.readMem, s.room} {
		held += blockSize(len(b))
		s.c.l.pool.free(b)
	}
	s.readMem, s.room = nil, nil
	for _, b := range s.extra {
		s.c.l.pool.free(b)
	}
	clear(s.extra)
	s.extra = s.extra[:0]
	most := receives(s.c.l.cfg.Credits)
	if s.c.closed {
		most = 0
	}
	s.c.lent.put(s.mrs, most)
	clear(s.mrs)
	s.mrs = s.mrs[:0]
	for _, b := range s.loans {
		b.Release()
	}
	clear(s.loans)
	s.loans = s.loans[:0]
	s.c.hold(-held)
	clear(s.parts)
	clear(s.chunks)
	s.unkeepReply()
	s.roomOff, s.roomLen = 0, 0
	s.call.Res.Reset()
	if cap(s.call.Res.B) > keepMax {
		s.call.Res.B = nil
	}
	s.call.Args = xdr.Decoder{}
	s.state = slotPosted
}

// recycle ends the call and posts its buffer again, at the end of the turn.
func (s *slot) recycle() {
	s.drop()
	c := s.c
	c.active--
	c.activeNow.Store(int64(c.active))
	if c.draining {
		if c.active == 0 {
			c.disconnect()
		}
		return
	}
	c.slots[s.index] = nil
	c.spare = append(c.spare, s)
	if !c.rest(s.index) {
		c.post(s.index)
	}
}

func (s *slot) fail(k counter, format string, args ...any) {
	s.c.fail(k, fmt.Errorf(format, args...))
}
