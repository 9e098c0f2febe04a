package connstate

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestOutcome: each bad end has its outcome. A normal end has none, unless the user says why it
// ended the connection.
func TestOutcome(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		kind   rdma.ConnEventKind
		reason uint16
		was    Phase
		why    error
		note   string
		want   rdma.Outcome
	}{
		{rdma.EventRejected, 28, Requested, failed, "", rdma.Rejected},
		{rdma.EventDisconnected, 4, Accepted, failed, "", rdma.Rejected},
		{rdma.EventUnreachable, 0, Requested, failed, "", rdma.Unreachable},
		{rdma.EventUnreachable, 0, Accepted, failed, "", rdma.Unconfirmed},
		{rdma.EventDisconnected, 0, Established, failed, "", rdma.Broken},
		{rdma.EventDisconnected, 0, Established, failed, "slow", rdma.Broken},
		{rdma.EventDisconnected, 0, Established, ErrPeerLeft, "", ""},
		{rdma.EventDisconnected, 0, Established, fmt.Errorf("x: %w", rdma.ErrClosed), "", ""},
		{rdma.EventDisconnected, 0, Established, ErrLocalLeft, "slow", rdma.Dropped},
		{rdma.EventDisconnected, 0, Accepted, nil, "", ""},
	} {
		x := Conn{Note: func() rdma.Note { return rdma.Note{Why: c.note} }}
		if o, note := x.Outcome(c.kind, c.reason, c.was, c.why); o != c.want || note.Why != c.note {
			t.Errorf("%+v: %q", c, o)
		}
	}
	if o, _ := new(Conn).Outcome(rdma.EventDisconnected, 0, Established, ErrLocalLeft); o != "" {
		t.Errorf("without a note: %q", o)
	}
}

// TestEstablish: a connection is established once, and not after its end.
func TestEstablish(t *testing.T) {
	c := Conn{Phase: Accepted}
	if !c.Establish() || c.Establish() {
		t.Error("established other than once")
	}
	if c.Phase = Down; c.Establish() {
		t.Error("established after the end")
	}
}

// TestChecks: parameters that no provider can use are refused.
func TestChecks(t *testing.T) {
	from, to := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("10.0.0.2:20049")
	for i, p := range []rdma.DialParams{
		{},
		{Remote: netip.MustParseAddrPort("[fd00::1]:20049")},
		{Remote: to, DSCP: 64},
		{Remote: to, Params: rdma.ConnParams{PrivateData: make([]byte, 57)}},
	} {
		if err := CheckDial(from, &p, 56); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := CheckDial(from, &rdma.DialParams{
		Remote: to, DSCP: 63,
		Params: rdma.ConnParams{PrivateData: make([]byte, 56)},
	}, 56); err != nil {
		t.Error(err)
	}
	p := Bound(rdma.ConnParams{ResponderResources: 20, InitiatorDepth: 3, RetryCount: 2}, 16)
	if p.ResponderResources != 16 || p.InitiatorDepth != 3 || p.RetryCount != 2 || p.RNRRetryCount != 7 {
		t.Errorf("%+v", p)
	}
}
