package perf

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// Work request IDs. A receive has that of its slot.
const (
	idData    = 1 << 32
	idControl = 1 << 33 // with the number of the message's slot
)

// end is one end of a connection: its queues, the messages of the test that it posts, and the
// messages of this package. It belongs to the loop.
//
// A receive is posted again after its completion, and a slot of a message is free again after the
// completion of its SEND. The data of the test is never read, so its buffers are used by several
// messages at a time.
type end struct {
	plan   plan
	server bool
	dev    rdma.Device
	loop   rdma.Loop
	mem    *buffers
	cq     rdma.CQ
	conn   rdma.Conn
	peer   remote

	// Callbacks of the owner: a message has arrived; the connection has failed; the answer to a
	// ping has arrived, or a READ or atomic of a test of latency has completed.
	message func(*message)
	failed  func(error)
	pong    func(at rdma.Time)

	// What is posted.
	gauge *gauge
	left  uint64 // messages that are not posted yet
	under int    // messages in flight
	most  int    // bound of under
	idle  func() // called once when all messages have completed; may be nil

	recvs []rdma.RecvWR // by slot
	spent []rdma.RecvWR // to be posted again
	wrs   []rdma.SendWR // alike: the message of the test
	ctrl  []rdma.SendWR // one for each slot
	pings int           // messages of ping and pong since one that completes
	busy  uint          // slots of messages in flight, a bit each
	wcs   [64]rdma.WC
	heard bool // something arrived since the last check of the idle timeout
	over  bool
}

var errFlooded = errors.New("the peer sent more than it may have under way")

// newEnd makes an end without a connection. The caller frees its buffers.
func newEnd(dev rdma.Device, loop rdma.Loop, p plan, server bool, mem *buffers) (*end, error) {
	e := &end{plan: p, server: server, dev: dev, loop: loop, mem: mem, gauge: new(gauge)}
	sends, recvs := p.queues(server)
	var err error
	if e.cq, err = dev.CreateCQ(loop, rdma.CQOptions{Depth: sends + recvs, OnEvent: e.completions}); err != nil {
		return nil, err
	}
	e.recvs, e.spent = make([]rdma.RecvWR, recvs), make([]rdma.RecvWR, 0, recvs)
	for i := range e.recvs {
		sgl := []rdma.SGE{{Buf: mem.slot(i), LKey: mem.slots.LKey()}}
		if mem.target != nil && p.op == Send && p.size > slotLen {
			// The rest of each message goes to the same memory, because nobody reads it.
			sgl = append(sgl, rdma.SGE{Buf: mem.target.Bytes()[:p.size-slotLen], LKey: mem.target.LKey()})
		}
		e.recvs[i] = rdma.RecvWR{ID: uint64(i), SGL: sgl}
	}
	if p.posts(server) {
		e.wrs = make([]rdma.SendWR, p.depth)
	}
	e.ctrl = make([]rdma.SendWR, controlDepth)
	for i := range e.ctrl {
		e.ctrl[i] = rdma.SendWR{
			ID: idControl + uint64(i), Op: rdma.OpSendImm, Flags: rdma.Signaled, Imm: magic,
			SGL: []rdma.SGE{{Buf: mem.slot(recvs + i)[:messageLen], LKey: mem.slots.LKey()}},
		}
	}
	return e, nil
}

// config describes the queue pair.
func (e *end) config() rdma.QPConfig {
	sends, recvs := e.plan.queues(e.server)
	return rdma.QPConfig{PD: e.mem.pd, SendCQ: e.cq, RecvCQ: e.cq, Caps: rdma.QPCaps{
		MaxSendWR: sends, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 2,
	}}
}

// prepare posts the receives, before the peer can send.
func (e *end) prepare(c rdma.Conn) error {
	e.conn = c
	return c.QP().PostRecv(e.recvs)
}

// size sets the length of the messages to n bytes.
func (e *end) size(n int) {
	e.most = e.plan.window(n)
	wr := rdma.SendWR{
		ID: idData, Op: e.plan.request(), Flags: rdma.Signaled, SwapAdd: 1,
		SGL: []rdma.SGE{{Buf: e.mem.source.Bytes()[:n], LKey: e.mem.source.LKey()}},
	}
	if e.plan.op != Send {
		wr.RemoteAddr, wr.RKey = e.peer.Addr, e.peer.RKey
	}
	for i := range e.wrs {
		e.wrs[i] = wr
	}
}

// post posts messages until most are in flight or none are left.
func (e *end) post() {
	n := int(min(e.left, uint64(e.most-e.under)))
	if n == 0 || e.over {
		return
	}
	e.gauge.post(now(), n)
	if err := e.conn.QP().PostSend(e.wrs[:n]); err != nil {
		e.fail(fmt.Errorf("posting: %w", err))
		return
	}
	e.left -= uint64(n)
	e.under += n
}

// signal chooses whether the next message of a test of latency has a completion, see pingSignal.
func (e *end) signal() {
	wr := &e.wrs[0]
	wr.Flags |= rdma.Signaled
	if e.pings++; e.plan.pingPong() && e.pings < pingSignal {
		wr.Flags &^= rdma.Signaled
		return
	}
	e.pings = 0
}

// ping posts one message.
func (e *end) ping() {
	e.signal()
	if err := e.conn.QP().PostSend(e.wrs[:1]); err != nil {
		e.fail(fmt.Errorf("posting: %w", err))
	}
}

// echo answers a message by one of n bytes.
func (e *end) echo(n int) {
	wr := &e.wrs[0]
	wr.SGL[0].Buf = e.mem.source.Bytes()[:min(n, e.plan.size)]
	e.signal()
	switch err := e.conn.QP().PostSend(e.wrs[:1]); {
	case errors.Is(err, rdma.ErrQueueFull):
		e.fail(errFlooded)
	case err != nil:
		e.fail(fmt.Errorf("posting: %w", err))
	}
}

// say sends a message of this package. A peer that requests more reports than it receives is an
// error.
func (e *end) say(m *message) {
	for i := range e.ctrl {
		if e.busy&(1<<i) != 0 {
			continue
		}
		m.encode(e.ctrl[i].SGL[0].Buf)
		e.busy |= 1 << i
		if err := e.conn.QP().PostSend(e.ctrl[i : i+1]); err != nil {
			e.fail(fmt.Errorf("posting: %w", err))
		}
		return
	}
	e.fail(errFlooded)
}

// completions is the callback of the completion queue.
func (e *end) completions() {
	done, came := 0, 0
	for !e.over {
		n := e.cq.Poll(e.wcs[:])
		if n == 0 {
			break
		}
		for i := range e.wcs[:n] {
			switch wc := &e.wcs[i]; {
			case e.over:
				return
			case wc.Status != rdma.Success:
				if wc.Status != rdma.WRFlushErr { // else the connection's event says why
					e.fail(fmt.Errorf("a message failed: %v", wc.Status))
				}
				return
			case wc.ID&idData != 0:
				done++
			case wc.ID&idControl != 0:
				e.busy &^= 1 << (wc.ID &^ idControl)
			case e.received(wc):
				came++
			}
		}
	}
	if e.over {
		return
	}
	if len(e.spent) > 0 {
		err := e.conn.QP().PostRecv(e.spent)
		e.spent = e.spent[:0]
		if err != nil {
			e.fail(fmt.Errorf("posting: %w", err))
			return
		}
	}
	e.heard = e.heard || came > 0
	switch {
	case e.plan.latency:
		if e.pong != nil && (came > 0 && e.plan.pingPong() || done > 0 && !e.plan.pingPong()) {
			e.pong(now())
		}
	case done > 0:
		e.under -= done
		e.gauge.complete(now(), done)
		e.post()
		if e.left == 0 && e.under == 0 && e.idle != nil && !e.over {
			idle := e.idle
			e.idle = nil
			idle()
		}
	}
}

// received handles the completion of a receive, and reports whether it was a message of the test.
// Messages of this package have an immediate.
func (e *end) received(wc *rdma.WC) bool {
	slot := int(wc.ID)
	e.spent = append(e.spent, e.recvs[slot])
	if wc.Op == rdma.WCRecv && wc.Flags&rdma.WithImm != 0 {
		var m message
		e.heard = true
		if err := m.decode(e.mem.slot(slot)[:min(slotLen, int(wc.ByteLen))]); err != nil {
			e.fail(err)
			return false
		}
		e.message(&m)
		return false
	}
	if e.server && e.plan.pingPong() {
		e.echo(int(wc.ByteLen))
	}
	return true
}

// fail calls failed, once.
func (e *end) fail(err error) {
	if e.over {
		return
	}
	e.over = true
	e.failed(err)
}

// close ends the connection, and calls then when the device does not use the end's memory any more.
// At the end of this turn the loop may still send packets from it, so then is called two turns
// later.
func (e *end) close(then func()) {
	e.over = true
	if e.conn != nil {
		e.conn.Close()
	}
	e.cq.Close()
	if !e.loop.Submit(func() {
		if !e.loop.Submit(then) {
			then()
		}
	}) {
		then()
	}
}
