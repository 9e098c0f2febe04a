package roce

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/connstate"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rc"
)

// Record is the failure record of a connection that ended badly, or of a REQ that we refused.
type Record struct {
	Outcome rdma.Outcome
	Local   netip.AddrPort
	Remote  netip.AddrPort
	Active  bool      // we sent the REQ
	Reason  cm.Reason // of the REJ, 0 if there was none
	Err     error     // why, in words
	REQ     *cm.REQ   // nil if it had not been sent
	Note    rdma.Note // of the connection's user

	// InterfaceMTU is that of our interface in bytes. PathMTUMax is the largest path MTU that fits
	// it.
	InterfaceMTU int
	PathMTUMax   rdma.MTU
	// TooBig is about the last packet to the peer that did not fit our interface, nil if all did.
	TooBig *link.TooBigError

	// The rest is zero if there was no queue pair.
	Established   bool
	Age           rdma.Time
	LocalQPN      uint32
	LocalPSN      uint32 // of the first packet of the peer
	PathMTU       rdma.MTU
	ReadsServed   uint8 // most RDMA READs of the peer at once
	ReadsStarted  uint8 // most of ours at once
	AckTimeout    uint8 // code
	RetryCount    uint8
	RNRRetryCount uint8
	Summary       rc.Summary
	// Recent are the last packets, oldest first. Ended is the time of the end, on their clock.
	Recent []rc.Run
	Ended  rdma.Time
}

// record hands a record to the user of the device. Nothing of it is on the packet path.
func (s *shard) record(r *Record) {
	r.InterfaceMTU, r.PathMTUMax = s.link.MTU(), s.dev.mtu
	s.dev.cfg.OnFailure(*r)
}

// refused records a REQ that the connection manager rejected by itself. The sender's port is in
// the private data (IBTA annex A11), if that can be believed.
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
	s.record(&Record{
		Outcome: rdma.Refused, Local: netip.AddrPortFrom(s.dev.ip, port), Remote: remote, Reason: why,
		REQ: &q,
	})
}

// recordRefusal records a REQ that the device or its user rejected.
func (r *request) recordRefusal(reason cm.Reason, err error) {
	if r.s.dev.cfg.OnFailure == nil {
		return
	}
	x := Record{Outcome: rdma.Refused, Local: r.Local(), Remote: r.remote, Reason: reason, Err: err, REQ: &r.req}
	if r.note != nil {
		x.Note = r.note()
	}
	r.s.record(&x)
}

// recordEnd records the end of the connection if it is a failure. It runs after the user got the
// event.
func (c *conn) recordEnd(kind rdma.ConnEventKind, reason cm.Reason, why error, was connstate.Phase) {
	if c.s.dev.cfg.OnFailure == nil || errors.Is(why, cm.ErrEvicted) {
		return
	}
	attr := c.q.rc.Attr()
	r := Record{
		Local: c.LocalAddr, Remote: c.RemoteAddr, Active: c.Active, Reason: reason, Err: why, REQ: c.req, TooBig: c.tooBig,
		Established: was == connstate.Established, Age: c.s.now - c.since, Ended: c.s.now,
		LocalQPN: c.q.num, LocalPSN: c.rqPSN, PathMTU: c.MTU,
		ReadsServed: c.Params.ResponderResources, ReadsStarted: c.Params.InitiatorDepth,
		AckTimeout: c.timeout, RetryCount: c.Params.RetryCount, RNRRetryCount: attr.RNRRetryCount,
		Summary: c.q.rc.Summary(), Recent: c.q.rc.Recent(),
	}
	if err := c.q.rc.Err(); err != nil && connstate.Ordinary(why) {
		// The queue pair failed, and the user disconnected when it got the completion.
		why, r.Err = err, err
	}
	if r.Outcome, r.Note = c.Outcome(kind, uint16(reason), was, why); r.Outcome == "" {
		return
	}
	if r.Outcome == rdma.Dropped {
		r.Err = nil
	}
	if c.tooBig != nil && r.Err != nil {
		r.Err = fmt.Errorf("%w; %w", r.Err, c.tooBig)
	}
	c.s.record(&r)
}
