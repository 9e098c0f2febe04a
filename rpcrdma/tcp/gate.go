package tcp

import "sync"

// gate keeps the reader of a connection from reading on while its calls hold too much memory, or
// some of them wait for their client's limits to let them go on. The socket fills up, and the
// client cannot send.
type gate struct {
	limit int

	mu      sync.Mutex
	changed sync.Cond
	held    int // bytes
	late    int // calls that wait for their time
	ended   bool
}

func (g *gate) init(limit int) {
	g.limit = limit
	g.changed.L = &g.mu
}

// wait waits until the connection may be read, and reports whether it had to.
func (g *gate) wait() (waited bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.ended && (g.held > g.limit || g.late > 0) {
		waited = true
		g.changed.Wait()
	}
	return waited
}

// hold counts n bytes more, or less.
func (g *gate) hold(n int) {
	g.mu.Lock()
	g.held += n
	g.mu.Unlock()
	if n < 0 {
		g.changed.Signal()
	}
}

// delay counts n calls more, or less, that wait for their time.
func (g *gate) delay(n int) {
	g.mu.Lock()
	g.late += n
	g.mu.Unlock()
	g.changed.Signal()
}

// open ends the gate: nobody waits any more.
func (g *gate) open() {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	g.changed.Signal()
}

func (g *gate) memory() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

func (k *call) hold(n int) {
	k.held += n
	k.c.gate.hold(n)
}

// Delayed implements rpc.Delayer.
func (k *call) Delayed(waits bool) {
	if waits {
		k.c.gate.delay(1)
	} else {
		k.c.gate.delay(-1)
	}
}
