package rpcrdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// What follows runs on the client's loop.

// replyHeaderMax is the RPC header of an accepted reply with an empty
// verifier, with some room for a longer one.
const replyHeaderMax = 24 + 40

// start sends a call or, when there is no credit for it, lets it wait.
func (c *Client) start(x *exchange) {
	switch {
	case c.closed:
		x.finish(c.Err())
	case c.waiting.head != nil || c.inflight >= c.credits || !c.room():
		c.waiting.push(x)
	default:
		c.send(x)
	}
}

// giveUp ends a call whose caller does not want to wait any longer. Its credit
// is not free before the server has answered.
func (c *Client) giveUp(x *exchange, why error) {
	switch {
	case x.over, x.closing:
		return
	case x.queued:
		c.waiting.remove(x)
	default:
		c.retire(x)
		delete(c.calls, x.xid)
		c.orphans[x.xid] = struct{}{}
	}
	x.finish(why)
}

// retire closes the call's memory to the server.
func (c *Client) retire(x *exchange) {
	if c.win != nil {
		c.win.cut(x)
		return
	}
	most := c.cfg.Credits
	if c.closed {
		most = 0
	}
	c.spare.put(x.mrs, most)
	clear(x.mrs)
	x.mrs = x.mrs[:0]
}

// finish tells the caller.
func (x *exchange) finish(err error) {
	if !x.over {
		x.over = true
		x.done <- err
	}
}

// open finds or makes a region for b.
func (c *Client) open(b []byte, access rdma.Access) (rdma.MR, error) {
	if !c.device(b) { // whose memory no other region can have
		if mr, err := c.spare.take(b, access); mr != nil || err != nil {
			return mr, err
		}
	}
	if r := c.registered(b); r != nil {
		return r.Window(b, access)
	}
	return c.pd.Register(b, access)
}

// expose opens memory to the server until the call is retired.
func (c *Client) expose(x *exchange, b []byte, access rdma.Access) (Segment, error) {
	if c.win != nil {
		seg, err := c.win.expose(x, b, access)
		if err != nil {
			err = fmt.Errorf("rpcrdma: opening %d bytes to the server: %w", len(b), err)
		}
		return seg, err
	}
	mr, err := c.open(b, access)
	if err != nil {
		return Segment{}, fmt.Errorf("rpcrdma: opening %d bytes to the server: %w", len(b), err)
	}
	x.mrs = append(x.mrs, mr)
	return Segment{Handle: mr.RKey(), Length: uint32(len(b)), Offset: mr.Addr()}, nil
}

// send sends a call.
func (c *Client) send(x *exchange) {
	_, known := c.calls[x.xid]
	if _, orphan := c.orphans[x.xid]; known || orphan {
		x.finish(ErrXIDInUse)
		return
	}
	i := c.sendFree[len(c.sendFree)-1]
	b, err := c.encode(x, c.sends[i].Buf[:0])
	if err != nil {
		if c.win != nil {
			c.win.unused(x)
		} else {
			c.retire(x)
		}
		x.finish(err)
		return
	}
	c.sendFree = c.sendFree[:len(c.sendFree)-1]
	c.calls[x.xid] = x
	c.inflight++
	c.n.inline.Add(uint64(len(b)))
	if err := c.postMessage(i, b); err != nil {
		c.fail(fmt.Errorf("posting a call: %w", err))
	}
}

func (c *Client) postMessage(i int, b []byte) error {
	c.sge[0] = rdma.SGE{Buf: b, LKey: c.mr.LKey()}
	c.wr[0] = rdma.SendWR{ID: workID(idSend, i), Op: rdma.OpSend, Flags: rdma.Signaled, SGL: c.sge[:]}
	if c.win != nil {
		return c.win.post(i, c.wr[0])
	}
	return c.conn.QP().PostSend(c.wr[:])
}

// encode decides which memory the call opens to the server and encodes the
// message into b, whose capacity is that of a send buffer.
func (c *Client) encode(x *exchange, b []byte) ([]byte, error) {
	h, e := &x.offered, &x.call
	h.Reset()
	h.XID, h.Version, h.Credits, h.Type = x.xid, Version, uint32(c.cfg.Credits), TypeMsg
	if err := c.offerResults(x); err != nil {
		return nil, err
	}
	device := false
	if len(c.devices) > 0 {
		device = slices.ContainsFunc(e.Refs, func(r xdr.Ref) bool { return c.device(r.Data) })
	}
	if h.Len()+e.Len() <= c.inlineOut && !device {
		c.n.add(sentMsg)
		return e.AppendFlat(h.Append(b)), nil
	}
	bulk := 0
	for _, r := range e.Refs {
		if len(r.Data) > 0 {
			bulk++
		}
	}
	if bulk > 0 && bulk <= MaxReadSegments && h.Len()+bulk*readEntryLen+len(e.B) <= c.inlineOut {
		// A Read chunk for each bulk argument; its position counts the bytes
		// and padding of those before it.
		moved := 0
		for _, r := range e.Refs {
			if len(r.Data) == 0 {
				continue
			}
			seg, err := c.expose(x, r.Data, rdma.RemoteRead)
			if err != nil {
				return nil, err
			}
			h.Reads = append(h.Reads, ReadSegment{Position: uint32(r.At + moved), Segment: seg})
			moved += padded(len(r.Data))
			c.n.readBytes.Add(uint64(len(r.Data)))
		}
		c.n.add(sentMsg)
		return append(h.Append(b), e.B...), nil
	}
	return c.encodeLong(x, b)
}

// encodeLong has the server read the whole call from a chunk at position 0,
// which is made of the pieces where they lie.
func (c *Client) encodeLong(x *exchange, b []byte) ([]byte, error) {
	h, e := &x.offered, &x.call
	h.Type = TypeNoMsg
	at := 0
	var pieces [][]byte
	for _, r := range e.Refs {
		if len(r.Data) == 0 {
			continue
		}
		pieces = append(pieces, e.B[at:r.At], r.Data)
		if p := xdr.Pad(len(r.Data)); p > 0 {
			pieces = append(pieces, zeroPad[:p])
		}
		at = r.At
	}
	pieces = append(pieces, e.B[at:])
	for _, p := range pieces {
		if len(p) == 0 {
			continue
		}
		if len(h.Reads) == MaxReadSegments {
			return nil, ErrCallTooLong
		}
		seg, err := c.expose(x, p, rdma.RemoteRead)
		if err != nil {
			return nil, err
		}
		h.Reads = append(h.Reads, ReadSegment{Segment: seg})
	}
	if h.Len() > c.inlineOut {
		return nil, ErrCallTooLong
	}
	c.n.readBytes.Add(uint64(e.Len()))
	c.n.add(sentNoMsg)
	return h.Append(b), nil
}

// offerResults opens memory for the results, as far as they may not fit into a
// message: dst for the bulk result, room for everything else.
func (c *Client) offerResults(x *exchange) error {
	h := &x.offered
	rest := x.resMax + replyHeaderMax
	// A device's memory is filled by the server, or not at all.
	x.hasBulk = len(c.devices) > 0 && c.device(x.dst)
	if minMessage+rest+padded(len(x.dst)) <= c.inlineIn && !x.hasBulk {
		return nil
	}
	if len(x.dst) > 0 {
		seg, err := c.expose(x, x.dst, rdma.LocalWrite|rdma.RemoteWrite)
		if err != nil {
			return err
		}
		h.segs = append(h.segs, seg)
		h.Writes = append(h.Writes, h.segs[:1:1])
		if h.Len()+rest <= c.inlineIn {
			return nil
		}
	}
	n := padded(rest)
	var room []byte
	if c.win != nil && c.win.room(x, n) {
		room = x.lent
	} else {
		if cap(x.room) < n {
			x.room = make([]byte, n)
		}
		x.room = x.room[:n]
		room = x.room
	}
	seg, err := c.expose(x, room, rdma.LocalWrite|rdma.RemoteWrite)
	if err != nil {
		return err
	}
	h.HasReply, h.Reply = true, Chunk{seg}
	return nil
}

// receive takes a message from the server, and what its completion says of it. It does not keep msg.
func (c *Client) receive(msg []byte, wc *rdma.WC) {
	h := &c.hdr
	c.n.inline.Add(uint64(len(msg)))
	rest, err := h.Parse(msg)
	if err != nil {
		c.n.add(errMalformed)
		return
	}
	switch h.Type {
	case TypeMsg:
		c.n.add(recvMsg)
		if len(h.Reads)+len(h.Writes) == 0 && !h.HasReply && len(rest) >= 8 && binary.BigEndian.Uint32(rest[4:]) == rpc.MsgCall {
			c.called(h.XID, rest)
			return
		}
	case TypeNoMsg:
		c.n.add(recvNoMsg)
	case TypeError:
		c.n.add(recvError)
	default:
		c.n.add(errObsolete)
		return
	}
	x := c.calls[h.XID]
	_, orphan := c.orphans[h.XID]
	if x == nil && !orphan {
		c.n.add(errXID)
		return
	}
	c.inflight--
	c.credits = int(min(max(int64(h.Credits), 1), int64(c.cfg.Credits)))
	if orphan {
		delete(c.orphans, h.XID)
		return
	}
	delete(c.calls, h.XID)
	if c.win != nil {
		c.settle(x, h, rest, wc)
		return
	}
	c.retire(x) // before anything it holds is looked at
	err = c.accept(x, h, rest)
	if err != nil {
		c.n.add(errMalformed)
	}
	x.finish(err)
}

// settle is what receive ends with when memory is opened by windows: the caller is told of the reply, and
// what is in the memory looked at, when the memory is closed.
func (c *Client) settle(x *exchange, h *Header, rest []byte, wc *rdma.WC) {
	err := c.accept(x, h, rest)
	if err != nil {
		c.n.add(errMalformed)
	}
	x.outcome = err
	closed, err := c.win.settle(x, wc.InvRKey, wc.Flags&rdma.WithInv != 0)
	switch {
	case err != nil:
		c.n.add(errMalformed)
		c.retire(x)
		x.finish(err)
		c.fail(err)
	case closed:
		x.finish(x.outcome)
	default:
		x.closing = true
	}
}

// accept checks a reply against what was offered and keeps it.
func (c *Client) accept(x *exchange, h *Header, rest []byte) error {
	if h.Type == TypeError {
		return &RemoteError{Code: h.Code, Low: h.Low, High: h.High}
	}
	if len(h.Reads) > 0 {
		return fmt.Errorf("%w: it has a Read list", ErrProtocol)
	}
	if len(h.Writes) > len(x.offered.Writes) {
		return fmt.Errorf("%w: it returns %d Write chunks, %d were offered", ErrProtocol, len(h.Writes), len(x.offered.Writes))
	}
	if len(h.Writes) == 1 {
		n, err := returned(h.Writes[0], x.offered.Writes[0])
		if err != nil {
			return err
		}
		if n > 0 {
			x.bulk, x.hasBulk = x.dst[:n], true
			c.n.writeBytes.Add(uint64(n))
		}
	}
	long := 0
	if h.HasReply {
		var err error
		if long, err = returned(h.Reply, x.offered.Reply); err != nil {
			return err
		}
	}
	if h.Type == TypeMsg {
		if long > 0 {
			return fmt.Errorf("%w: it is both in the message and in the Reply chunk", ErrProtocol)
		}
		x.reply = append(x.reply[:0], rest...)
		return nil
	}
	if long == 0 {
		return fmt.Errorf("%w: it is neither in the message nor in the Reply chunk", ErrProtocol)
	}
	c.n.writeBytes.Add(uint64(long))
	if x.lent != nil {
		x.long = long // it is taken from there when the memory is closed
		return nil
	}
	x.reply, x.room = x.room[:long], x.reply
	return nil
}

// returned is the number of bytes in a chunk that a reply returns, which must
// be the one that was offered, filled in order.
func returned(got, offered Chunk) (int, error) {
	if len(got) != len(offered) {
		return 0, fmt.Errorf("%w: a chunk of %d segments comes back with %d", ErrProtocol, len(offered), len(got))
	}
	n, full := 0, true
	for i := range got {
		g, o := &got[i], &offered[i]
		if g.Handle != o.Handle || g.Offset != o.Offset || g.Length > o.Length || g.Length > 0 && !full {
			return 0, fmt.Errorf("%w: it returns other segments than were offered", ErrProtocol)
		}
		full = g.Length == o.Length
		n += int(g.Length)
	}
	return n, nil
}

// called takes a call of the server (RFC 8167).
func (c *Client) called(xid uint32, msg []byte) {
	if c.cfg.Backward == nil || rpc.ReplyXID(msg) != xid {
		c.n.add(errBackward)
		var e xdr.Encoder
		rpc.EncodeUnavailable(&e, xid)
		c.answerBackward(e.B)
		return
	}
	c.cfg.Backward(bytes.Clone(msg), func(reply []byte) { c.loop.Submit(func() { c.answerBackward(reply) }) })
}

// answerBackward sends a reply to a call of the server as soon as there is a buffer. One that is too long for a message
// is not sent: the server has its own limit of time.
func (c *Client) answerBackward(msg []byte) {
	h := Header{XID: rpc.ReplyXID(msg), Version: Version, Credits: 1, Type: TypeMsg}
	if c.closed || len(c.answers) >= 2*backwardReceives || h.Len()+len(msg) > c.inlineOut {
		c.n.add(errBackward)
		return
	}
	c.answers = append(c.answers, append(h.Append(nil), msg...))
	c.sendBackward()
}

// sendBackward sends the replies that wait.
func (c *Client) sendBackward() {
	for len(c.answers) > 0 && len(c.sendFree) > 0 && !c.closed {
		i := c.sendFree[len(c.sendFree)-1]
		c.sendFree = c.sendFree[:len(c.sendFree)-1]
		b := append(c.sends[i].Buf[:0], c.answers[0]...)
		c.answers = c.answers[1:]
		c.n.add(sentMsg)
		if err := c.postMessage(i, b); err != nil {
			c.fail(fmt.Errorf("posting an answer: %w", err))
		}
	}
}
