//go:build rdmacore && linux && cgo

package verbs_test

import (
	"context"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/verbs"
)

// TestAckTimeoutOfPeer: a peer whose REQ names an ACK timeout of 137 s vanishes. That is detected
// within a minute.
func TestAckTimeoutOfPeer(t *testing.T) {
	const named, ours = 25, 19
	at := addrs(t)
	server, records := buried(t, at[0])
	client, _ := buried(t, at[1])
	if server.(*verbs.Device).Info().Transport == verbs.IWARP {
		t.Skip("iWARP has no ACK timeout: TCP finds out")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := endpoint.Listen(server, 0, endpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pd, err := client.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	loop := client.Loops()[0]
	up := make(chan uint8, 1)
	var c rdma.Conn
	on := func(l rdma.Loop, fn func() error) {
		t.Helper()
		done := make(chan error, 1)
		if !l.Submit(func() { done <- fn() }) {
			t.Fatal("the loop has ended")
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	on(loop, func() error {
		cq, err := client.CreateCQ(loop, rdma.CQOptions{Depth: 8, OnEvent: func() {}})
		if err != nil {
			return err
		}
		c, err = client.Dial(loop, rdma.DialParams{
			Remote: l.Addr(),
			QP: rdma.QPConfig{
				PD: pd, SendCQ: cq, RecvCQ: cq,
				Caps: rdma.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
			},
			Params:  rdma.ConnParams{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 6, RNRRetryCount: 7},
			Prepare: func(c rdma.Conn) error { verbs.NameAckTimeout(c, named); return nil },
			On: func(c rdma.Conn, e rdma.ConnEvent) {
				if e.Kind == rdma.EventEstablished {
					up <- verbs.AckTimeout(c)
				}
			},
		})
		return err
	})
	select {
	case code := <-up:
		if code < named {
			t.Fatalf("the client has the ACK timeout code %d, and so its REQ did not name %d", code, named)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no connection")
	}
	s, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mr, err := s.Register(make([]byte, 4096), rdma.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	// From here on the client's queue pair answers nothing, and sends no DREQ.
	on(loop, func() error { return c.QP().Modify(rdma.QPAttr{State: rdma.StateErr}) })
	begun := time.Now()
	found := make(chan error, 1)
	go func() { found <- s.Read(ctx, mr, 0, 4096, endpoint.Remote{Addr: 4096, RKey: 1}) }()
	select {
	case err := <-found:
		if err == nil {
			t.Fatal("the peer that has vanished answers")
		}
		r := record(t, records)
		if r.Outcome != rdma.Broken || r.AckTimeout != ours || r.Summary.Failed.Status != rdma.RetryExcErr {
			t.Errorf("%+v", r)
		}
		t.Logf("found after %v", time.Since(begun))
	case <-time.After(time.Minute):
		t.Error("a minute after the peer has vanished its connection is there")
	}
}
