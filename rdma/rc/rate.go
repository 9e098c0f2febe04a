package rc

import "github.com/rstored/rstored/rdma"

// rate limits the responses to the peer's READs. Nothing acknowledges them, so there is no round
// trip to measure: a fixed interval (rateRound) takes its place, and the window is what is sent
// in one. There is no limit until the first sign of congestion. Then the window begins with what
// was sent in the last interval.
//
//	no limit --CNP, or loss of a response--> limited --grows to the maximum--> no limit
//	                                           |
//	                                           +--no response for rateIdle--> no limit
type rate struct {
	window window
	pacer
	mtu int

	since rdma.Time // beginning of the current interval
	bytes int       // sent in it
	seen  int       // sent in the interval before, as packets per rateRound
}

const (
	rateRound = 200 * rdma.Microsecond
	// rateIdle is the time without responses after which the limit is removed.
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

// look ends an interval of length d.
func (c *rate) look(d rdma.Time) {
	c.seen = max(1, int(int64(c.bytes)*int64(rateRound)/int64(d))/c.mtu)
}

// limit sets the pacer to the rate of the window.
func (c *rate) limit(now rdma.Time) {
	if !c.window.limited() {
		c.set(now, 0, 0)
		return
	}
	bytes := int64(c.window.size) * int64(c.mtu+headerCharge) / windowUnit
	c.set(now, max(1, bytes*int64(rdma.Second/rateRound)), rateMax)
}

// begin starts to limit, if there is no limit. It reports false if nothing was sent lately.
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

// marked handles a CNP, and reports whether it reduced the rate.
func (c *rate) marked(now rdma.Time) bool {
	if !c.begin(now) || !c.window.marked(now, rateRound) {
		return false
	}
	c.limit(now)
	return true
}

// lost handles the loss of a response: the peer requested it again.
func (c *rate) lost(now rdma.Time) {
	if c.begin(now) {
		c.window.lost(now, rateRound, true)
		c.limit(now)
	}
}
