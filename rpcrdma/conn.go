package rpcrdma

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// ConnInfo describes a connection of a Listener.
type ConnInfo struct {
	Remote, Local netip.AddrPort
	Since         time.Time
	Calls         uint64
	// Credits is what the client was last granted, InUse how many of its calls
	// are in progress.
	Credits, InUse int
	// Memory is the bulk memory in bytes that those calls hold.
	Memory int
	// ReadDepth is the number of RDMA READs that may be in flight.
	ReadDepth int
	// InlineIn and InlineOut are the longest messages in bytes.
	InlineIn, InlineOut int
	// RDMAWriteBytes and RDMAReadBytes moved by the chunks of this client.
	RDMAWriteBytes, RDMAReadBytes uint64
	// RemoteInvalidation says that replies may invalidate the client's R_Key.
	RemoteInvalidation bool
}

// serverConn is one connection of a Listener. Everything in it belongs to the
// loop, except what is marked.
//
// It has a slot for each receive buffer. A call stays in its slot from the
// receive to the completion of its reply, which is sent from the same buffer;
// then the buffer is posted again. So the receives posted are the bound of
// everything, and a client that sends more than it was granted is held up by
// RNR NAKs.
type serverConn struct {
	l       *Listener
	loop    rdma.Loop
	conn    rdma.Conn
	cq      rdma.CQ
	handler Handler
	peer    rpc.Peer
	since   time.Time

	inlineOut int  // longest message we may send
	peerInval bool // the client lets us invalidate its R_Keys

	mem   []byte  // the buffers of all receives
	slots []*slot // of each receive, nil while nothing has come in it
	spare []*slot // as many as were in use at once, so that an idle client has few

	dead     bool   // nothing may be posted any more
	why      string // it was dropped, for its post-mortem
	closed   bool   // conn is closed, the provider holds no buffer
	draining bool
	keeping  bool   // see Listener.Pause
	kept     []kept // oldest first
	released bool
	grant    int   // the credits that there are receives for
	resting  []int // receives that are not posted, as there are fewer credits
	heard    bool  // a message has arrived: memory of the receives is in use
	owned    int   // the others, posted or with a call
	throttle throttle
	stall    stall
	active   int // slots between receive and completion of the reply
	serving  int // slots in the handler

	held int // bytes of bulk memory, with the rounding of the pool
	// admit are calls that wait for memory, fetch those that wait for the Read chunks of
	// others to be fetched first, and for memory then. came counts calls that came in either.
	admit, fetch slotQueue
	came         uint64
	pull         slotQueue // calls with RDMA READs to be posted
	depth        int       // RDMA READs that may be in flight
	readsFree    int
	reading      int    // bytes of RDMA READs in flight
	ticket       ticket // for bulk memory
	waits        *slot  // whose ticket it is, while it waits
	holding      bool   // counted as a holder of bulk memory

	sqFree  int
	unheard int       // replies that are posted, and whose buffers are not receives again
	replies slotQueue // replies that wait for room in the send queue

	lent regions // for memory that replies are sent from and that is not the pool's

	repost []rdma.RecvWR
	wcs    [64]rdma.WC
	wrs    []rdma.SendWR // scratch
	sges   []rdma.SGE    // scratch
	// readWRs and readSGEs are those of the RDMA READs that pump collects.
	readWRs  []rdma.SendWR
	readSGEs []rdma.SGE
	recvs    []rdma.SGE // the scatter element of each slot

	probe prober
	back  backward

	first, last RPC

	// For info, from any goroutine.
	calls, writeBytes, readBytes         atomic.Uint64
	creditsNow, activeNow, heldNow, ords atomic.Int64
}

// Kinds of work requests, in the upper half of their IDs; the slot is in the
// lower half.
const (
	idReceive = iota
	idRead
	idWrite
	idSend
	idProbe
	idBackward
	idBind // of a client's memory
	idEnd  // of a client's call, when its memory is closed
)

func workID(kind, slot int) uint64 { return uint64(kind)<<32 | uint64(slot) }

// sendQueueMin is room for the longest list of one reply: every segment of
// every chunk, cut where two pieces of the reply meet, and the SEND.
const sendQueueMin = MaxSegments + 2*MaxWriteChunks + 64

func newServerConn(l *Listener, req rdma.ConnRequest) (*serverConn, error) {
	cfg := &l.cfg
	depth := min(int(req.ResponderResources()), cfg.ReadDepth)
	if depth == 0 {
		return nil, errors.New("the client serves no RDMA READ (responder resources 0), so that it could not write files")
	}
	peer := rpc.Peer{Addr: req.Remote(), Local: req.Local(), Transport: rpc.TransportRDMA, PKey: req.PKey(), Conn: rpc.NextConn()}
	said, _ := ParsePrivate(req.PrivateData())
	// Who has not confirmed the connection may not even exist: it gets the least. See welcome.
	grant := l.pool.join(min(cfg.Credits, floorCredits), cfg.Inline)
	if grant == 0 {
		return nil, l.noMemory()
	}
	return makeConn(l, req.Loop(), peer, said, depth, grant, receives(grant))
}

// makeConn makes a connection to a client that has said so about its messages, and serves depth RDMA READs at a time. The
// memory of its receives, owned of them for the credits of grant, has been taken, and is given back if there is an error.
func makeConn(l *Listener, loop rdma.Loop, peer rpc.Peer, said PrivateMessage, depth, grant, owned int) (*serverConn, error) {
	cfg := &l.cfg
	c := &serverConn{
		l: l, loop: loop, peer: peer, since: time.Now(),
		inlineOut: min(cfg.Inline, said.Receive), peerInval: said.RemoteInvalidation,
		depth: depth, readsFree: depth, sqFree: sendQueueMin + 2*cfg.Credits, grant: grant, owned: owned,
	}
	c.ords.Store(int64(depth))
	c.creditsNow.Store(1)
	c.ticket.wake = func() { c.loop.Submit(c.woken) }
	n := receives(cfg.Credits)
	c.mem = l.pool.block(&l.pool.recvBlocks, n*cfg.Inline)
	if c.mem == nil {
		l.pool.leave(c.owned * cfg.Inline)
		return nil, l.noMemory()
	}
	c.throttle.init(c)
	c.stall.c = c
	// A half-open connection has few receives. Anybody can ask for one, so it must cost little.
	c.slots, c.recvs = make([]*slot, 0, c.owned), make([]rdma.SGE, 0, c.owned)
	for range c.owned {
		c.newReceive()
	}
	var err error
	c.cq, err = l.dev.CreateCQ(c.loop, rdma.CQOptions{Depth: n + depth + c.sqFree + 1 + rpc.BackwardCalls, OnEvent: c.poll})
	if err != nil {
		c.freeReceives()
		return nil, fmt.Errorf("creating a completion queue: %w", err)
	}
	c.back.init(c)
	if c.handler, err = l.open(peer, func() { c.loop.Submit(c.disconnect) }); err != nil {
		c.cq.Close()
		c.freeReceives()
		return nil, err
	}
	c.throttle.pacer, _ = c.handler.(Pacer)
	return c, nil
}

// newReceive makes the next receive of the connection's memory and returns its index.
func (c *serverConn) newReceive() int {
	i, size := len(c.recvs), c.l.cfg.Inline
	c.recvs = append(c.recvs, rdma.SGE{Buf: c.mem[i*size : (i+1)*size : (i+1)*size], LKey: c.l.pool.lkey})
	c.slots = append(c.slots, nil)
	return i
}

// freeReceives gives the memory of the receives back, to the system too: what many clients
// touched at some time would add up.
func (c *serverConn) freeReceives() {
	p := c.l.pool
	if c.heard {
		p.discard(c.mem[:len(c.recvs)*c.l.cfg.Inline])
	}
	p.freeBlock(&p.recvBlocks, c.mem)
	p.leave(c.owned * c.l.cfg.Inline)
}

// accept answers the request; the receives are posted before the client hears
// of it.
func (c *serverConn) accept(req rdma.ConnRequest) error {
	cfg := &c.l.cfg
	private := PrivateMessage{RemoteInvalidation: true, Send: cfg.Inline, Receive: cfg.Inline}.Append(nil)
	conn, err := req.Accept(c.qpConfig(), rdma.ConnParams{
		PrivateData: private, ResponderResources: 0, InitiatorDepth: uint8(c.readsFree), RetryCount: 7, RNRRetryCount: 7,
	}, c.prepare, c.event)
	if err != nil {
		return fmt.Errorf("accepting: %w", err)
	}
	c.adopt(conn)
	return nil
}

// qpConfig is what the connection asks of its queue pair.
func (c *serverConn) qpConfig() rdma.QPConfig {
	return rdma.QPConfig{PD: c.l.pd, SendCQ: c.cq, RecvCQ: c.cq, Caps: rdma.QPCaps{
		MaxSendWR: c.readsFree + c.sqFree + 1 + rpc.BackwardCalls, MaxRecvWR: receives(c.l.cfg.Credits), MaxSendSGE: 1, MaxRecvSGE: 1,
	}}
}

// prepare posts the receives, before the client can send.
func (c *serverConn) prepare(conn rdma.Conn) error {
	c.conn = conn
	for i := len(c.kept); i < c.owned; i++ {
		c.post(i)
	}
	return conn.QP().PostRecv(c.takeRepost())
}

// adopt takes the connection that was made.
func (c *serverConn) adopt(conn rdma.Conn) {
	c.conn = conn
	if a, ok := conn.(rdma.Annotated); ok {
		a.Annotate(c.note)
	}
}

func (c *serverConn) post(slot int) {
	c.repost = append(c.repost, rdma.RecvWR{ID: workID(idReceive, slot), SGL: c.recvs[slot : slot+1 : slot+1]})
}

func (c *serverConn) takeRepost() []rdma.RecvWR {
	r := c.repost
	c.repost = c.repost[:0]
	return r
}

func (c *serverConn) info() ConnInfo {
	return ConnInfo{
		Remote: c.peer.Addr, Local: c.peer.Local, Since: c.since, Calls: c.calls.Load(),
		Credits: int(c.creditsNow.Load()), InUse: int(c.activeNow.Load()), Memory: int(c.heldNow.Load()),
		ReadDepth: int(c.ords.Load()), InlineIn: c.l.cfg.Inline, InlineOut: c.inlineOut,
		RDMAWriteBytes: c.writeBytes.Load(), RDMAReadBytes: c.readBytes.Load(), RemoteInvalidation: c.peerInval,
	}
}

func (c *serverConn) event(_ rdma.Conn, e rdma.ConnEvent) {
	switch e.Kind {
	case rdma.EventEstablished:
		c.l.cfg.Logger.Info("client connected", "peer", c.peer.Addr.String(), "inline", c.inlineOut,
			"read_depth", c.ords.Load(), "remote_invalidation", c.peerInval)
		c.welcome()
		c.probe.start(c.conn, serverProbe, func() bool { return !c.dead })
	default:
		c.lastWords()
		if e.Err != nil {
			c.l.cfg.Logger.Info("client gone", "peer", c.peer.Addr.String(), "reason", e.Err.Error())
		} else {
			c.l.cfg.Logger.Info("client gone", "peer", c.peer.Addr.String())
		}
		c.end()
	}
}

// fail ends a connection that went wrong.
func (c *serverConn) fail(k counter, why error) {
	if c.dead {
		return
	}
	c.l.n.add(k)
	c.l.cfg.Logger.Warn("dropping a connection", "peer", c.peer.Addr.String(), "reason", why.Error())
	c.why = why.Error()
	c.disconnect()
}

// disconnect ends the connection; the rest happens at its event.
func (c *serverConn) disconnect() {
	if c.dead || c.conn == nil {
		return
	}
	c.dead = true
	c.conn.Disconnect()
}

// drain ends the connection as soon as no call is in progress.
func (c *serverConn) drain() {
	c.draining = true
	c.throttle.release()
	if c.active == 0 {
		c.disconnect()
	}
}

// end is the end of the connection. Calls that are in the handler keep their
// memory until they return.
func (c *serverConn) end() {
	if c.closed {
		return
	}
	c.dead, c.closed = true, true
	c.probe.stop()
	c.stall.stop()
	c.throttle.stop()
	c.noWait()
	c.conn.Close()
	c.cq.Close()
	c.back.end()
	c.closeHandler()
	for _, s := range c.slots {
		if s != nil && s.state != slotServing {
			s.drop()
		}
	}
	if c.serving == 0 {
		c.release()
	}
}

// closeHandler tells the handler, once, that nobody waits for replies.
func (c *serverConn) closeHandler() {
	if h, ok := c.handler.(io.Closer); ok {
		h.Close()
	}
	c.handler = nil
}

// release gives back what the connection holds, once nothing uses it.
func (c *serverConn) release() {
	if c.released {
		return
	}
	c.released = true
	c.closeHandler()
	c.lent.close()
	c.freeReceives()
	c.l.cfg.Limiter.Release(c.peer.Addr.Addr(), false)
	c.back.release()
	c.l.forget(c)
}

// poll handles completions.
func (c *serverConn) poll() {
	for {
		n := c.cq.Poll(c.wcs[:])
		if n == 0 {
			break
		}
		for i := range c.wcs[:n] {
			if c.dead {
				continue // flushed; end clears up
			}
			c.complete(&c.wcs[i])
		}
	}
	c.pump()
}

// failure says what a failed work request was for.
func failure(kind uint64) (string, counter) {
	switch kind {
	case idRead:
		return "fetching a Read chunk", errReadFailed
	case idWrite:
		return "filling a Write or Reply chunk", errWriteFailed
	case idSend:
		return "sending a reply", errSendFailed
	case idBackward:
		return "sending a call", errSendFailed
	case idProbe:
		return "asking whether the client is there", errPeerSilent
	}
	return "receiving", errReceiveFailed
}

// lastWords counts the failure that ended the connection, if its event came
// before the completion did.
func (c *serverConn) lastWords() {
	for !c.dead {
		n := c.cq.Poll(c.wcs[:])
		if n == 0 {
			return
		}
		for _, wc := range c.wcs[:n] {
			if wc.Status != rdma.Success && wc.Status != rdma.WRFlushErr {
				what, k := failure(wc.ID >> 32)
				c.fail(k, fmt.Errorf("%s: %v", what, wc.Status))
				return
			}
		}
	}
}

func (c *serverConn) complete(wc *rdma.WC) {
	index, kind := int(uint32(wc.ID)), wc.ID>>32
	if wc.Status == rdma.WRFlushErr {
		c.disconnect() // what follows the end of the connection; its event says why
		return
	}
	if wc.Status != rdma.Success {
		what, k := failure(kind)
		c.fail(k, fmt.Errorf("%s: %v", what, wc.Status))
		return
	}
	c.probe.heard = true
	switch kind {
	case idProbe:
		c.probe.answered()
	case idBackward:
		c.back.sent(index)
	case idReceive:
		c.heard = true
		if !c.keep(index, int(wc.ByteLen)) {
			c.arrived(index, int(wc.ByteLen))
		}
	case idRead:
		c.stall.progress = true
		c.readsFree++
		c.reading -= int(wc.ByteLen)
		c.slots[index].fetched(int(wc.ByteLen))
	case idSend:
		s := c.slots[index]
		c.stall.progress = true
		c.sqFree += s.posted
		c.unheard--
		if s.final {
			s.call.Delivery().Delivered()
		}
		s.recycle()
		c.keepUp()
	}
}

// arrived begins with a message that was received.
func (c *serverConn) arrived(index, n int) {
	c.active++
	c.activeNow.Store(int64(c.active))
	if c.active > c.grant-max(c.grant/4, 1) {
		c.grow()
		if c.dead {
			return
		}
	}
	c.slot(index).receive(n)
}

// firstGrant is how many credits a new client gets at most. Who uses most of what it was
// granted gets twice as many; the buffers of a client that never does are not touched.
const firstGrant = 16

// grow doubles the grant, as far as there is memory, and posts the receives for it before
// anyone hears of it.
func (c *serverConn) grow() {
	cfg := &c.l.cfg
	next := c.l.pool.allowed(min(2*c.grant, cfg.Credits), cfg.Inline)
	n := receives(next) // those of a larger grant of before may still be there
	if next <= c.grant || n > c.owned && !c.l.pool.grow((n-c.owned)*cfg.Inline, next, cfg.Inline) {
		return
	}
	c.extend(next, n)
}

// welcome gives a client that has confirmed its connection the credits that clients begin with, unless
// half of the memory for messages is taken.
func (c *serverConn) welcome() {
	cfg := &c.l.cfg
	next := min(cfg.Credits, firstGrant)
	n := receives(next)
	if !c.dead && next > c.grant && n > c.owned && c.l.pool.settle((n-c.owned)*cfg.Inline) {
		c.extend(next, n)
	}
}

// extend posts receives until there are n, for the credits of grant. Their memory has been taken.
func (c *serverConn) extend(grant, n int) {
	for ; c.owned < n; c.owned++ {
		if last := len(c.resting) - 1; last >= 0 {
			c.post(c.resting[last])
			c.resting = c.resting[:last]
		} else {
			c.post(c.newReceive())
		}
	}
	c.postReceives()
	c.grant = grant
}

// credits is what a reply grants now: what was asked for, as far as there are receives, memory
// is not short and the client keeps to its limits.
func (c *serverConn) credits(asked uint32) uint32 {
	most := c.l.pool.allowed(c.grant, c.l.cfg.Inline)
	n := min(most, c.throttle.cap, int(min(asked, 1<<16)))
	n = max(n, 1)
	c.creditsNow.Store(int64(n))
	return uint32(n)
}

// rest reports whether a receive whose call has ended is not to be posted again, because memory
// is short. Its client has heard by then, in the reply, of having one credit less.
func (c *serverConn) rest(i int) bool {
	cfg := &c.l.cfg
	most := c.l.pool.allowed(c.grant, cfg.Inline)
	if most < c.grant {
		c.l.n.add(creditsShort)
	}
	if c.owned <= receives(max(most, min(floorCredits, cfg.Credits))) {
		return false
	}
	c.owned--
	c.grant = min(c.grant, max(creditsOf(c.owned), 1))
	c.resting = append(c.resting, i)
	c.l.pool.discard(c.recvs[i].Buf)
	c.l.pool.shrink(cfg.Inline)
	return true
}

// slot gives the receive a slot for what came in it.
func (c *serverConn) slot(i int) *slot {
	var s *slot
	if n := len(c.spare); n > 0 {
		s = c.spare[n-1]
		c.spare = c.spare[:n-1]
	} else {
		s = newSlot(c)
	}
	s.index, s.buf = i, c.recvs[i].Buf
	c.slots[i] = s
	return s
}

// woken is pump, after there was no memory.
func (c *serverConn) woken() { c.pump() }

// noWait ends the wait for memory.
func (c *serverConn) noWait() {
	if c.waits != nil {
		c.waits = nil
		c.l.pool.cancel(&c.ticket)
		c.count()
	}
}

// pump does what became possible: it posts replies that waited for room, finds
// memory for calls that wait for it, starts RDMA READs and posts receives.
func (c *serverConn) pump() {
	if c.dead {
		return
	}
	for s := c.replies.head; s != nil && c.mayReply(len(s.wrs)); s = c.replies.head {
		c.replies.pop()
		s.postReply(s.wrs)
		s.unkeepReply()
	}
	c.readWRs, c.readSGEs = c.readWRs[:0], c.readSGEs[:0] // apart from what replies use
	for q := c.oldest(); q != nil && q.head.reserve(); q = c.oldest() {
		s := q.head
		q.pop()
		if s.fetching > 0 {
			c.pull.push(s)
			c.takeReads()
		} else {
			s.dispatch()
		}
	}
	c.startReads()
	c.postReceives()
}

// postReceives posts those that wait for it.
func (c *serverConn) postReceives() {
	if len(c.repost) > 0 && !c.dead && !c.draining {
		if err := c.conn.QP().PostRecv(c.takeRepost()); err != nil {
			c.fail(errReceiveFailed, fmt.Errorf("posting receives: %w", err))
		}
	}
}

// keepUp posts receives in the middle of many completions, once half of those beyond the credits wait: a device
// of the kernel takes the client's next calls while replies to the last ones are posted here.
func (c *serverConn) keepUp() {
	if len(c.repost) >= c.slack() {
		c.postReceives()
	}
}

// slack is half of the receives beyond the credits. So many may wait to be posted, and so many be the buffers of
// replies that are under way: a client that has its replies then finds receives for all its credits.
func (c *serverConn) slack() int { return max(min(extraReceives, 2*c.grant)/2, 1) }

// mayReply reports whether a reply of so many requests may be posted now. A device in user space tells of all that
// has arrived before it takes more; another takes calls from who has had the reply before it tells that.
func (c *serverConn) mayReply(requests int) bool {
	return requests <= c.sqFree && (!c.l.bounded || c.unheard < c.slack())
}

// oldest is the queue whose head came first, of those whose head may go on if there is memory
// for it, or the one whose head waits for memory: what that has been given nobody else could use. A call gets memory for its Read chunks no sooner than the first RDMA READ can be
// posted: so few blocks are in use at a time, the same ones again and again, and they stay in the
// processor's caches.
func (c *serverConn) oldest() *slotQueue {
	a, f := c.admit.head, c.fetch.head
	switch {
	case c.waits != nil && c.waits == f:
		return &c.fetch
	case c.waits != nil:
		return &c.admit
	case f != nil && (a == nil || f.came < a.came) && c.pull.head == nil && c.mayRead():
		return &c.fetch
	case a != nil:
		return &c.admit
	}
	return nil
}

// mayRead reports whether one more RDMA READ may be posted.
func (c *serverConn) mayRead() bool {
	return len(c.readWRs) < c.readsFree && c.reading < c.l.cfg.ReadBytes
}

// takeReads puts the RDMA READs that may be posted on the list.
func (c *serverConn) takeReads() {
	for s := c.pull.head; s != nil && c.mayRead(); s = c.pull.head {
		if !s.nextRead() {
			c.pull.pop()
		}
	}
}

// startReads posts what is on the list, and what came to be possible meanwhile.
func (c *serverConn) startReads() {
	c.takeReads()
	if len(c.readWRs) == 0 || c.dead {
		return
	}
	c.stall.start()
	c.readsFree -= len(c.readWRs)
	if err := c.conn.QP().PostSend(c.readWRs); err != nil {
		c.fail(errReadFailed, fmt.Errorf("posting RDMA READs: %w", err))
	}
}

// idle reports whether nothing of the client is waited for.
func (c *serverConn) idle() bool {
	return c.sqFree == sendQueueMin+2*c.l.cfg.Credits && c.readsFree == int(c.ords.Load())
}

func (c *serverConn) hold(n int) {
	c.held += n
	c.heldNow.Store(int64(c.held))
	c.count()
}

// count tells the memory whether the connection has some of it, or wants some.
func (c *serverConn) count() {
	switch is := c.held > 0 || c.waits != nil; {
	case is && !c.holding:
		c.l.pool.hold(1)
	case !is && c.holding:
		c.l.pool.hold(-1)
	}
	c.holding = c.held > 0 || c.waits != nil
}

// slotQueue is a list of slots, each of which is in one list at most.
type slotQueue struct{ head, tail *slot }

func (q *slotQueue) push(s *slot) {
	s.next = nil
	if q.tail == nil {
		q.head = s
	} else {
		q.tail.next = s
	}
	q.tail = s
}

func (q *slotQueue) pop() {
	s := q.head
	q.head = s.next
	if q.head == nil {
		q.tail = nil
	}
	s.next = nil
}
