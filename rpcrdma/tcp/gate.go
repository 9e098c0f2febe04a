package tcp

import "sync"

// gate stops the reader of a connection while its calls use too much memory, or while some of
// them are deferred by the limits of their client. The socket's buffer then fills, and TCP stops
// the client.
//
//	charge(+n)  a record was read; a reply was encoded; memory for a result was allocated
//	charge(-n)  the call is over: its reply was written or dropped
//	delay(+1)   a call is deferred by the limits of its client; delay(-1) when it is served
//
// mu is a leaf: nothing is called while it is held.
type gate struct {
	limit int

	mu      sync.Mutex
	changed sync.Cond
	used    int // bytes of calls in progress
	late    int // deferred calls
	ended   bool
}

func (g *gate) init(limit int) {
	g.limit = limit
	g.changed.L = &g.mu
}

// wait blocks while the connection may not be read, and reports whether it blocked. It is called
// before each record is read, so a connection exceeds its limit by one record at most. Only the
// reader waits, so Signal wakes it.
func (g *gate) wait() (waited bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.ended && (g.used > g.limit || g.late > 0) {
		waited = true
		g.changed.Wait()
	}
	return waited
}

// charge adds n bytes to those in use, or subtracts them.
func (g *gate) charge(n int) {
	g.mu.Lock()
	g.used += n
	g.mu.Unlock()
	if n < 0 {
		g.changed.Signal()
	}
}

// delay adds n, 1 or -1, to the deferred calls.
func (g *gate) delay(n int) {
	g.mu.Lock()
	g.late += n
	g.mu.Unlock()
	g.changed.Signal()
}

// open opens the gate for good.
func (g *gate) open() {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	g.changed.Signal()
}

func (g *gate) memory() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.used
}

// charge adds n bytes to the memory of the call, or subtracts them. charged is the sum, which
// recycle subtracts.
func (k *call) charge(n int) {
	k.charged += n
	k.c.gate.charge(n)
}

// Delayed implements rpc.Delayer.
func (k *call) Delayed(waits bool) {
	if waits {
		k.c.gate.delay(1)
	} else {
		k.c.gate.delay(-1)
	}
}
