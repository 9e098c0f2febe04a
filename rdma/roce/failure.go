package roce

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rc"
)

// Record is what a device knows of a connection that ended badly, or of a
// request for one that it refused.
type Record struct {
	Outcome rdma.Outcome
	Local   netip.AddrPort
	Remote  netip.AddrPort
	Active  bool      // we sent the REQ
	Reason  cm.Reason // of the REJ, 0 if there was none
	Err     error     // why, in words
	REQ     *cm.REQ   // nil if it had not been sent
	Note    rdma.Note // of the connection's user

	// InterfaceMTU is that of our interface in bytes, PathMTUMax what we would
	// agree to on it.
	InterfaceMTU int
	PathMTUMax   rdma.MTU
	// TooBig tells of the last packet to the peer that our interface did not take, nil if there was none.
	TooBig *link.TooBigError

	// The rest is zero where there never was a queue pair.
	Established   bool
	Age           rdma.Time
	LocalQPN      uint32
	LocalPSN      uint32 // where the peer's packets began
	PathMTU       rdma.MTU
	ReadsServed   uint8 // RDMA READs of the peer at once
	ReadsStarted  uint8 // ours
	AckTimeout    uint8 // code
	RetryCount    uint8
	RNRRetryCount uint8
	Seen          rc.Seen
	// Recent are the last packets, oldest first, and Ended the time of the end on their
	// clock.
	Recent []rc.Run
	Ended  rdma.Time
}

// reportFailure reports a connection or request. Nothing of it is on the packet path.
func (s *shard) reportFailure(r *Record, note func() rdma.Note) {
	if s.dev.cfg.OnFailure == nil {
		return
	}
	if note != nil {
		r.Note = note()
	}
	r.InterfaceMTU, r.PathMTUMax = s.link.MTU(), s.dev.mtu
	s.dev.cfg.OnFailure(*r)
}

// refused reports a REQ that the connection manager rejected by itself.
func (s *shard) refused(src netip.Addr, req *cm.REQ, why cm.Reason) {
	if s.dev.cfg.OnFailure == nil {
		return
	}
	q := *req
	port, _ := cm.ServicePort(q.ServiceID)
	remote := netip.AddrPortFrom(src.Unmap(), 0)
	if ip, err := cm.ParseIPHeader(q.Private[:]); err == nil && ip.Src.Addr() == src.Unmap() {
		remote = ip.Src
	}
	s.reportFailure(&Record{Outcome: rdma.Refused, Local: netip.AddrPortFrom(s.dev.ip, port), Remote: remote, Reason: why, REQ: &q}, nil)
}

// Annotate implements rdma.Annotated.
func (r *request) Annotate(note func() rdma.Note) { r.note = note }

// reportFailure reports a request that was refused.
func (r *request) reportFailure(s *shard, reason cm.Reason, err error) {
	s.reportFailure(&Record{Outcome: rdma.Refused, Local: r.Local(), Remote: r.remote, Reason: reason, Err: err, REQ: &r.req}, r.note)
}

// Annotate implements rdma.Annotated.
func (c *conn) Annotate(note func() rdma.Note) { c.note = note }

// ordinary ends are those that nobody has to look into.
func ordinary(why error) bool {
	return why == nil || errors.Is(why, errPeerLeft) || errors.Is(why, errLocalLeft) || errors.Is(why, rdma.ErrClosed)
}

// mourn reports the end of the connection if it was a bad one. It runs after
// the user was told, who may have something to add.
func (c *conn) mourn(kind rdma.ConnEventKind, reason cm.Reason, why error, was phase) {
	if c.s.dev.cfg.OnFailure == nil || errors.Is(why, cm.ErrEvicted) {
		return
	}
	r := Record{
		Local: c.local, Remote: c.remote, Active: c.active, Reason: reason, Err: why, REQ: c.req,
		Established: was == established, Age: c.s.now - c.since,
		LocalQPN: c.q.num, LocalPSN: c.rqPSN, PathMTU: c.mtu, ReadsServed: c.resources, ReadsStarted: c.depth,
		AckTimeout: c.timeout, RetryCount: c.retries, RNRRetryCount: c.q.rc.Attr().RNRRetryCount, Seen: c.q.rc.Seen(),
		Recent: c.q.rc.Recent(), Ended: c.s.now, TooBig: c.tooBig,
	}
	if err := c.q.rc.Err(); err != nil && ordinary(why) {
		why = err // of which its user heard first, by a completion
		r.Err = err
	}
	switch {
	case kind == rdma.EventRejected || reason != 0:
		r.Outcome = rdma.Rejected
	case kind == rdma.EventUnreachable && was == accepted:
		r.Outcome = rdma.Unconfirmed
	case kind == rdma.EventUnreachable:
		r.Outcome = rdma.Unreachable
	case !ordinary(why):
		r.Outcome = rdma.Broken
	case c.note == nil:
		return
	default:
		r.Outcome = rdma.Dropped
		note := c.note()
		if note.Why == "" {
			return
		}
		c.note = func() rdma.Note { return note }
		r.Err = nil
	}
	if c.tooBig != nil && r.Err != nil {
		r.Err = fmt.Errorf("%w; %w", r.Err, c.tooBig)
	}
	c.s.reportFailure(&r, c.note)
}
