package wire

// PSN is a 24-bit packet sequence number (IBTA 9.7). Arithmetic is modulo 2^24, and comparison
// is by signed distance: of two PSNs less than 2^23 apart, the one that is reached by counting up
// is the later. A requester has at most 2^23 PSNs outstanding, so comparing with < is
// always wrong and Before is always right.
type PSN uint32

// PSNMask holds the 24 bits of a PSN.
const PSNMask = 1<<24 - 1

// Add returns the PSN n packets later.
func (p PSN) Add(n int) PSN { return PSN((uint32(p) + uint32(n)) & PSNMask) }

// Sub returns the signed distance from o to p, in packets.
func (p PSN) Sub(o PSN) int32 { return int32((uint32(p)-uint32(o))<<8) >> 8 }

// Before reports whether p comes before o.
func (p PSN) Before(o PSN) bool { return p.Sub(o) < 0 }

// After reports whether p comes after o.
func (p PSN) After(o PSN) bool { return p.Sub(o) > 0 }
