package rpcrdma

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// traffic moves data of many sizes in both directions, in registered and in other memory.
func traffic(t *testing.T, c *Client, mem []byte) {
	t.Helper()
	for _, n := range []int{0, 1, 100, 4000, 5000, windowCopyMax + 1, 300_001, 1_000_000} {
		for _, tail := range []int{0, 10, 5000, 70_000} {
			for what, b := range map[string][]byte{"registered": mem[:n], "other": make([]byte, n)} {
				clear(b)
				if err := echo(t.Context(), c, echoGet, b, tail); err != nil {
					t.Errorf("getting %d and %d, %s memory: %v", n, tail, what, err)
				}
				shut(t, c)
				if err := store(c, fill(b), tail); err != nil {
					t.Errorf("putting %d and %d, %s memory: %v", n, tail, what, err)
				}
				shut(t, c)
			}
		}
	}
}

// together makes several calls at once.
func together(t *testing.T, c *Client) {
	t.Helper()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			b := make([]byte, 200_000)
			for i := range 20 {
				n := (g*7919 + i*104729) % len(b)
				if err := errors.Join(echo(t.Context(), c, echoGet, b[:n], n%9000), store(c, fill(b[:n]), n%9000)); err != nil {
					t.Errorf("%d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	shut(t, c)
}

func noErrors(t *testing.T, l *Listener) {
	t.Helper()
	for k, n := range l.Stats().Errors {
		if n != 0 && k != "rpcrdma_waited_for_memory" {
			t.Errorf("%s: %d", k, n)
		}
	}
}

// TestWindowsShortQueue: calls wait for entries of a short send queue.
func TestWindowsShortQueue(t *testing.T) {
	_, at, _ := serveEcho(t)
	c := dialLesser(t, at, rdma.Limits{Windows: true, WRs: 2 * windowRequests}, ClientConfig{})
	if c.win == nil || c.entries != 2*windowRequests {
		t.Fatalf("%d entries", c.entries)
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if err := echo(t.Context(), c, echoGet, make([]byte, 9000), 9000); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	shut(t, c)
}

// TestWindowsGivenUp: the memory of a canceled call is closed before its caller returns. A server
// that still answers loses the connection, and every call on it ends.
func TestWindowsGivenUp(t *testing.T) {
	_, at, w := serveEcho(t)
	c := dialLesser(t, at, rdma.Limits{Windows: true}, ClientConfig{})
	if err := store(c, nil, 0); err != nil { // the reply grants credits
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	const n = 100_000
	given, other := make(chan error, 1), make(chan error, 1)
	go func() { given <- echo(ctx, c, echoWait, make([]byte, n), 0) }()
	<-w.there
	go func() { other <- echo(t.Context(), c, echoWait, make([]byte, n), 0) }()
	<-w.there
	var wins []*window
	done := make(chan struct{})
	c.loop.Submit(func() {
		for _, x := range c.calls {
			wins = append(wins, x.wins...)
		}
		close(done)
	})
	<-done
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	open := 0
	for _, win := range wins {
		if win.mw.Rekey() != 0 { // a closed window has the key 0
			open++
		}
	}
	if len(wins) != 2 || open != 1 {
		t.Errorf("of %d windows %d are there", len(wins), open)
	}
	w.on <- struct{}{}
	w.on <- struct{}{}
	var lost *rpc.ConnError
	if err := <-other; err != nil && !errors.As(err, &lost) {
		t.Errorf("the other call: %v", err)
	}
	for i := 0; c.Err() == nil; i++ {
		if time.Sleep(10 * time.Millisecond); i == 2000 {
			t.Fatal("the connection is there, though the server has written to memory that is closed")
		}
	}
}

// TestNoWindows: without windows, and if the peer cannot invalidate regions, the client registers
// memory for each call, and does not announce remote invalidation.
func TestNoWindows(t *testing.T) {
	l, at, _ := serveEcho(t)
	c := dialLesser(t, at, rdma.Limits{WRs: 300, CQEs: 600, RdAtomic: 4}, ClientConfig{})
	info := l.Conns()[0]
	if c.win != nil || info.RemoteInvalidation || info.ReadDepth != 4 {
		t.Fatalf("%+v", info)
	}
	for _, n := range []int{0, 5000, 300_001} {
		for _, tail := range []int{0, 70_000} {
			if err := errors.Join(echo(t.Context(), c, echoGet, make([]byte, n), tail),
				store(c, fill(make([]byte, n)), tail)); err != nil {
				t.Errorf("%d and %d: %v", n, tail, err)
			}
		}
	}
	if l.Stats().Messages["sent_with_invalidate"] != 0 {
		t.Error("the server has invalidated keys")
	}
}

// TestOverVerbs: server and client on kernel devices with any features.
func TestOverVerbs(t *testing.T) {
	text := os.Getenv("RDMA_TEST_ADDRS")
	if text == "" {
		t.Skip("RDMA_TEST_ADDRS names no addresses of RDMA devices: the guests' cases do")
	}
	var devs []rdma.Device
	for _, s := range strings.Split(text, ",") {
		d, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(s)})
		if err != nil {
			t.Fatal(err)
		}
		devs = append(devs, d)
	}
	l, at, w := serveEchoOn(t, devs[0])
	c := dialOn(t, devs[1], at, ClientConfig{})
	lim := rdma.LimitsOf(devs[1])
	if info := l.Conns()[0]; (c.win != nil) != lim.Windows || info.RemoteInvalidation != lim.Windows {
		t.Errorf("the device has %+v; the connection: %+v", lim, info)
	}
	mem := make([]byte, 1<<20)
	release, err := c.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	traffic(t, c, mem)
	if n := l.Stats().Messages["sent_with_invalidate"]; (n > 0) != lim.Windows {
		t.Errorf("the server has sent %d messages that invalidate", n)
	}
	release()
	together(t, c)
	noErrors(t, l)
	// A call that is canceled, and answered nevertheless.
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() { given <- echo(ctx, c, echoWait, make([]byte, 100_000), 0) }()
	<-w.there
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	w.on <- struct{}{}
	for i := 0; c.Err() == nil; i++ {
		if time.Sleep(10 * time.Millisecond); i == 2000 {
			t.Fatal("the connection is there, though the server has written to memory that is closed")
		}
	}
}

// TestWithin: the configuration of a connection stays within the limits of the device.
func TestWithin(t *testing.T) {
	small := rdma.Limits{WRs: 600, CQEs: 1000, RdAtomic: 2}
	if c := (Config{Credits: 4096}).withDefaults().within(small); c.ReadDepth != 2 || c.Credits < 8 ||
		c.ReadDepth+sendQueueMin+2*c.Credits+1+rpc.BackwardCalls > small.WRs || receives(c.Credits) > small.WRs ||
		receives(c.Credits)+2*c.ReadDepth+sendQueueMin+2*c.Credits+1+rpc.BackwardCalls > small.CQEs {
		t.Errorf("a server: %+v", c)
	}
	if c := (ClientConfig{Credits: 4096}).withDefaults().within(small); c.ReadDepth != 2 ||
		c.Credits+backwardReceives+1 > small.WRs ||
		2*(c.Credits+backwardReceives)+1 > small.CQEs {
		t.Errorf("a client: %+v", c)
	}
	if c := (Config{}).withDefaults(); c != c.within(rdma.Limits{}) {
		t.Error("limits that are not known limit something")
	}
}
