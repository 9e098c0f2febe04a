//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// srq is a shared receive queue. It implements rdma.SRQ.
type srq struct {
	l       *loop
	pd      *pd
	srq     *C.struct_ibv_srq
	handle  uint32
	cookie  uint64
	sges    int
	slots   slots
	users   int // queue pairs
	onLimit func()
	limit   int  // for the device, at the end of the turn
	dead    bool // destroyed
}

// CreateSRQ implements rdma.Device.
func (d *Device) CreateSRQ(lp rdma.Loop, c rdma.SRQConfig) (rdma.SRQ, error) {
	l, err := d.loopOf(lp)
	if err != nil {
		return nil, err
	}
	p, ok := c.PD.(*pd)
	if !ok || p.d != d {
		return nil, fmt.Errorf("%w: the queue's protection domain belongs to another device", rdma.ErrInvalidWR)
	}
	if c.MaxWR <= 0 || d.limits.WRs > 0 && c.MaxWR > d.limits.WRs {
		return nil, fmt.Errorf("%w: a shared receive queue of %d requests; the most of %s is %d", rdma.ErrInvalidWR, c.MaxWR,
			d.name, d.limits.WRs)
	}
	s := &srq{l: l, pd: p, handle: l.newHandle(), sges: c.MaxSGE, onLimit: c.OnLimit}
	s.slots.init(c.MaxWR)
	s.cookie = newCookie(s)
	if s.srq, err = C.rs_create_srq(p.pd, C.uint64_t(s.cookie), C.int(c.MaxWR), C.int(max(c.MaxSGE, 1))); s.srq == nil {
		dropCookie(s.cookie)
		return nil, fmt.Errorf("%w: creating a shared receive queue of %s: %w", rdma.ErrNoResources, d.name, cause(err))
	}
	l.srqs[s.handle] = s
	return s, nil
}

func (s *srq) home() *loop { return s.l }

// async implements eventful.
func (s *srq) async(kind int) {
	switch kind {
	case C.IBV_EVENT_SRQ_LIMIT_REACHED:
		if s.onLimit != nil && !s.dead {
			for _, q := range s.l.qps {
				if q.srq == s && !q.recv.manual {
					q.recv.fetch() // which frees slots, so that Len is right
				}
			}
			s.l.later.Add(s.onLimit)
		}
	case C.IBV_EVENT_SRQ_ERR:
		s.l.dev.log.Error("a shared receive queue has failed", "device", s.l.dev.name)
	}
}

// user is the queue pair with a number among those that use the queue, or nil. A completion of a
// shared receive names the queue pair by number only.
func (s *srq) user(qpn uint32) *qp {
	for _, q := range s.l.qps {
		if q.srq == s && q.Num() == qpn {
			return q
		}
	}
	return nil
}

// PostRecv implements rdma.SRQ.
func (s *srq) PostRecv(wrs []rdma.RecvWR) error {
	if s.dead {
		return rdma.ErrClosed
	}
	e, err := s.l.postRecv(nil, s.srq, s.handle, &s.slots, s.sges, wrs)
	if err == nil && e != 0 {
		err = s.l.dev.recvRefused(e)
	}
	return err
}

// Arm implements rdma.SRQ. The device gets the limit at the end of the turn, after the receives
// that the user posts meanwhile: some devices report a limit at once that is above the receives
// they have.
func (s *srq) Arm(limit int) {
	waits := s.limit > 0
	s.limit = limit
	if waits || limit <= 0 {
		return
	}
	s.l.after.Add(func() {
		n := s.limit
		s.limit = 0
		switch {
		case s.dead || n <= 0:
		case s.Len() < n:
			s.async(C.IBV_EVENT_SRQ_LIMIT_REACHED)
		default:
			C.rs_arm_srq(s.srq, C.int(n))
		}
	})
}

// Len implements rdma.SRQ.
func (s *srq) Len() int {
	if s.dead {
		return 0
	}
	return s.slots.posted()
}

// Close implements rdma.SRQ. The kernel refuses to destroy a queue that a queue pair uses.
// Receives that are left are given up without completions.
func (s *srq) Close() error {
	if s.users > 0 {
		return fmt.Errorf("%w: %d queue pairs still use the shared receive queue", rdma.ErrInvalidWR, s.users)
	}
	s.destroy()
	return nil
}

func (s *srq) destroy() {
	if s.dead {
		return
	}
	s.dead = true
	dropCookie(s.cookie)
	delete(s.l.srqs, s.handle)
	C.rs_destroy_srq(s.srq)
}
