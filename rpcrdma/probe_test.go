package rpcrdma

import (
	"errors"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// silentConn is a connection whose queue pair repeats requests for ever. Its loop has a clock of
// its own.
type silentConn struct {
	rdma.Conn
	posted int
	now    rdma.Time
	due    rdma.Time
	tick   func()
}

type silentLoop struct {
	rdma.Loop
	c *silentConn
}

type silentQP struct {
	rdma.QP
	c *silentConn
}

func (c *silentConn) Loop() rdma.Loop { return silentLoop{c: c} }
func (c *silentConn) QP() rdma.QP     { return silentQP{c: c} }

// After implements rdma.Loop.
func (l silentLoop) After(d rdma.Time, fn func()) func() {
	l.c.due, l.c.tick = l.c.now+d, fn
	return func() { l.c.tick = nil }
}

// PostSend implements rdma.QP.
func (q silentQP) PostSend(wrs []rdma.SendWR) error {
	q.c.posted += len(wrs)
	return nil
}

// run advances the clock.
func (c *silentConn) run(d rdma.Time) {
	for end := c.now + d; c.tick != nil && c.due <= end; {
		c.now = c.due
		c.tick()
	}
}

// TestProbeUnanswered: a connection ends if its probe is not answered for three minutes, also if
// its device repeats the probe for ever. A late answer keeps the connection.
func TestProbeUnanswered(t *testing.T) {
	for _, every := range []rdma.Time{clientProbe, serverProbe} {
		c := &silentConn{}
		var p prober
		var lost []error
		p.start(c, every, func() bool { return true }, func(err error) { lost = append(lost, err); p.stop() })
		c.run(every + 150*rdma.Second)
		if len(lost) != 0 || c.posted != 1 {
			t.Fatalf("lost %v, after %d probes", lost, c.posted)
		}
		p.answered()
		c.run(2*every + 150*rdma.Second)
		if len(lost) != 0 || c.posted != 2 {
			t.Fatalf("lost %v, after %d probes", lost, c.posted)
		}
		p.progress = true // a call, while the probe is in flight
		c.run(150 * rdma.Second)
		if len(lost) != 0 {
			t.Fatalf("lost %v in spite of progress", lost)
		}
		c.run(240 * rdma.Second)
		if len(lost) != 1 || !errors.Is(lost[0], errSilent) || c.posted != 2 {
			t.Errorf("lost %v, after %d probes", lost, c.posted)
		}
	}
}
