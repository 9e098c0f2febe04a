package rdmatest

import (
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
)

// testTransitions: a queue pair makes no illegal transition, and completes its receives when it
// comes to ERR.
func testTransitions(t *testing.T, open Provider) {
	e := newEnd(t, open(t), rdma.CQOptions{Depth: 4})
	e.cfg.Caps = rdma.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}
	var q rdma.QP
	e.do(func() (err error) {
		q, err = e.dev.CreateQP(e.loop, e.cfg)
		return err
	})
	t.Cleanup(func() { e.loop.Submit(q.Destroy) })
	connects := true
	e.on(func() {
		if err := q.PostRecv([]rdma.RecvWR{{}}); err == nil {
			t.Error("RESET takes receives")
		}
		for _, s := range []rdma.QPState{rdma.StateRTR, rdma.StateRTS, rdma.StateSQD} {
			if err := q.Modify(rdma.QPAttr{State: s}); !errors.Is(err, rdma.ErrBadTransition) {
				t.Errorf("RESET to %v: %v", s, err)
			}
		}
		err := q.Modify(rdma.QPAttr{State: rdma.StateInit})
		if connects = !iwarp(e.dev); !connects {
			refused(t, "INIT of a device whose connection manager does that", err)
			return
		}
		if err != nil {
			t.Error(err)
		}
		if err := q.PostSend([]rdma.SendWR{{Op: rdma.OpSend}}); err == nil {
			t.Error("INIT takes sends")
		}
		if err := q.PostRecv([]rdma.RecvWR{{ID: 5}}); err != nil {
			t.Error(err)
		}
		if err := q.Modify(rdma.QPAttr{State: rdma.StateErr}); err != nil || q.State() != rdma.StateErr {
			t.Error(err)
		}
	})
	if !connects {
		return
	}
	if wc := e.completion(); wc.ID != 5 || wc.Status != rdma.WRFlushErr {
		t.Errorf("%+v", wc)
	}
	time.Sleep(10 * time.Millisecond)
	if e.settle(); len(e.wcs) != 0 {
		t.Errorf("one more completion: %+v", <-e.wcs)
	}
}
