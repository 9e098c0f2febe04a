package rdmatest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
)

// Provider opens devices for the tests. Each device has an address of its own,
// and all can reach each other.
type Provider func(t testing.TB) rdma.Device

// Quirks are deviations of a device from the contract, to which the tests adapt. A device that has
// some has a method Quirks() Quirks.
type Quirks struct {
	NoSQD          bool // Modify to SQD fails with ErrUnsupported
	NoSQE          bool // a failed send of datagrams leaves the queue pair in ERR, not in SQE
	NoReadRights   bool // a peer can READ memory that was registered without RemoteRead
	NoEventFlags   bool // completions have no flag WithEvent
	NoServiceQKeys bool // UDRequest.Accept takes the Q_Key UDQKey only
	LongFails      bool // a datagram that is longer than the receive fails the receive
}

func quirksOf(d rdma.Device) Quirks {
	if q, ok := d.(interface{ Quirks() Quirks }); ok {
		return q.Quirks()
	}
	return Quirks{}
}

// iwarp reports whether the transport of a device is iWARP.
func iwarp(d rdma.Device) bool { return rdma.LimitsOf(d).IWARP }

// patience is how long anything may take before a test gives up.
const patience = 20 * time.Second

// Run runs the conformance tests.
func Run(t *testing.T, open Provider) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Provider)
	}{
		{"Connect", testConnect},
		{"Reject", testReject},
		{"NothingListens", testNothingListens},
		{"ListenTwice", testListenTwice},
		{"Disconnect", testDisconnect},
		{"DeviceClosed", testDeviceClosed},
		{"DialAbandoned", testDialAbandoned},
		{"Sizes", testSizes},
		{"Immediate", testImmediate},
		{"GatherScatter", testGatherScatter},
		{"PageEnds", testPageEnds},
		{"Atomics", testAtomics},
		{"OrderOfList", testOrderOfList},
		{"RemoteAccess", testRemoteAccess},
		{"LocalAccess", testLocalAccess},
		{"LongMessage", testLongMessage},
		{"Invalidate", testInvalidate},
		{"Window", testWindow},
		{"MemoryWindow", testMemoryWindow},
		{"BadBinds", testBadBinds},
		{"DMABuf", testDMABuf},
		{"DMABufAccess", testDMABufAccess},
		{"BadDMABufs", testBadDMABufs},
		{"DMABufReleased", testDMABufReleased},
		{"FastRegistration", testFastRegistration},
		{"SharedReceives", testSharedReceives},
		{"Inline", testInline},
		{"InlineMost", testInlineMost},
		{"Arming", testArming},
		{"Resize", testResize},
		{"Drain", testDrain},
		{"Datagrams", testDatagrams},
		{"DatagramService", testDatagramService},
		{"ReceiverNotReady", testReceiverNotReady},
		{"QueueFull", testQueueFull},
		{"Transitions", testTransitions},
		{"ManyConnections", testManyConnections},
		{"RandomProgram", testRandomProgram},
		{"Loop", testLoop},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open) })
	}
}

// pair is two connected ends, each with a device of its own.
type pair struct {
	t      testing.TB
	ctx    context.Context
	devs   [2]rdma.Device
	a, b   *endpoint.Conn // a dialed
	listen *endpoint.Listener
}

// port is the port that the tests listen on.
const port = 7471

func newPair(t testing.TB, open Provider, cfg endpoint.Config) *pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	p := &pair{t: t, ctx: ctx, devs: [2]rdma.Device{open(t), open(t)}}
	l, err := endpoint.Listen(p.devs[1], port, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.listen = l
	p.a, p.b = p.connect(cfg)
	return p
}

// connect makes one more connection.
func (p *pair) connect(cfg endpoint.Config) (a, b *endpoint.Conn) {
	p.t.Helper()
	accepted := make(chan error, 1)
	go func() {
		var err error
		b, err = p.listen.Accept(p.ctx)
		accepted <- err
	}()
	a, err := endpoint.Dial(p.ctx, p.devs[0], p.listen.Addr(), cfg)
	if err != nil {
		p.t.Fatalf("dial: %v", err)
	}
	if err := <-accepted; err != nil {
		p.t.Fatalf("accept: %v", err)
	}
	p.t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// region registers n bytes that have the pattern of seed.
func (p *pair) region(c *endpoint.Conn, n int, seed byte, access rdma.Access) rdma.MR {
	p.t.Helper()
	m, err := c.Register(pattern(n, seed), access)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(m.Close)
	return m
}

const anyAccess = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// settle waits until c's loop has made a turn. The caller then sees what peers wrote into memory
// before.
func settle(c *endpoint.Conn) {
	done := make(chan struct{})
	if c.Loop().Submit(func() { close(done) }) {
		<-done
	}
}

// await receives from a channel. It fails the test if that takes too long.
func await[T any](t testing.TB, c <-chan T, otherwise string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal(otherwise)
	}
	return v
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// over waits for the end of a connection and returns why.
func over(t testing.TB, c *endpoint.Conn) error {
	t.Helper()
	await(t, c.Done(), "the connection does not end")
	if c.Err() == nil {
		t.Error("a connection ended without saying why")
	}
	return c.Err()
}

// seeded is a random source whose seed is printed, and can be set by
// RDMATEST_SEED.
func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if s := os.Getenv("RDMATEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatal(fmt.Errorf("RDMATEST_SEED: %w", err))
		}
		seed = v
	}
	t.Logf("RDMATEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
