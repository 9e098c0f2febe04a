package rpcrdma

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// receive handles a message from the server. msg is in a receive buffer, which is posted again when
// receive returns. wc is the completion of the receive.
//
//	message                            handled as
//	RDMA_MSG with an RPC CALL          call of the server (called)
//	RDMA_MSG, RDMA_NOMSG, RDMA_ERROR   reply to the call with its XID
//	with the XID of an abandoned call          the credit is free again
//	with another XID                   counted: the server's reply came twice, or is wrong
//	obsolete types                     counted
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
		if len(h.Reads)+len(h.Writes) == 0 && !h.HasReply && len(rest) >= 8 &&
			binary.BigEndian.Uint32(rest[4:]) == rpc.MsgCall {
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
	_, abandoned := c.abandoned[h.XID]
	if x == nil && !abandoned {
		c.n.add(errXID)
		return
	}
	c.inflight--
	c.credits = int(min(max(int64(h.Credits), 1), int64(c.cfg.Credits)))
	if abandoned {
		delete(c.abandoned, h.XID)
		return
	}
	delete(c.calls, h.XID)
	if c.win != nil {
		c.settle(x, h, rest, wc)
		return
	}
	c.retire(x) // before the data is used: the server could change it meanwhile
	err = c.accept(x, h, rest)
	if err != nil {
		c.n.add(errMalformed)
	}
	x.finish(err)
}

// settle is the end of receive when memory is opened by windows. The caller gets the reply when
// all windows of the call are closed. A server that invalidates a key of another call has broken
// that call's memory, and cannot be trusted with the rest: the connection ends. RFC 8166 has no
// error message from client to server for this.
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

// accept checks a reply against the chunks that the call offered, and stores it in x. The server is
// not trusted: more data than offered, other segments, or a Read list are protocol errors.
//
//	reply                                             error
//	RDMA_ERROR                                        RemoteError
//	a Read list                                       ErrProtocol
//	more Write chunks than offered                    ErrProtocol
//	a chunk with other segments, or longer ones       ErrProtocol
//	RDMA_MSG with data in the Reply chunk             ErrProtocol
//	RDMA_NOMSG without data in the Reply chunk        ErrProtocol
//	else                                              none; rpc.DecodeReply checks the rest
func (c *Client) accept(x *exchange, h *Header, rest []byte) error {
	if h.Type == TypeError {
		return &RemoteError{Code: h.Code, Low: h.Low, High: h.High}
	}
	if len(h.Reads) > 0 {
		return fmt.Errorf("%w: the reply has a Read list", ErrProtocol)
	}
	if len(h.Writes) > len(x.offered.Writes) {
		return fmt.Errorf("%w: the reply returns %d Write chunks, and the call offered %d", ErrProtocol, len(h.Writes),
			len(x.offered.Writes))
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
			return fmt.Errorf("%w: the reply is both in the message and in the Reply chunk", ErrProtocol)
		}
		x.reply = append(x.reply[:0], rest...)
		return nil
	}
	if long == 0 {
		return fmt.Errorf("%w: the reply is neither in the message nor in the Reply chunk", ErrProtocol)
	}
	c.n.writeBytes.Add(uint64(long))
	if x.arenaRoom != nil {
		x.long = long // empty copies it when the window is closed
		return nil
	}
	x.reply, x.room = x.room[:long], x.reply
	return nil
}

// returned is the number of bytes in a chunk of a reply. The chunk must be the offered one, with
// its segments filled in order (RFC 8166 section 3.4.6).
func returned(got, offered Chunk) (int, error) {
	if len(got) != len(offered) {
		return 0, fmt.Errorf("%w: a chunk of %d segments comes back with %d", ErrProtocol, len(offered), len(got))
	}
	n, full := 0, true
	for i := range got {
		g, o := &got[i], &offered[i]
		if g.Handle != o.Handle || g.Offset != o.Offset || g.Length > o.Length || g.Length > 0 && !full {
			return 0, fmt.Errorf("%w: the reply returns other segments than the call offered", ErrProtocol)
		}
		full = g.Length == o.Length
		n += int(g.Length)
	}
	return n, nil
}

// called handles a call of the server (RFC 8167). The reply carries the XID of the call.
// cfg.Backward gets a copy, because the receive buffer is posted again when receive returns. It
// may answer later and on any goroutine.
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

// answerBackward sends a reply to a call of the server, when there is a send buffer. A reply that
// is too long for a message is dropped; the server's call then times out. The queue is bounded by
// the calls that the server may have in flight. A server that sends more calls than its credits
// fills it, and loses the answers.
func (c *Client) answerBackward(msg []byte) {
	h := Header{XID: rpc.ReplyXID(msg), Version: Version, Credits: 1, Type: TypeMsg}
	if c.closed || len(c.answers) >= 2*backwardReceives || h.Len()+len(msg) > c.inlineOut {
		c.n.add(errBackward)
		return
	}
	c.answers = append(c.answers, append(h.Append(nil), msg...))
	c.sendBackward()
}

// sendBackward sends queued replies to calls of the server, as far as there are send buffers.
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
