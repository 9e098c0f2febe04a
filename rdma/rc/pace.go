package rc

import "github.com/rstored/rstored/rdma"

// pacer spreads packets over time, so that queues in the network stay short. It is a token bucket
// of bytes; rate 0 means no limit.
//
//	credit(t) = min(burst, credit + rate * (t - at)); a packet of n bytes takes n + headerCharge
//
// The credit may become negative: a packet is sent whole. The next packet then waits until the
// credit has grown to a quantum, the tokens of quantumTime.
type pacer struct {
	rate   int64     // bytes per second
	burst  int64     // bytes that may be sent at once
	credit int64     // bytes that may be sent now; negative if the last packet was longer
	at     rdma.Time // the time of credit
	until  rdma.Time // nothing may be sent before; 0 = now
}

const (
	// burstTime bounds the burst: what the rate allows in this time may be sent at once if the
	// process wakes late. quantumTime is the least time to wait, because timers are not exact to
	// the microsecond.
	burstTime   = 100 * rdma.Microsecond
	quantumTime = 20 * rdma.Microsecond
	// rateMax is more than a software device can send. It keeps the product of a rate and a
	// second within 63 bits.
	rateMax = 8e9
	// headerCharge is the length of a packet without its payload: IP, UDP, BTH and ICRC.
	headerCharge = 44
)

// set changes the rate and the burst.
func (p *pacer) set(now rdma.Time, rate, burst int64) {
	rate = min(rate, rateMax)
	if rate == 0 {
		*p = pacer{}
		return
	}
	if p.rate == 0 {
		p.at = now
	}
	p.fill(now)
	p.rate, p.burst = rate, min(burst, rate*int64(burstTime)/int64(rdma.Second))
}

// paced reports whether the next packet has to wait.
func (p *pacer) paced(now rdma.Time) bool { return p.until > now }

// charge accounts for a packet with n bytes of payload.
func (p *pacer) charge(now rdma.Time, n int) {
	if p.rate == 0 {
		return
	}
	p.fill(now)
	p.credit -= int64(n) + headerCharge
	p.until = 0
	if p.credit <= 0 {
		quantum := min(p.rate*int64(quantumTime)/int64(rdma.Second), p.burst/2)
		p.until = now + max(1, rdma.Time((quantum-p.credit)*int64(rdma.Second)/p.rate))
	}
}

// fill adds the tokens since the last call, a second's worth at most.
func (p *pacer) fill(now rdma.Time) {
	if now <= p.at {
		return
	}
	p.credit += int64(min(now-p.at, rdma.Second)) * p.rate / int64(rdma.Second)
	p.credit = min(p.credit, p.burst)
	p.at = now
}
