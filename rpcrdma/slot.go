package rpcrdma

import (
	"errors"
	"fmt"
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

// slot is the call that arrived in a receive buffer, until the buffer is posted again.
//
// It belongs to the loop, except while it is slotServing: then it belongs to the handler, which
// may be on another goroutine, until the handler calls reply.
type slot struct {
	c     *serverConn
	index int    // of the receive
	buf   []byte // the receive buffer: the call's message, and later the reply
	size  int    // of the message that arrived, in bytes
	state slotState
	next  *slot  // in a slotQueue
	order uint64 // of arrival, among the calls that wait for memory

	arrived rdma.Time // when the message arrived
	limit   uint32    // the rate limit that applies, 0 for none
	due     rdma.Time // when the limit admits the call; 0 before the limit was asked
	delayed bool      // the call had to wait for its limit

	hdr    Header
	inline []byte // what followed the header, in buf
	call   rpc.Call
	finish func() // finished and pump, made once so that replying does not allocate
	dropIt bool   // for finish: send no reply
	waited bool   // the wait for memory is counted

	// final: the completion of the reply's SEND proves that the client keeps the reply, see
	// answer.
	final bool

	// key is the R_Key of all segments of the call, if there is only one (oneKey). The reply can
	// invalidate it: SEND with invalidate names a single key (RFC 8797).
	key    uint32
	oneKey bool

	// Read chunks. Their memory is one block of the pool. reads counts the RDMA READs in flight;
	// seg and off are where the next one begins.
	chunks   []readChunk
	readMem  []byte
	fetching int // bytes of Read chunks
	reads    int
	seg      int
	off      int
	parts    [][]byte // of the assembled message

	// Memory for results. room is reserved for the Write chunks before the call is served. extra
	// are blocks that the handler allocated beyond room. All of it, the registrations and the
	// borrowed memory are released by drop, when the SEND of the reply has completed.
	room    []byte
	roomLen int // bytes to reserve
	roomOff int // bytes of room in use
	extra   [][]byte
	mrs     []rdma.MR      // registrations for this reply alone
	loans   []rpc.Borrowed // memory that the reply is sent from without a copy

	posted int           // entries of the send queue that the reply takes
	wrs    []rdma.SendWR // the reply, while it waits for room in the send queue
	sges   []rdma.SGE    // of wrs
}

// newSlot makes a slot. Slots are reused, and most connections need few of them.
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

// Errors of a Read list. The call is answered with ERR_CHUNK.
var (
	errBadPosition = errors.New("rpcrdma: a Read chunk lies where it cannot belong")
	errTooLong     = errors.New("rpcrdma: Read chunks longer than allowed")
	errNoCall      = errors.New("rpcrdma: RDMA_NOMSG without a call in a chunk")
)

// receive handles a message of n bytes in buf.
//
// Errors are answered as RFC 8166 section 4.5 says: an unknown version with ERR_VERS, a header that
// does not decode with ERR_CHUNK, a message too short for a header not at all. RDMA_MSGP is refused
// and RDMA_DONE ignored (both are obsolete, section 4.6). A client may send any of this at will,
// so each case only counts and reuses the buffer.
//
//	message                              answer                    counter
//	too short                            none                      rpcrdma_short_message
//	another version                      ERR_VERS                  rpcrdma_version_mismatch
//	more segments than the limits        ERR_CHUNK                 rpcrdma_too_many_segments
//	other errors of the header           ERR_CHUNK                 rpcrdma_malformed_header
//	RDMA_MSGP                            ERR_CHUNK                 rpcrdma_obsolete_message
//	RDMA_DONE, RDMA_ERROR                none                      recv_rdma_done, recv_rdma_error
//	Read chunks beyond MaxMessage        ERR_CHUNK                 rpcrdma_call_too_long
//	Read chunks at wrong positions       ERR_CHUNK                 rpcrdma_bad_read_position
//	a reply                              none                      see backward.receive
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
	s.limit, s.due, s.delayed = 0, 0, false
	if s.fetching == 0 && s.roomLen == 0 {
		s.dispatch()
		return
	}
	if !c.throttle.delay(s) {
		s.queue()
	}
}

// dispatch passes the call to the handler. The XID of the RPC header must be that of the transport
// header (RFC 8166 section 4.2.1).
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

// replyOverhead is room for the rest of a reply whose bulk result is in the same message.
const replyOverhead = 256

// bulkMax is how long the first bulk result may be: the first Write chunk, or else the room in the
// message or in the Reply chunk.
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

// bulkNext is rpc.Call.BulkNext: the room for the next bulk result. Bulk results and Write chunks
// are paired in order (RFC 8166 section 4.3.2); without a chunk the result shares the message or
// the Reply chunk with the rest.
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
			n -= xdr.Padded(len(e.Refs[j].Data))
		}
	}
	return max(n-replyOverhead, 0)
}

// reply is rpc.Call.Reply. On another goroutine it passes the slot back to the loop.
func (s *slot) reply(call *rpc.Call, drop bool) {
	s.dropIt = drop
	if call.Detached() {
		s.c.loop.Submit(s.finish) // if the loop has ended, its device and our memory have too
		return
	}
	s.finished()
}

// finished sends the reply in s.call.Res, or releases the call if the connection is gone.
func (s *slot) finished() {
	c := s.c
	c.serving--
	s.state = slotReplying
	if !s.delayed {
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

// idleBufferMax is the largest encoder buffer that an idle slot retains for its next reply.
const idleBufferMax = 16 << 10

// drop releases all resources of the call except the receive buffer. The caller has made sure
// that the device does not use them: the SEND of the reply completed, nothing was posted, or the
// connection is closed.
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
	s.c.sendRegions.put(s.mrs, most)
	clear(s.mrs)
	s.mrs = s.mrs[:0]
	for _, b := range s.loans {
		b.Release()
	}
	clear(s.loans)
	s.loans = s.loans[:0]
	s.c.addBulk(-held)
	clear(s.parts)
	clear(s.chunks)
	s.clearSavedReply()
	s.roomOff, s.roomLen = 0, 0
	s.call.Res.Reset()
	if cap(s.call.Res.B) > idleBufferMax {
		s.call.Res.B = nil
	}
	s.call.Args = xdr.Decoder{}
	s.state = slotPosted
}

// recycle ends the call. Its buffer is posted again at the end of the turn, with others.
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
	if !c.retireReceive(s.index) {
		c.post(s.index)
	}
}

func (s *slot) fail(k counter, format string, args ...any) {
	s.c.fail(k, fmt.Errorf(format, args...))
}
