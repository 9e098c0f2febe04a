package torture

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// connection is one Connect.
type connection struct {
	w     *world
	n     int
	event Event
	side  [2]*side // the active one, and the other once it has accepted
	ended bool     // by a Disconnect
}

// of is the side that acts.
func (c *connection) of(back bool) *side {
	if back {
		return c.side[1]
	}
	return c.side[0]
}

func (c *connection) over() bool {
	for _, s := range c.side {
		if s != nil && !s.crashed && !s.down {
			return false
		}
	}
	return true
}

func (w *world) connect(e Event) {
	h := w.hosts[e.Host]
	if h.back != 0 || w.net.Now() < h.frozen {
		return
	}
	c := &connection{w: w, n: len(w.all), event: e}
	w.all = append(w.all, c)
	w.conns[e.Conn] = c
	s, qc, err := c.newSide(0, h)
	if err != nil {
		w.failf("%w", err)
		return
	}
	private := binary.BigEndian.AppendUint32(nil, uint32(c.n))
	// On the device's loop, which knows the time.
	h.dev.Loops()[0].Submit(func() {
		s.conn, err = h.dev.Dial(h.dev.Loops()[0], rdma.DialParams{
			Remote: netip.AddrPortFrom(w.hosts[e.Peer].addr, port), QP: qc,
			Params:  rdma.ConnParams{PrivateData: private, ResponderResources: reads, InitiatorDepth: reads},
			Prepare: s.prepare, On: s.on,
		})
		if err != nil {
			w.failf("dialing: %w", err)
		}
	})
}

func (h *host) accept(r rdma.ConnRequest) {
	w := h.w
	n := int(binary.BigEndian.Uint32(r.PrivateData()))
	if n >= len(w.all) || w.all[n].side[1] != nil {
		r.Reject(28, nil) // of an earlier life
		return
	}
	s, qc, err := w.all[n].newSide(1, h)
	if err == nil {
		s.conn, err = r.Accept(qc, rdma.ConnParams{ResponderResources: reads, InitiatorDepth: reads}, s.prepare, s.on)
	}
	if err != nil {
		w.failf("accepting: %w", err)
	}
}

func (c *connection) newSide(i int, h *host) (*side, rdma.QPConfig, error) {
	s := &side{c: c, i: i, host: h, model: make([]byte, targets)}
	c.side[i] = s
	var err error
	if s.pd, err = h.dev.AllocPD(); err != nil {
		return nil, rdma.QPConfig{}, err
	}
	register := func(n int, a rdma.Access) rdma.MR {
		m, e := s.pd.Register(make([]byte, n), a)
		if e != nil {
			err = errors.Join(err, e)
			return nil
		}
		s.mrs = append(s.mrs, m)
		return m
	}
	s.target = register(targets, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead|rdma.RemoteAtomic)
	s.source = register(1, 0)
	s.sink = register(depth*sendMax, rdma.LocalWrite)
	s.cq, _ = h.dev.CreateCQ(h.dev.Loops()[0], rdma.CQOptions{Depth: 2*depth + 1, OnEvent: s.completions})
	cfg := rdma.QPConfig{
		PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq,
		Caps: rdma.QPCaps{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: inlineMax},
	}
	if c.w.plan.Shared && err == nil {
		s.srq, err = h.dev.CreateSRQ(h.dev.Loops()[0], rdma.SRQConfig{PD: s.pd, MaxWR: depth, MaxSGE: 2})
		cfg.SRQ = s.srq
	}
	return s, cfg, err
}

// check holds what is left against the model.
func (c *connection) check() {
	w := c.w
	for i, s := range c.side {
		if s == nil || w.err != nil {
			continue
		}
		if !s.settled() {
			o := s.ops[min(s.completed, max(len(s.ops)-1, 0)):]
			w.failf("connection %d side %d: up %t, down %t, %d requests wait for ever", c.n, i, s.up, s.down, len(o))
			return
		}
		p := s.peer()
		if p == nil || p.crashed || s.crashed {
			continue
		}
		if sent := s.before(len(s.ops)); p.gotten > sent {
			w.failf("connection %d side %d: %d messages came, %d were sent", c.n, 1-i, p.gotten, sent)
		}
		succeeded := 0
		for _, o := range s.ops[:s.completed] {
			if o.success && o.messages() {
				succeeded++
			}
		}
		if p.gotten < succeeded {
			w.failf("connection %d side %d: %d messages succeeded, %d came", c.n, i, succeeded, p.gotten)
		}
		s.compare(p.target.Bytes())
	}
}
