package lease

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// TestEngine: who may serve, step by step.
func TestEngine(t *testing.T) {
	const term = 4 * time.Second
	a, b := Engine{Node: "a", Term: term}, Engine{Node: "b", Term: term}
	if _, ok := a.Claim(); ok {
		t.Error("a lease was claimed that was never read")
	}
	a.Read(0, 0, Record{}, false)
	r, ok := a.Claim()
	if !ok || r != (Record{Epoch: 1, Node: "a"}) || a.Serving(0) {
		t.Fatalf("the first claim: %+v, %v", r, ok)
	}
	a.Claimed(time.Second, r)
	if !a.Serving(term) || a.Until() != term+time.Second {
		t.Error("a holds the lease and may not serve")
	}
	b.Read(99*time.Second, 100*time.Second, r, true)
	b.Read(100*time.Second+term, 200*time.Second, r, true)
	if _, ok := b.Claim(); ok {
		t.Error("b claims after one term, in which a may serve")
	}
	r2 := a.Renewal()
	a.Renewed(3*time.Second, 4*time.Second)
	b.Read(204*time.Second, 204*time.Second, r2, true)
	if _, ok := b.Claim(); ok || !a.Serving(6*time.Second) {
		t.Error("a renewal counts for nothing")
	}
	if a.Serving(7 * time.Second) {
		t.Error("a serves beyond its term")
	}
	a.Renewed(6*time.Second, 8*time.Second)
	if a.Serving(8 * time.Second) {
		t.Error("a late renewal brings a lost lease back")
	}
	b.Read(209*time.Second, 209*time.Second, r2, true)
	r, ok = b.Claim()
	if !ok || r.Epoch != 2 {
		t.Fatalf("b may not claim: %+v", r)
	}
	b.Claimed(209*time.Second, r)
	b.Read(210*time.Second, 210*time.Second, Record{Epoch: 3, Node: "a"}, true)
	if b.Serving(210 * time.Second) {
		t.Error("b serves although another node has claimed")
	}
	c := Engine{Node: "c", Term: term}
	c.Read(0, 0, Record{Epoch: 3, Node: "a", Released: true}, true)
	if r, ok = c.Claim(); !ok || r.Epoch != 4 {
		t.Error("a lease that was released cannot be claimed")
	}
	if _, ok := c.Replace(); ok {
		t.Error("c replaces a process of another node")
	}
	c.Read(0, 0, Record{Epoch: 4, Node: "a", Released: true, To: "b"}, true)
	if _, ok = c.Claim(); ok {
		t.Error("c claims a lease that was released to b")
	}
	c.Read(5*time.Second, 5*time.Second, c.Seen(), true)
	if _, ok = c.Claim(); !ok {
		t.Error("nobody may claim a lease that b does not claim")
	}
	a = Engine{Node: "a", Term: term}
	a.Read(0, 0, c.Seen(), true)
	if _, ok = a.Replace(); ok {
		t.Error("a takes back a lease that it has released to b")
	}
	b = Engine{Node: "b", Term: term}
	b.Read(0, 0, c.Seen(), true)
	if _, ok = b.Claim(); !ok {
		t.Error("b may not claim a lease that was released to it")
	}
	if r, ok = c.Abandon(); ok {
		t.Errorf("c releases what another node has: %+v", r)
	}
	c.Read(0, 0, Record{Epoch: 9, Node: "c"}, true)
	if r, ok = c.Abandon(); !ok || r != (Record{Epoch: 9, Node: "c", Count: 1, Released: true}) {
		t.Errorf("c cannot release what its own process had: %+v", r)
	}
	if p := c.Pause(4 * time.Second); p != term/8 {
		t.Errorf("c waits %v", p)
	}
	if p := c.Pause(5*time.Second - time.Millisecond); p != time.Millisecond {
		t.Errorf("c waits %v, although the lease is free sooner", p)
	}
	if r, ok = c.Replace(); !ok || r.Epoch != 10 {
		t.Error("c cannot replace its own process that has ended")
	}
}

// world is a simulation of nodes that share one storage. Everything that a node does takes time:
// its requests to the storage are slow or lost for a while, the node itself is stopped, ends or is
// started again, and its clock runs too fast or too slow.
type world struct {
	t     *testing.T
	r     *rand.Rand
	now   time.Duration
	queue []event
	files []Record // the newest is the last; each claim adds one
	nodes []*node

	abandoned int // leases that a process has released for the one before it
}

type event struct {
	at time.Duration
	do func()
}

type node struct {
	w       *world
	e       *Engine
	name    string
	rate    float64 // of its clock
	offset  time.Duration
	stopped time.Duration // until when
	life    int           // counts its processes: what an ended one had under way has no effect on the next
}

func (w *world) after(d time.Duration, do func()) {
	e := event{w.now + d, do}
	i, _ := slices.BinarySearchFunc(w.queue, e, func(a, b event) int { return int(a.at - b.at) })
	w.queue = slices.Insert(w.queue, i, e)
}

func (n *node) clock() time.Duration { return n.offset + time.Duration(float64(n.w.now)*n.rate) }

// run does something in the node's process, when it is not stopped.
func (n *node) run(life int, do func()) {
	switch {
	case life != n.life:
	case n.w.now < n.stopped:
		n.w.after(n.stopped-n.w.now, func() { n.run(life, do) })
	default:
		do()
	}
}

// delay is how long a request to the storage takes.
func (w *world) delay(term time.Duration) time.Duration {
	if w.r.IntN(20) == 0 {
		return time.Duration(w.r.Int64N(int64(3 * term)))
	}
	return time.Duration(w.r.Int64N(int64(term / 100)))
}

// storage has a request executed somewhere within the time that it takes, and then its result
// arrive.
func (n *node) storage(request func() (result func())) {
	life := n.life
	n.w.after(n.w.delay(n.e.Term), func() {
		result := request()
		n.w.after(n.w.delay(n.e.Term), func() { n.run(life, result) })
	})
}

func (w *world) newest() (Record, bool) {
	if len(w.files) == 0 {
		return Record{}, false
	}
	return w.files[len(w.files)-1], true
}

// stand is the life of a node without the lease.
func (n *node) stand() {
	begun := n.clock()
	n.storage(func() func() {
		r, ok := n.w.newest()
		return func() {
			n.e.Read(begun, n.clock(), r, ok)
			c, may := n.e.Claim()
			if !may {
				n.again(n.e.Pause(n.clock()), n.stand)
				return
			}
			begun := n.clock()
			n.storage(func() func() {
				now, _ := n.w.newest()
				won := now.Epoch < c.Epoch
				if won {
					n.w.files = append(n.w.files, c)
				}
				return func() {
					if !won {
						n.stand()
						return
					}
					n.e.Claimed(begun, c)
					n.hold()
				}
			})
		}
	})
}

// hold is the life of a node that has claimed the lease.
func (n *node) hold() {
	if !n.e.Serving(n.clock()) {
		n.restart()
		return
	}
	begun, r := n.clock(), n.e.Renewal()
	n.storage(func() func() {
		n.w.files[r.Epoch-1] = r
		newest, ok := n.w.newest()
		return func() {
			n.e.Read(begun, n.clock(), newest, ok)
			n.e.Renewed(begun, n.clock())
			n.again(n.e.Term/4, n.hold)
		}
	})
}

func (n *node) again(d time.Duration, do func()) {
	life := n.life
	n.w.after(d, func() { n.run(life, do) })
}

// restart ends the process of a node, and starts another one. That one may release the lease of the
// process before it.
func (n *node) restart() {
	n.life++
	n.e = &Engine{Node: n.name, Term: n.e.Term}
	next := n.stand
	if n.w.r.IntN(2) == 0 {
		next = n.abandon
	}
	n.again(time.Duration(n.w.r.Int64N(int64(n.e.Term))), next)
}

// abandon releases the lease of an ended process of the node, and then waits.
func (n *node) abandon() {
	begun := n.clock()
	n.storage(func() func() {
		r, ok := n.w.newest()
		return func() {
			n.e.Read(begun, n.clock(), r, ok)
			if r, left := n.e.Abandon(); left {
				n.w.abandoned++
				n.storage(func() func() {
					n.w.files[r.Epoch-1] = r
					return func() {}
				})
			}
			n.stand()
		}
	})
}

// TestNeverTwo: at no moment two nodes may serve, whatever happens to them, and somebody serves
// most of the time if little happens. LEASE_SEED sets the seed.
func TestNeverTwo(t *testing.T) {
	seed := rand.Uint64()
	_, _ = fmt.Sscan(os.Getenv("LEASE_SEED"), &seed)
	var calm, served time.Duration // of all worlds without faults
	abandoned := 0
	for i := range uint64(200) {
		s := seed + i
		const term = 2 * time.Second
		w := &world{t: t, r: rand.New(rand.NewPCG(s, 1))}
		for i := range 2 + w.r.IntN(3) {
			n := &node{
				w: w, name: string(rune('a' + i)), rate: 0.96 + 0.08*w.r.Float64(),
				offset: time.Duration(w.r.Int64N(int64(time.Hour))),
			}
			n.e = &Engine{Node: n.name, Term: term}
			w.nodes = append(w.nodes, n)
			n.again(0, n.stand)
		}
		faults := i%4 != 0
		if faults {
			w.after(term, w.fault)
		}
		const end = 300 * term
		held := time.Duration(0)
		for len(w.queue) > 0 && w.now < end {
			e := w.queue[0]
			w.queue = w.queue[1:]
			// Between two events too: a node can begin to serve by its clock alone, if it is wrong.
			for _, step := range []time.Duration{(e.at - w.now) / 2, (e.at - w.now + 1) / 2} {
				w.now += step
				switch serving := w.serving(); {
				case serving > 1:
					t.Fatalf("seed %d: %d nodes may serve at %v", s, serving, w.now)
				case serving == 1:
					held += step
				}
			}
			e.do()
		}
		abandoned += w.abandoned
		if !faults {
			calm, served = calm+end, served+held
		}
	}
	if abandoned == 0 {
		t.Errorf("seed %d: no lease was released for a process that has ended", seed)
	}
	// One of 20 requests to the storage takes up to three terms, so that the lease is lost now and
	// then.
	if served < calm/2 {
		t.Errorf("seed %d: without faults somebody served for %v of %v", seed, served, calm)
	}
}

// serving is the number of nodes that may serve now. One that is stopped does nothing.
func (w *world) serving() (sum int) {
	for _, n := range w.nodes {
		if w.now >= n.stopped && n.e.Serving(n.clock()) {
			sum++
		}
	}
	return sum
}

// fault does something bad to a node, again and again.
func (w *world) fault() {
	n := w.nodes[w.r.IntN(len(w.nodes))]
	d := time.Duration(w.r.Int64N(int64(4 * n.e.Term)))
	switch w.r.IntN(3) {
	case 0:
		n.stopped = max(n.stopped, w.now+d)
	case 1:
		n.restart()
	case 2: // planned: it gives the lease up, or gives it to another node, which may be gone
		if n.e.Serving(n.clock()) && w.now >= n.stopped {
			to := ""
			if w.r.IntN(2) == 0 {
				to = w.nodes[w.r.IntN(len(w.nodes))].name
			}
			r := n.e.Release(to, "")
			n.storage(func() func() {
				w.files[r.Epoch-1] = r
				return func() {}
			})
			n.restart()
		}
	}
	w.after(time.Duration(w.r.Int64N(int64(6*n.e.Term))), w.fault)
}
