package rc

import "github.com/rstored/rstored/rdma"

// pacer spreads packets over time, so that a queue on the way has to take few of them at
// once. It is a bucket of bytes that fills at a rate; a rate of 0 is none to keep to.
type pacer struct {
	rate   int64     // bytes per second
	burst  int64     // bytes that may be sent at once
	credit int64     // bytes that may be sent now; negative when the last packet was longer
	at     rdma.Time // up to when credit is
	until  rdma.Time // nothing is to be sent before; 0 = now
}

const (
	// burstTime is how much of a rate may be sent at once when its time has come late, as
	// a process is not woken to the microsecond, and quantumTime how much is waited for.
	burstTime   = 100 * rdma.Microsecond
	quantumTime = 20 * rdma.Microsecond
	// rateMax is beyond what a software device sends. It keeps the product of a rate and
	// a second within 63 bits.
	rateMax = 8e9
	// headerCharge is what a packet has beside its payload: IP, UDP, BTH and ICRC.
	headerCharge = 44
)

// set changes the rate, and what may be sent at once when its time has come late.
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

// paced reports whether the next packet has to wait for its time.
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

func (p *pacer) fill(now rdma.Time) {
	if now <= p.at {
		return
	}
	p.credit += int64(min(now-p.at, rdma.Second)) * p.rate / int64(rdma.Second)
	p.credit = min(p.credit, p.burst)
	p.at = now
}
