package roce

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/wq"
)

// srq is a shared receive queue. It implements rdma.SRQ.
type srq struct {
	s       *shard
	rc      *wq.SRQ
	pd      uint32
	users   int // queue pairs
	onLimit func()
	closed  bool
}

var _ rdma.SRQ = (*srq)(nil)

// CreateSRQ implements rdma.Device.
func (d *Device) CreateSRQ(l rdma.Loop, c rdma.SRQConfig) (rdma.SRQ, error) {
	s, err := d.shardOf(l)
	if err != nil {
		return nil, err
	}
	p, ok := c.PD.(*pd)
	if !ok || p.d != d {
		return nil, fmt.Errorf("%w: the queue's protection domain belongs to another device", rdma.ErrInvalidWR)
	}
	if c.MaxWR <= 0 || c.MaxWR > workRequestsMax {
		return nil, fmt.Errorf("%w: a shared receive queue of %d requests; the most is %d", rdma.ErrInvalidWR, c.MaxWR,
			workRequestsMax)
	}
	return &srq{s: s, rc: rc.NewSRQ(c.MaxWR, c.MaxSGE), pd: p.id, onLimit: c.OnLimit}, nil
}

// PostRecv implements rdma.SRQ.
func (q *srq) PostRecv(wrs []rdma.RecvWR) error {
	if q.closed {
		return rdma.ErrClosed
	}
	return q.rc.PostRecv(wrs)
}

// Arm implements rdma.SRQ.
func (q *srq) Arm(limit int) { q.rc.Arm(limit) }

// Len implements rdma.SRQ.
func (q *srq) Len() int { return q.rc.Len() }

// Close implements rdma.SRQ.
func (q *srq) Close() error {
	if q.users > 0 {
		return fmt.Errorf("%w: %d queue pairs still use the shared receive queue", rdma.ErrInvalidWR, q.users)
	}
	q.closed = true
	q.rc.Drain()
	return nil
}

// watch calls the user if the queue has fallen below its limit.
func (q *srq) watch() {
	if q.rc.Low() && q.onLimit != nil {
		q.s.later.Add(q.onLimit)
	}
}
