package connstate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// Phase is how far a connection has come. A connection is made in Requested or Accepted:
//
//	Requested ---- the REP (active side) -----------------> Established
//	Accepted ----- the RTU, or the peer's first message --> Established
//	any ---------- DREQ, REJ, timeout, failure, Close ----> Down
type Phase uint8

// The phases.
const (
	Requested   Phase = iota // active side: the REQ is out
	Accepted                 // passive side: the REP is out
	Established              // both sides may send
	Down                     // over: the event that says so was delivered, or is queued
)

// Ends that are no failures.
var (
	ErrPeerLeft  = errors.New("the peer disconnected")
	ErrLocalLeft = errors.New("disconnected")
)

// Conn is the state of a connection that does not depend on the provider. It belongs to the loop
// of the connection.
type Conn struct {
	Phase      Phase
	Active     bool // we sent the REQ
	Closed     bool // by the user, who gets no callback any more
	LocalAddr  netip.AddrPort
	RemoteAddr netip.AddrPort
	// Params has the negotiated depths and the retry counts. Its private data is ours.
	Params rdma.ConnParams
	MTU    rdma.MTU
	On     func(rdma.Conn, rdma.ConnEvent)
	Note   func() rdma.Note // see rdma.Annotated
}

// Local implements rdma.Conn.
func (c *Conn) Local() netip.AddrPort { return c.LocalAddr }

// Remote implements rdma.Conn.
func (c *Conn) Remote() netip.AddrPort { return c.RemoteAddr }

// Annotate implements rdma.Annotated.
func (c *Conn) Annotate(note func() rdma.Note) { c.Note = note }

// Deliver calls the user's callback. self is the provider's connection, which embeds c.
func (c *Conn) Deliver(self rdma.Conn, e rdma.ConnEvent) {
	if !c.Closed && c.On != nil {
		c.On(self, e)
	}
}

// Establish makes the connection established. It reports false if it is established or down
// already.
func (c *Conn) Establish() bool {
	if c.Phase == Established || c.Phase == Down {
		return false
	}
	c.Phase = Established
	return true
}

// EstablishedEvent is the event for the user, with what was negotiated.
func (c *Conn) EstablishedEvent(private []byte) rdma.ConnEvent {
	return rdma.ConnEvent{
		Kind: rdma.EventEstablished, PrivateData: private, PathMTU: c.MTU,
		ResponderResources: c.Params.ResponderResources, InitiatorDepth: c.Params.InitiatorDepth,
	}
}

// Ordinary reports whether why is a normal end of a connection, which needs no failure record.
func Ordinary(why error) bool {
	return why == nil || errors.Is(why, ErrPeerLeft) || errors.Is(why, ErrLocalLeft) || errors.Is(why, rdma.ErrClosed)
}

// Outcome decides whether the end of a connection is a failure, and returns "" if it is not. was is
// the phase before the end, reason that of a REJ. Outcome calls the user's Note function. So it is
// called once, after the user got the last event.
func (c *Conn) Outcome(kind rdma.ConnEventKind, reason uint16, was Phase, why error) (o rdma.Outcome, note rdma.Note) {
	if c.Note != nil {
		note = c.Note()
	}
	switch {
	case kind == rdma.EventRejected || reason != 0:
		o = rdma.Rejected
	case kind == rdma.EventUnreachable && was == Accepted:
		o = rdma.Unconfirmed
	case kind == rdma.EventUnreachable:
		o = rdma.Unreachable
	case !Ordinary(why):
		o = rdma.Broken
	case note.Why != "":
		o = rdma.Dropped
	}
	return o, note
}

// Defaults of ConnParams: the most that the fields of REQ and REP take. 7 RNR retries
// mean no end.
const (
	retriesDefault = 7
	rnrForever     = 7
)

// Bound limits the depths to most, the READs that the device serves and starts at once (0:
// unknown), and fills in the retry counts.
func Bound(p rdma.ConnParams, most uint8) rdma.ConnParams {
	if most > 0 {
		p.ResponderResources, p.InitiatorDepth = min(p.ResponderResources, most), min(p.InitiatorDepth, most)
	}
	p.RetryCount = cmp.Or(p.RetryCount, retriesDefault)
	p.RNRRetryCount = cmp.Or(p.RNRRetryCount, rnrForever)
	return p
}

// BoundAccept is Bound for the answer to a request: what one side serves bounds what the other
// starts.
func BoundAccept(p rdma.ConnParams, most uint8, r rdma.ConnRequest) rdma.ConnParams {
	p = Bound(p, most)
	p.InitiatorDepth = min(p.InitiatorDepth, r.ResponderResources())
	p.ResponderResources = min(p.ResponderResources, r.InitiatorDepth())
	return p
}

// CheckRemote refuses a peer of the other address family.
func CheckRemote(from netip.Addr, to netip.AddrPort) error {
	if !to.Addr().IsValid() || to.Addr().Unmap().Is4() != from.Is4() {
		return fmt.Errorf("%w: %v cannot be reached from %v", rdma.ErrInvalidWR, to, from)
	}
	return nil
}

// CheckPrivate refuses private data that does not fit its message, such as "a REQ".
func CheckPrivate(data []byte, most int, message string) error {
	if len(data) > most {
		return fmt.Errorf("%w: the private data has %d bytes; %s carries at most %d", rdma.ErrInvalidWR, len(data), message,
			most)
	}
	return nil
}

// CheckDial returns an error for parameters that no provider supports. privateMax is the room for
// private data in a REQ.
func CheckDial(from netip.Addr, p *rdma.DialParams, privateMax int) error {
	if p.DSCP > rdma.DSCPMax {
		return fmt.Errorf("%w: a DSCP is at most %d, not %d", rdma.ErrInvalidWR, rdma.DSCPMax, p.DSCP)
	}
	return cmp.Or(CheckRemote(from, p.Remote), CheckPrivate(p.Params.PrivateData, privateMax, "a REQ"))
}
