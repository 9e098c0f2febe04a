package rpcrdma

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// Everything in this file runs on the client's loop.

// post collects receive i. postReceives posts the collected ones.
func (c *Client) post(i int) {
	c.repost = append(c.repost, rdma.RecvWR{ID: workID(idReceive, i), SGL: c.recvs[i : i+1 : i+1]})
}

// postReceives posts the collected receives as one list.
func (c *Client) postReceives(conn rdma.Conn) error {
	if len(c.repost) == 0 {
		return nil
	}
	err := conn.QP().PostRecv(c.repost)
	c.repost = c.repost[:0]
	return err
}

// poll is the callback of the completion queue. It handles all completions, then posts receives and
// invalidations, each as one list, and then sends what has waited for them.
func (c *Client) poll() {
	for !c.closed {
		n := c.cq.Poll(c.wcs[:])
		if n == 0 {
			break
		}
		for i := range c.wcs[:n] {
			if !c.closed {
				c.complete(&c.wcs[i])
			}
		}
	}
	if c.closed {
		return
	}
	if err := c.postReceives(c.conn); err != nil {
		c.fail(fmt.Errorf("posting receives: %w", err))
		return
	}
	if c.win != nil {
		if err := c.win.postEnds(); err != nil {
			c.fail(fmt.Errorf("closing the memory of calls: %w", err))
			return
		}
	}
	c.sendBackward()
	c.startWaiting()
}

// clientFailures describes the purpose of a failed work request by its kind, and has the counter
// for it.
var clientFailures = [...]struct {
	what string
	counter
}{
	idReceive: {"receiving a reply", errReceiveFailed},
	idSend:    {"sending a call", errSendFailed},
	idProbe:   {"probing a server that sends nothing", errPeerSilent},
	idBind:    {"opening memory for a call", errSendFailed},
	idEnd:     {"closing the memory of a call", errSendFailed},
}

// complete handles a completion. The buffer of the work request is ours again.
func (c *Client) complete(wc *rdma.WC) {
	i := int(uint32(wc.ID))
	if wc.Status == rdma.WRFlushErr {
		return // flushed because the connection ended; its event has the reason
	}
	if wc.Status != rdma.Success {
		f := &clientFailures[wc.ID>>32]
		c.n.add(f.counter)
		c.fail(fmt.Errorf("%s: %v", f.what, wc.Status))
		return
	}
	c.probe.progress = true
	switch wc.ID >> 32 {
	case idSend:
		c.sendFree = append(c.sendFree, i)
		if c.win != nil {
			c.win.sent(i)
		}
		return
	case idProbe:
		c.probe.answered()
		return
	case idEnd:
		c.win.ended()
		if c.yield != nil {
			c.yield()
		}
		return
	}
	c.receive(c.recvs[i].Buf[:wc.ByteLen], wc)
	c.post(i)
	if c.yield != nil {
		c.yield()
	}
}

// room reports whether there are a send buffer and send queue entries for one more call.
func (c *Client) room() bool { return len(c.sendFree) > 0 && (c.win == nil || c.win.ready()) }

// startWaiting sends waiting calls as far as there are credits and room. A credit is free when a
// reply has arrived, also that of an abandoned call. Room is free when a SEND, or the invalidations
// of a call, have completed.
func (c *Client) startWaiting() {
	for !c.closed && c.inflight < c.credits && c.room() {
		x := c.waiting.pop()
		if x == nil {
			return
		}
		c.send(x)
	}
}
