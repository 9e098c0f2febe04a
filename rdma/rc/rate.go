package rc

import "github.com/rstored/rstored/rdma"

// rate limits the responses to the peer's READs. Nothing acknowledges them, so a fixed
// time takes the place of the round trip: the window is what is sent in it. There is none
// until the first sign of congestion, which is put against what was sent lately.
type rate struct {
	window window
	pacer
	mtu int

	// What was sent in the interval that began at since, and in the one before, as packets
	// in a rateRound.
	since rdma.Time
	bytes int
	seen  int
}

const (
	rateRound = 200 * rdma.Microsecond
	// rateIdle is how long a limit is kept that nothing is sent under.
	rateIdle = rdma.Second
)

func (c *rate) start(now rdma.Time, mtu int, fixed bool) {
	*c = rate{mtu: mtu, since: now}
	c.window.start(int(rateMax*int64(rateRound)/int64(rdma.Second))/mtu, fixed)
	c.window.size = c.window.most
}

// sent accounts for a packet of n bytes.
func (c *rate) sent(now rdma.Time, n int) {
	d := now - c.since
	if d > rateIdle {
		c.start(now, c.mtu, c.window.fixed)
	} else if d >= rateRound {
		c.look(d)
		c.since, c.bytes = now, 0
	}
	c.bytes += n
	if !c.window.limited() {
		return
	}
	c.window.grow(1, true)
	c.limit(now)
	c.charge(now, n)
}

// look takes an interval of length d.
func (c *rate) look(d rdma.Time) {
	c.seen = max(1, int(int64(c.bytes)*int64(rateRound)/int64(d))/c.mtu)
}

// limit makes the pacer keep to the window.
func (c *rate) limit(now rdma.Time) {
	if !c.window.limited() {
		c.set(now, 0, 0)
		return
	}
	bytes := int64(c.window.size) * int64(c.mtu+headerCharge) / windowUnit
	c.set(now, max(1, bytes*int64(rdma.Second/rateRound)), rateMax)
}

// begin puts a limit where there is none. It reports false if nothing was sent lately.
func (c *rate) begin(now rdma.Time) bool {
	if c.window.limited() {
		return true
	}
	if c.seen == 0 && c.bytes == 0 || now-c.since > rateIdle || c.window.fixed {
		return false
	}
	if d := now - c.since; c.seen == 0 && d > 0 {
		c.look(d)
	}
	c.window.size = min(max(c.seen, 1)*windowUnit, c.window.most-1)
	return true
}

// marked takes a CNP, and reports whether it lowered the rate.
func (c *rate) marked(now rdma.Time) bool {
	if !c.begin(now) || !c.window.marked(now, rateRound) {
		return false
	}
	c.limit(now)
	return true
}

// lost takes the loss of a response that shows by the peer asking again.
func (c *rate) lost(now rdma.Time) {
	if c.begin(now) {
		c.window.lost(now, rateRound, true)
		c.limit(now)
	}
}
