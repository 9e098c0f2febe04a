package rpcrdma

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// serverConn is one connection of a Listener. All fields belong to the loop, except those marked
// otherwise.
//
// Each receive buffer has a slot. A call occupies its slot from the completion of the receive to
// the completion of the reply's SEND. The reply is sent from the same buffer, and only then is
// the buffer posted again:
//
//	posted --receive--> waiting (memory, RDMA READs) --> serving (handler)
//	  ^                                                     |
//	  +------------- completion of the SEND <--- replying --+
//
// The number of posted receives therefore bounds everything that a client can use. A client that
// sends more calls than its credits finds no receive and is slowed down by RNR NAKs.
type serverConn struct {
	l       *Listener
	loop    rdma.Loop
	conn    rdma.Conn
	cq      rdma.CQ
	handler Handler
	peer    rpc.Peer
	since   time.Time

	inlineOut int  // longest message to the client (RFC 8797)
	inlineIn  int  // longest message from it, as we said
	peerInval bool // the client supports remote invalidation (RFC 8797)

	mem   []byte  // the buffers of all receives
	slots []*slot // by receive; nil while the receive is posted
	spare []*slot // unused slots; at most as many as calls were in progress at once

	dead      bool           // nothing may be posted
	why       string         // why we ended the connection, for the post-mortem
	closed    bool           // conn is closed; the device uses no buffer of ours
	draining  bool           // the connection ends with its last call
	paused    bool           // messages are postponed, see Listener.Pause
	postponed []postponedMsg // oldest first
	released  bool

	grant    int   // credits granted; receives(grant) is at most owned
	unposted []int // receives that were given back and are not posted
	owned    int   // receives that are posted or hold a call
	received bool  // a message has arrived: pages of the receives are resident
	throttle throttle
	watchdog watchdog
	active   int // slots between the receive and the completion of the reply
	serving  int // slots in the handler

	// Calls that need bulk memory wait in one of two queues: memWaitReads if they have Read
	// chunks, memWait otherwise. order numbers the calls of both in their order of arrival.
	// readQueue has the calls with memory whose RDMA READs are not all posted.
	memWait, memWaitReads, readQueue slotQueue
	order                            uint64
	bulkHeld                         int        // bytes of bulk memory of all slots, rounded up to blocks
	depth                            int        // RDMA READs that may be in flight (initiator depth)
	readsFree                        int        // of these, how many are not in flight
	reading                          int        // bytes of RDMA READs in flight
	allocation                       allocation // the place in the queue for bulk memory
	waiting                          *slot      // the slot that waits with allocation; nil if none does
	countedUser                      bool       // the pool counts the connection as a user of bulk memory

	sqFree int // free entries of the send queue, those of RDMA READs apart
	// repliesInFlight are replies whose SEND has not completed. Their buffers are not posted.
	repliesInFlight int
	replies         slotQueue // replies that wait for room in the send queue

	sendRegions regions // registrations of reply memory outside the pool, kept for reuse

	repost []rdma.RecvWR // receives to post at the end of the turn
	wcs    [64]rdma.WC
	wrs    []rdma.SendWR // scratch, of the reply being built
	sges   []rdma.SGE    // scratch, of wrs
	// readWRs and readSGEs are the RDMA READs that pump collects. They are not wrs and sges,
	// because a reply can be posted in the middle of that.
	readWRs  []rdma.SendWR
	readSGEs []rdma.SGE
	recvs    []rdma.SGE // the scatter element of each receive

	probe prober
	back  backward

	first, last RPC // calls, for the post-mortem

	// For info, from any goroutine.
	calls, writeBytes, readBytes         atomic.Uint64
	creditsNow, activeNow, bulkNow, ords atomic.Int64
}

// Kinds of work requests, in the upper half of their IDs. The lower half is the slot, or the send
// buffer of a Client.
const (
	idReceive = iota
	idRead
	idWrite
	idSend
	idProbe
	idBackward
	idBind // a memory window of a client's call is bound
	idEnd  // the windows of a client's call are invalidated
)

// workID is the ID of a work request. Completions have it.
func workID(kind, slot int) uint64 { return uint64(kind)<<32 | uint64(slot) }

// sendQueueMin is the longest list of work requests of one reply: an RDMA WRITE for every segment
// of every chunk, 2 more for each Write chunk and 64 for results that cross the end of a segment,
// the SEND included.
const sendQueueMin = MaxSegments + 2*MaxWriteChunks + 64

// newServerConn makes the connection of a request. The client decides how many RDMA READs it serves
// at a time: the responder resources of its REQ (IBTA 12.6.5).
func newServerConn(l *Listener, req rdma.ConnRequest) (*serverConn, error) {
	cfg := &l.cfg
	depth := min(int(req.ResponderResources()), cfg.ReadDepth)
	if depth == 0 {
		return nil, errors.New("the client serves no RDMA READ (responder resources 0), so it could not write files")
	}
	peer := rpc.Peer{
		Addr: req.Remote(), Local: req.Local(), Transport: rpc.TransportRDMA, PKey: req.PKey(), Conn: rpc.NextConn(),
	}
	private, _ := ParsePrivate(req.PrivateData())
	// The sender of a REQ may be spoofed until it confirms the connection (RTU). Until then the
	// connection has the least memory; raiseInitial adds to it.
	grant := l.pool.addConn(min(cfg.Credits, floorCredits), cfg.Receive)
	if grant == 0 {
		return nil, l.noMemory()
	}
	return makeConn(l, req.Loop(), peer, private, depth, grant, receives(grant))
}

// makeConn makes the connection of a client that sent the private message private and serves depth
// RDMA READs at a time. The caller has charged the pool for owned receives, which are enough for
// grant credits. After an error makeConn has returned that memory to the pool.
func makeConn(
	l *Listener, loop rdma.Loop, peer rpc.Peer, private PrivateMessage, depth, grant, owned int,
) (*serverConn, error) {
	cfg := &l.cfg
	c := &serverConn{
		l: l, loop: loop, peer: peer, since: time.Now(),
		inlineOut: min(cfg.Inline, private.Receive), peerInval: private.RemoteInvalidation,
		depth: depth, readsFree: depth, sqFree: sendQueueMin + 2*cfg.Credits, grant: grant, owned: owned,
	}
	c.ords.Store(int64(depth))
	c.creditsNow.Store(1)
	c.allocation.wake = func() { c.loop.Submit(c.pump) }
	n := receives(cfg.Credits)
	c.mem = l.pool.block(&l.pool.recvBlocks, n*cfg.Receive)
	if c.mem == nil {
		l.pool.removeConn(c.owned * cfg.Receive)
		return nil, l.noMemory()
	}
	c.throttle.init(c)
	c.watchdog.c = c
	// A half-open connection has few receives. Anybody can ask for one, so it must cost little.
	c.slots, c.recvs = make([]*slot, 0, c.owned), make([]rdma.SGE, 0, c.owned)
	for range c.owned {
		c.newReceive()
	}
	var err error
	// Every work request may complete at once, by a flush: the CQ holds all of them.
	c.cq, err = l.dev.CreateCQ(c.loop, rdma.CQOptions{
		Depth: n + depth + c.sqFree + 1 + rpc.BackwardCalls, OnEvent: c.poll,
	})
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
	i, size := len(c.recvs), c.l.cfg.Receive
	c.recvs = append(c.recvs, rdma.SGE{Buf: c.mem[i*size : (i+1)*size : (i+1)*size], LKey: c.l.pool.lkey})
	c.slots = append(c.slots, nil)
	return i
}

// freeReceives returns the memory of the receives to the pool, and its pages to the system.
// Otherwise pages touched by many past clients would stay resident.
func (c *serverConn) freeReceives() {
	p := c.l.pool
	if c.received {
		p.discard(c.mem[:len(c.recvs)*c.l.cfg.Receive])
	}
	p.freeBlock(&p.recvBlocks, c.mem)
	p.removeConn(c.owned * c.l.cfg.Receive)
}

// accept answers the REQ. prepare posts the receives before the REP leaves (RFC 8166 section
// 3.3.1: the receiver posts as many receives as it grants credits).
func (c *serverConn) accept(req rdma.ConnRequest) error {
	cfg := &c.l.cfg
	c.inlineIn = cfg.Receive
	if said, _ := ParsePrivate(req.PrivateData()); said.Send <= cfg.Inline {
		c.inlineIn = cfg.Inline // as the servers that such a client knows, the kernel's for one
	}
	private := PrivateMessage{RemoteInvalidation: true, Send: cfg.Inline, Receive: c.inlineIn}.Append(nil)
	conn, err := req.Accept(c.qpConfig(), rdma.ConnParams{
		PrivateData: private, ResponderResources: 0, InitiatorDepth: uint8(c.readsFree), RetryCount: 7, RNRRetryCount: 7,
	}, c.prepare, c.event)
	if err != nil {
		return fmt.Errorf("accepting: %w", err)
	}
	c.adopt(conn)
	return nil
}

// qpConfig is the configuration of the connection's queue pair. Send entries are for RDMA READs,
// replies, one probe and the calls to the client.
func (c *serverConn) qpConfig() rdma.QPConfig {
	return rdma.QPConfig{PD: c.l.pd, SendCQ: c.cq, RecvCQ: c.cq, Caps: rdma.QPCaps{
		MaxSendWR: c.readsFree + c.sqFree + 1 + rpc.BackwardCalls, MaxRecvWR: receives(c.l.cfg.Credits),
		MaxSendSGE: 1, MaxRecvSGE: 1,
	}}
}

// prepare posts the receives before the client can send. The first receives of a restored
// connection have postponed messages in them already.
func (c *serverConn) prepare(conn rdma.Conn) error {
	c.conn = conn
	for i := len(c.postponed); i < c.owned; i++ {
		c.post(i)
	}
	return conn.QP().PostRecv(c.takeRepost())
}

// adopt sets the connection that Accept or RestoreConn returned.
func (c *serverConn) adopt(conn rdma.Conn) {
	c.conn = conn
	if a, ok := conn.(rdma.Annotated); ok {
		a.Annotate(c.note)
	}
}

// post collects receive i for postReceives. Its buffer belongs to the device until a message
// arrives, or until the queue pair is flushed.
func (c *serverConn) post(slot int) {
	c.repost = append(c.repost, rdma.RecvWR{ID: workID(idReceive, slot), SGL: c.recvs[slot : slot+1 : slot+1]})
}

func (c *serverConn) takeRepost() []rdma.RecvWR {
	r := c.repost
	c.repost = c.repost[:0]
	return r
}

// event handles an event of the connection. EventDisconnected is the last one: the queue pair has
// stopped, and has flushed its work requests.
func (c *serverConn) event(_ rdma.Conn, e rdma.ConnEvent) {
	switch e.Kind {
	case rdma.EventEstablished:
		c.l.cfg.Logger.Info("client connected", "peer", c.peer.Addr.String(), "inline", c.inlineOut,
			"read_depth", c.ords.Load(), "remote_invalidation", c.peerInval)
		c.raiseInitial()
		c.startProbe()
	default:
		c.countFailure()
		if e.Err != nil {
			c.l.cfg.Logger.Info("client gone", "peer", c.peer.Addr.String(), "reason", e.Err.Error())
		} else {
			c.l.cfg.Logger.Info("client gone", "peer", c.peer.Addr.String())
		}
		c.end()
	}
}

// fail ends the connection because of an error, which it counts and logs.
func (c *serverConn) fail(k counter, why error) {
	if c.dead {
		return
	}
	c.l.n.add(k)
	c.l.cfg.Logger.Warn("dropping a connection", "peer", c.peer.Addr.String(), "reason", why.Error())
	c.why = why.Error()
	c.disconnect()
}

// disconnect begins to end the connection. The queue pair flushes its work requests, and then the
// device reports EventDisconnected, for which end is called. Until then the device may still write
// to our buffers, so nothing is freed here.
func (c *serverConn) disconnect() {
	if c.dead || c.conn == nil {
		return
	}
	c.dead = true
	c.conn.Disconnect()
}

// startProbe starts probes, which end the connection if the client stops answering.
func (c *serverConn) startProbe() {
	c.probe.start(c.conn, serverProbe, func() bool { return !c.dead }, func(why error) { c.fail(errSendFailed, why) })
}

// drain ends the connection as soon as no call is in progress.
func (c *serverConn) drain() {
	c.draining = true
	c.throttle.release()
	if c.active == 0 {
		c.disconnect()
	}
}

// end cleans up after the queue pair has stopped. It frees the memory of every call except those
// in the handler, which still use it; the last of these to return calls release.
//
//	EventDisconnected --> end --> slots that wait or reply: drop
//	                          --> slots in the handler: finished drops them
//	last of them --> release: receives to the pool, handler closed, forget
func (c *serverConn) end() {
	if c.closed {
		return
	}
	c.dead, c.closed = true, true
	c.probe.stop()
	c.watchdog.stop()
	c.throttle.stop()
	c.cancelWait()
	c.conn.Close() // from here on the device uses no buffer of ours
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

// closeHandler closes the handler, once: no reply can be sent any more.
func (c *serverConn) closeHandler() {
	if h, ok := c.handler.(io.Closer); ok {
		h.Close()
	}
	c.handler = nil
}

// release returns the connection's resources when neither the device nor the handler uses them.
func (c *serverConn) release() {
	if c.released {
		return
	}
	c.released = true
	c.closeHandler()
	c.sendRegions.close()
	c.freeReceives()
	c.l.cfg.Limiter.Release(c.peer.Addr.Addr(), false)
	c.back.release()
	c.l.forget(c)
}

// slot assigns a slot to receive i, in which a message arrived.
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
