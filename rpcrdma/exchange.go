package rpcrdma

import (
	"fmt"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Everything in this file runs on the client's loop.

// replyHeaderMax bounds the RPC header of a reply: 24 bytes with an empty verifier, and room for a
// longer one.
const replyHeaderMax = 24 + 40

// start sends a call, or queues it if there is no credit or no room.
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

// giveUp ends a call whose context has ended. Its memory is closed to the server. Its credit stays
// in use until the server has answered (RFC 8166 section 3.3.1).
//
//	the call waits to be sent        it leaves the queue
//	the call was sent                its memory is closed, and its XID becomes an abandoned call
//	its reply waits for invalidation nothing: finish follows when its windows are invalidated
func (c *Client) giveUp(x *exchange, why error) {
	switch {
	case x.over, x.closing:
		return
	case x.queued:
		c.waiting.remove(x)
	default:
		c.retire(x)
		delete(c.calls, x.xid)
		c.abandoned[x.xid] = struct{}{}
	}
	x.finish(why)
}

// retire closes the call's memory to the server, before anything of it is used or reused. With
// regions, retire either reregisters a region without memory or closes it. After a loss of the
// connection it closes them, because no further call can reuse them.
func (c *Client) retire(x *exchange) {
	if c.win != nil {
		c.win.revoke(x)
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

// finish reports the outcome to the caller, once. The caller owns x again.
func (x *exchange) finish(err error) {
	if !x.over {
		x.over = true
		x.done <- err
	}
}

// open returns a region with b: a reregistered one, a window of registered memory, or a new one.
// The caller of open owns the region. retire returns it to spare, or closes it.
func (c *Client) open(b []byte, access rdma.Access) (rdma.MR, error) {
	if !c.device(b) { // a dma-buf cannot be reregistered by its address
		if mr, err := c.spare.take(b, access); mr != nil || err != nil {
			return mr, err
		}
	}
	if r := c.registered(b); r != nil {
		return r.Window(b, access)
	}
	return c.pd.Register(b, access)
}

// expose opens b to the server until the call is retired, and returns the segment for the header.
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

// send encodes and posts a call. There is a credit and room for it. A call that cannot be encoded
// has not used its credit. A call that was posted has, even if PostSend fails later: the connection
// ends then.
func (c *Client) send(x *exchange) {
	_, known := c.calls[x.xid]
	if _, abandoned := c.abandoned[x.xid]; known || abandoned {
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

// postMessage posts the SEND of b, which lies in send buffer i. The buffer is in use until the SEND
// has completed. The binds of the call's windows precede the SEND in the same list.
func (c *Client) postMessage(i int, b []byte) error {
	c.sge[0] = rdma.SGE{Buf: b, LKey: c.mr.LKey()}
	c.wr[0] = rdma.SendWR{ID: workID(idSend, i), Op: rdma.OpSend, Flags: rdma.Signaled, SGL: c.sge[:]}
	if 2*len(c.sendFree) >= len(c.sends) {
		c.wr[0].Flags |= rdma.DelayAck
	}
	if c.win != nil {
		return c.win.post(i, c.wr[0])
	}
	return c.conn.QP().PostSend(c.wr[:])
}

// encode encodes the message into b, whose capacity is that of a send buffer, and opens the memory
// for its chunks. A server that grants few credits has many clients: they would overflow its socket
// if each of them sent its data unasked, so such a server fetches what makes a message longer than
// Inline. It uses the first form that fits (RFC 8166 section 3.5): everything
// inline, a Read chunk for each bulk argument, or the whole call in chunks (RDMA_NOMSG).
//
//	form                                    inline                 chunks
//	RDMA_MSG                                header, whole call     none
//	RDMA_MSG with Read chunks               header, call without   a Read chunk for each bulk argument
//	                                        its bulk arguments
//	RDMA_NOMSG                              header                 the whole call, at position 0
//
// Each of them can have a Write chunk for the bulk result and a Reply chunk, see offerResults.
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
	if n := h.Len() + e.Len(); n <= c.inlineOut && !device && (n <= c.cfg.Inline || c.credits >= firstGrant) {
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
		// The position of a Read chunk counts the bytes of the whole message, with the chunks
		// before it and their padding (section 3.4.5).
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
			moved += xdr.Padded(len(r.Data))
			c.n.readBytes.Add(uint64(len(r.Data)))
		}
		c.n.add(sentMsg)
		return append(h.Append(b), e.B...), nil
	}
	return c.encodeLong(x, b)
}

// encodeLong encodes an RDMA_NOMSG call (RFC 8166 section 3.5.3). The server reads the message from
// a chunk at position 0, whose segments are the pieces of the message where they lie.
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

// offerResults opens memory for results that may not fit into a message: dst as a Write chunk for
// the bulk result, room as the Reply chunk for everything else.
//
//	the reply fits inline                        no chunk
//	with the bulk result apart it fits inline    Write chunk (dst)
//	else                                         Write chunk (dst, if any), Reply chunk (room)
func (c *Client) offerResults(x *exchange) error {
	h := &x.offered
	rest := x.resMax + replyHeaderMax
	// We cannot copy to memory of another device: the server has to write to it.
	x.hasBulk = len(c.devices) > 0 && c.device(x.dst)
	if minMessage+rest+xdr.Padded(len(x.dst)) <= c.inlineIn && !x.hasBulk {
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
	n := xdr.Padded(rest)
	var room []byte
	if c.win != nil && c.win.room(x, n) {
		room = x.arenaRoom
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
