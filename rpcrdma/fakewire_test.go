package rpcrdma

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

func (q *fakeQP) Num() uint32 { return q.num }
func (q *fakeQP) State() rdma.QPState {
	if q.err {
		return rdma.StateErr
	}
	return rdma.StateRTS
}
func (q *fakeQP) Modify(rdma.QPAttr) error { return rdma.ErrBadTransition }
func (q *fakeQP) Destroy()                 { q.err = true }

func (q *fakeQP) PostRecv(wrs []rdma.RecvWR) error {
	if len(q.recvs)+len(wrs) > q.cfg.Caps.MaxRecvWR {
		return rdma.ErrQueueFull
	}
	for _, w := range wrs {
		for _, e := range w.SGL {
			if err := q.pd.local(e, true); err != nil {
				return err
			}
		}
		q.recvs = append(q.recvs, rdma.RecvWR{ID: w.ID, SGL: append([]rdma.SGE(nil), w.SGL...)})
	}
	q.conn.loop.Submit(q.drain)
	return nil
}

func (q *fakeQP) PostSend(wrs []rdma.SendWR) error {
	if q.sq+len(wrs) > q.cfg.Caps.MaxSendWR {
		return rdma.ErrQueueFull
	}
	for _, w := range wrs {
		if len(w.SGL) > q.cfg.Caps.MaxSendSGE {
			return rdma.ErrInvalidWR
		}
		for _, e := range w.SGL {
			if err := q.pd.local(e, w.Op == rdma.OpRead); err != nil {
				return err
			}
		}
	}
	q.sq += len(wrs)
	for _, w := range wrs {
		if w.Op == rdma.OpRead {
			q.reads++
		}
	}
	if p := q.conn.net.posted; p != nil {
		p(q.reads)
	}
	peer := q.conn.peer
	for _, w := range wrs {
		w.SGL = append([]rdma.SGE(nil), w.SGL...)
		peer.loop.Submit(func() {
			peer.qp.inbound = append(peer.qp.inbound, func() bool { return peer.qp.execute(q, w) })
			peer.qp.drain()
		})
	}
	return nil
}

// drain executes the peer's requests in order, until one has to wait for a receive.
func (q *fakeQP) drain() {
	for len(q.inbound) > 0 && q.inbound[0]() {
		q.inbound = q.inbound[1:]
	}
}

// execute executes a request of from, on the loop of q.
func (q *fakeQP) execute(from *fakeQP, w rdma.SendWR) bool {
	status, n := rdma.Success, 0
	for _, e := range w.SGL {
		n += len(e.Buf)
	}
	done := func() {
		from.conn.loop.Submit(func() { from.completed(w, status, n) })
	}
	if q.err {
		status = rdma.RetryExcErr
		done()
		return true
	}
	switch w.Op {
	case rdma.OpWrite:
		if n == 0 { // needs no memory
			break
		}
		if b := q.pd.remote(w.RKey, w.RemoteAddr, n, rdma.RemoteWrite); b != nil {
			copy(b, bytes.Join(bufs(w.SGL), nil))
		} else {
			status = rdma.RemAccessErr
		}
	case rdma.OpRead:
		if b := q.pd.remote(w.RKey, w.RemoteAddr, n, rdma.RemoteRead); b != nil {
			for _, e := range w.SGL {
				b = b[copy(e.Buf, b):]
			}
		} else {
			status = rdma.RemAccessErr
		}
	case rdma.OpSend, rdma.OpSendInv:
		if len(q.recvs) == 0 {
			q.rnr++
			return false
		}
		r := q.recvs[0]
		q.recvs = q.recvs[1:]
		msg := bytes.Join(bufs(w.SGL), nil)
		if len(msg) > len(r.SGL[0].Buf) {
			status = rdma.RemInvReqErr
			break
		}
		copy(r.SGL[0].Buf, msg)
		wc := rdma.WC{ID: r.ID, QPN: q.num, ByteLen: uint32(len(msg)), Op: rdma.WCRecv}
		if w.Op == rdma.OpSendInv {
			q.pd.mu.Lock()
			m := q.pd.mrs[w.InvRKey]
			q.pd.mu.Unlock()
			if m == nil || m.rkey != w.InvRKey {
				status = rdma.RemAccessErr
				break
			}
			m.Invalidate()
			wc.Flags, wc.InvRKey = rdma.WithInv, w.InvRKey
		}
		q.cfg.RecvCQ.(*fakeCQ).add(wc)
	default:
		status = rdma.RemInvReqErr
	}
	if t := q.conn.net.trace; t != nil {
		t(w.Op, n, w.RKey)
	}
	done() // the end of the connection does not overtake the NAK
	if status != rdma.Success {
		q.conn.lost(fmt.Errorf("the peer's request failed: %v", status))
	}
	return true
}

func bufs(sgl []rdma.SGE) (out [][]byte) {
	for _, e := range sgl {
		out = append(out, e.Buf)
	}
	return out
}

func (q *fakeQP) completed(w rdma.SendWR, status rdma.Status, n int) {
	if q.conn.closed {
		return
	}
	if w.Op == rdma.OpRead {
		q.reads--
	}
	q.pending++
	if status == rdma.Success && w.Flags&rdma.Signaled == 0 {
		return
	}
	q.sq -= q.pending
	q.pending = 0
	op := map[rdma.SendOp]rdma.WCOp{
		rdma.OpSend: rdma.WCSend, rdma.OpSendInv: rdma.WCSend, rdma.OpWrite: rdma.WCWrite,
		rdma.OpRead: rdma.WCRead,
	}[w.Op]
	q.cfg.SendCQ.(*fakeCQ).add(rdma.WC{ID: w.ID, QPN: q.num, ByteLen: uint32(n), Status: status, Op: op})
	if status != rdma.Success {
		q.conn.lost(fmt.Errorf("request failed: %v", status))
	}
}

type fakeConn struct {
	net           *fakeNet
	loop          *fakeLoop
	qp            *fakeQP
	peer          *fakeConn
	local, remote netip.AddrPort
	on            func(rdma.Conn, rdma.ConnEvent)
	down, closed  bool
}

func (c *fakeConn) Loop() rdma.Loop        { return c.loop }
func (c *fakeConn) QP() rdma.QP            { return c.qp }
func (c *fakeConn) Local() netip.AddrPort  { return c.local }
func (c *fakeConn) Remote() netip.AddrPort { return c.remote }
func (c *fakeConn) PKey() uint16           { return 0xffff }
func (c *fakeConn) Disconnect()            { c.lost(nil) }
func (c *fakeConn) Close() {
	c.lost(nil)
	c.closed = true
}

func (c *fakeConn) lost(why error) {
	if c.down {
		return
	}
	c.down = true
	c.qp.err = true
	c.qp.recvs = nil
	c.loop.Submit(func() {
		c.qp.drain()
		if !c.closed {
			c.on(c, rdma.ConnEvent{Kind: rdma.EventDisconnected, Err: why})
		}
	})
	if p := c.peer; p != nil {
		p.loop.Submit(func() { p.lost(errors.New("the peer disconnected")) })
	}
}

func (d *fakeDevice) newConn(remote netip.AddrPort, cfg rdma.QPConfig, on func(rdma.Conn, rdma.ConnEvent)) *fakeConn {
	c := &fakeConn{net: d.net, loop: d.loop, local: netip.AddrPortFrom(d.addr, 0), remote: remote, on: on}
	c.qp = &fakeQP{conn: c, cfg: cfg, pd: cfg.PD.(*fakePD), num: d.net.newKey()}
	return c
}

type fakeListener struct {
	dev    *fakeDevice
	addr   netip.AddrPort
	accept func(rdma.ConnRequest)
}

func (l *fakeListener) Addr() netip.AddrPort { return l.addr }
func (l *fakeListener) Close() error {
	l.dev.net.mu.Lock()
	delete(l.dev.net.ports, l.addr)
	l.dev.net.mu.Unlock()
	return nil
}

func (d *fakeDevice) Listen(port uint16, accept func(rdma.ConnRequest)) (rdma.Listener, error) {
	l := &fakeListener{dev: d, addr: netip.AddrPortFrom(d.addr, port), accept: accept}
	d.net.mu.Lock()
	d.net.ports[l.addr] = l
	d.net.mu.Unlock()
	return l, nil
}

type fakeRequest struct {
	l      *fakeListener
	client *fakeConn
	params rdma.ConnParams
}

func (r *fakeRequest) Loop() rdma.Loop           { return r.l.dev.loop }
func (r *fakeRequest) Local() netip.AddrPort     { return r.l.addr }
func (r *fakeRequest) Remote() netip.AddrPort    { return netip.AddrPortFrom(r.client.local.Addr(), 4000) }
func (r *fakeRequest) PrivateData() []byte       { return r.params.PrivateData }
func (r *fakeRequest) ResponderResources() uint8 { return r.params.ResponderResources }
func (r *fakeRequest) PKey() uint16              { return 0xffff }
func (r *fakeRequest) InitiatorDepth() uint8     { return r.params.InitiatorDepth }
func (r *fakeRequest) PathMTU() rdma.MTU         { return 4096 }

func (r *fakeRequest) Accept(qp rdma.QPConfig, p rdma.ConnParams, prepare func(rdma.Conn) error,
	on func(rdma.Conn, rdma.ConnEvent),
) (rdma.Conn, error) {
	c := r.l.dev.newConn(r.Remote(), qp, on)
	c.local = r.l.addr
	c.peer = r.client
	if err := prepare(c); err != nil {
		return nil, err
	}
	r.client.loop.Submit(func() {
		r.client.peer = c
		r.client.on(r.client, rdma.ConnEvent{
			Kind: rdma.EventEstablished, PrivateData: p.PrivateData, PathMTU: 4096,
			ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources,
		})
	})
	c.loop.Submit(func() { on(c, rdma.ConnEvent{Kind: rdma.EventEstablished, PathMTU: 4096}) })
	return c, nil
}

func (r *fakeRequest) Reject(reason uint16, private []byte) {
	r.client.loop.Submit(func() {
		r.client.on(r.client, rdma.ConnEvent{
			Kind: rdma.EventRejected, Reason: reason, PrivateData: private,
			Err: fmt.Errorf("rejected with reason %d", reason),
		})
	})
}

func (d *fakeDevice) Dial(_ rdma.Loop, p rdma.DialParams) (rdma.Conn, error) {
	c := d.newConn(p.Remote, p.QP, p.On)
	if err := p.Prepare(c); err != nil {
		return nil, err
	}
	d.net.mu.Lock()
	l := d.net.ports[p.Remote]
	d.net.mu.Unlock()
	if l == nil {
		d.loop.Submit(func() {
			p.On(c, rdma.ConnEvent{Kind: rdma.EventRejected, Reason: 8, Err: errors.New("nobody listens")})
		})
		return c, nil
	}
	l.dev.loop.Submit(func() { l.accept(&fakeRequest{l: l, client: c, params: p.Params}) })
	return c, nil
}
