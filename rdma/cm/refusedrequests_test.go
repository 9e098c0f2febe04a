package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// TestRefusedRequests: the machine rejects REQs without retaining state.
func TestRefusedRequests(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*REQ)
		why    Reason
	}{
		{"another service", func(r *REQ) { r.ServiceID = ServiceID(1) }, InvalidServiceID},
		{"no service of RDMA-CM", func(r *REQ) { r.ServiceID = 5 }, InvalidServiceID},
		{"an unreliable connection", func(r *REQ) { r.Transport = 1 }, InvalidTransport},
		{"no address header", func(r *REQ) { clear(r.Private[:]) }, UnsupportedRequest},
		{"an address header of another version", func(r *REQ) { r.Private[0] = 1 }, UnsupportedRequest},
		{"another address in the header", func(r *REQ) {
			h := IPHeader{Src: netip.AddrPortFrom(testAddr[0].Next().Next(), 1), Dst: testAddr[1]}
			h.Put(r.Private[:])
		}, InvalidGID},
		{"another address in the path", func(r *REQ) { r.Primary.LocalGID = testAddr[0].Next().Next() }, InvalidGID},
		{"for another host", func(r *REQ) { r.Primary.RemoteGID = testAddr[0] }, InvalidGID},
		{"no MTU", func(r *REQ) { r.MTU = 0 }, InvalidMTU},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLone(t, Idle)
			var told Reason
			l.m.cfg.Refused = func(_ netip.Addr, _ *REQ, why Reason) { told = why }
			c.change(&l.req)
			l.hear(l.req.Encode(Header{TID: 1}))
			if said, happened := l.said(),
				l.happened(); said != fmt.Sprintf("REJ(%d)", c.why) || happened != "" || told != c.why || len(l.m.ids) != 0 {
				t.Errorf("said %s, told %q and %v, %d IDs", said, happened, told, len(l.m.ids))
			}
		})
	}
}

// TestUser: the result of each call of the owner in each state, and the message that the peer gets.
func TestUser(t *testing.T) {
	for _, c := range []struct {
		state State
		do    func(l *lone) error
		err   error
		said  string
	}{
		{REQSent, func(l *lone) error { return l.m.Accept(l.now, l.id, AcceptParams{}) }, ErrState, ""},
		{REQSent, func(l *lone) error { return l.m.Confirm(l.id) }, ErrState, ""},
		{REPReceived, func(l *lone) error { return l.m.Confirm(l.id) }, nil, "RTU"},
		{REQReceived, func(l *lone) error { l.m.Reject(l.id, ConsumerDefined, nil); return nil }, nil, "REJ(28)"},
		{REPReceived, func(l *lone) error { l.m.Reject(l.id, ConsumerDefined, nil); return nil }, nil, "REJ(28)"},
		{Established, func(l *lone) error { l.m.Reject(l.id, ConsumerDefined, nil); return nil }, nil, ""},
		{REQSent, func(l *lone) error { l.m.Disconnect(l.now, l.id); return nil }, nil, "REJ(4)"},
		{REQReceived, func(l *lone) error { l.m.Disconnect(l.now, l.id); return nil }, nil, "REJ(28)"},
		{REPReceived, func(l *lone) error { l.m.Disconnect(l.now, l.id); return nil }, nil, "REJ(28)"},
		{REPSent, func(l *lone) error { l.m.Disconnect(l.now, l.id); return nil }, nil, "DREQ"},
		{Established, func(l *lone) error { l.m.Disconnect(l.now, l.id); return nil }, nil, "DREQ"},
		{TimeWait, func(l *lone) error { l.m.Disconnect(l.now, l.id); return nil }, nil, ""},
	} {
		l := newLone(t, c.state)
		if err := c.do(l); !errors.Is(err, c.err) {
			t.Errorf("in %d: %v", c.state, err)
		}
		if said := l.said(); said != c.said {
			t.Errorf("in %d: said %q, want %q", c.state, said, c.said)
		}
	}
	l := newLone(t, Idle)
	to := netip.AddrPortFrom(testAddr[0], 7)
	if err := l.m.Listen(20049); !errors.Is(err, ErrPortTaken) {
		t.Error(err)
	}
	if _, err := l.m.Connect(l.now, ConnectParams{Remote: to, Private: make([]byte, ConnPrivateLen+1)}); err == nil {
		t.Error("private data that does not fit")
	}
	if _, err := l.m.Connect(l.now, ConnectParams{Remote: netip.AddrPortFrom(netip.IPv6Loopback(), 7)}); !errors.Is(err,
		ErrAddress) {
		t.Error(err)
	}
	l.m.cfg.PendingMax = 1
	if _, err := l.m.Connect(l.now, ConnectParams{Remote: to}); err != nil {
		t.Error(err)
	}
	if _, err := l.m.Connect(l.now, ConnectParams{Remote: to}); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
	l = newLone(t, REQReceived)
	if err := l.m.Accept(l.now, l.id, AcceptParams{Private: make([]byte, REPPrivateLen+1)}); err == nil {
		t.Error("private data of a REP that does not fit")
	}
}

// TestOddMessages: messages that are not for this host, or belong to no connection.
func TestOddMessages(t *testing.T) {
	for _, c := range []struct {
		name    string
		state   State
		mad     func(l *lone) []byte
		said    string
		counter func(*Counters) uint64
	}{
		{
			"no MAD", Idle, func(*lone) []byte { return make([]byte, MADLen) }, "",
			func(n *Counters) uint64 { return n.DropMalformed },
		},
		{
			"a LAP", Established, func(l *lone) []byte { return l.ids(AttrLAP) }, "APR",
			func(n *Counters) uint64 { return n.Unsupported },
		},
		{
			"a LAP before the RTU", REPSent, func(l *lone) []byte { return l.ids(AttrLAP) }, "",
			func(n *Counters) uint64 { return n.Unsupported },
		},
		{
			"an APR", Established, func(l *lone) []byte { return l.ids(AttrAPR) }, "",
			func(n *Counters) uint64 { return n.Unsupported },
		},
		{
			"a SIDR_REQ", Idle, func(l *lone) []byte { return l.ids(AttrSIDRREQ) }, "SIDR_REP",
			func(n *Counters) uint64 { return n.RxSIDRREQ },
		},
		{
			"a SIDR_REP for nothing", Established, func(l *lone) []byte { return l.ids(AttrSIDRREP) }, "",
			func(n *Counters) uint64 { return n.DropUnknown },
		},
		{"a DREQ for another queue pair", Established, func(l *lone) []byte {
			d := IDs{LocalID: peerComm1, RemoteID: l.id.Local, QPN: 5}
			return d.Encode(Header{TID: 1, Attr: AttrDREQ})
		}, "", func(n *Counters) uint64 { return n.DropState }},
		{"a REP with another ID", REPReceived, func(l *lone) []byte {
			r := REP{LocalID: 5, RemoteID: l.id.Local}
			return r.Encode(Header{TID: 1})
		}, "", func(n *Counters) uint64 { return n.DropUnknown }},
		{"a REJ for a timeout, by GUID", REQReceived, func(*lone) []byte {
			r := REJ{LocalID: peerComm1, Message: OfOther, Reason: Timeout, InfoLen: guidLen}
			r.Info[7], r.Info[6] = peerGUID1&0xff, peerGUID1>>8
			return r.Encode(Header{TID: 1})
		}, "", nil},
		{
			"an MRA again", REQSent, func(l *lone) []byte { l.hear(l.mra()); return l.mra() }, "",
			func(n *Counters) uint64 { return n.Duplicates },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLone(t, c.state)
			l.hear(c.mad(l))
			if said := l.said(); said != c.said {
				t.Errorf("said %q", said)
			}
			if c.counter == nil {
				if l.happened() != "rejected" {
					t.Error("the attempt goes on")
				}
			} else if c.counter(l.m.n) == 0 {
				t.Errorf("not counted: %+v", *l.m.n)
			}
		})
	}
}

// TestTimeWaitIsBounded: beyond the limit the oldest connection leaves TimeWait.
func TestTimeWaitIsBounded(t *testing.T) {
	l := newLone(t, Idle)
	l.m.cfg.TimeWaitMax = 3
	for i := range uint32(10) {
		l.req.LocalID, l.req.QPN = 100+i, 100+i
		l.hear(l.req.Encode(Header{TID: 1}))
		id := l.events()[0].ID
		if err := l.m.Accept(l.now, id, AcceptParams{}); err != nil {
			t.Fatal(err)
		}
		l.m.Traffic(id)
		d := IDs{LocalID: 100 + i, RemoteID: id.Local}
		l.hear(d.Encode(Header{TID: 1, Attr: AttrDREQ}))
		l.events()
	}
	if _, waiting := l.m.Pending(); waiting != 3 || l.m.n.TimeWaitEvicted != 7 {
		t.Errorf("%d wait, %d were evicted", waiting, l.m.n.TimeWaitEvicted)
	}
	l.m.Unlisten(20049)
	l.req.LocalID = 99
	l.hear(l.req.Encode(Header{TID: 1}))
	if said := l.said(); !strings.HasSuffix(said, "REJ(8)") {
		t.Errorf("said %q", said)
	}
	if Reason(99).String() != "reason 99" {
		t.Error(Reason(99))
	}
}

// TestAlternatePaths: the REP to a REQ with an alternate path says that there is no failover. The
// answer to a LAP is an APR with the same meaning.
func TestAlternatePaths(t *testing.T) {
	for _, alternate := range []bool{false, true} {
		l := newLone(t, Idle)
		b := l.req.Encode(Header{TID: 1})
		if alternate {
			b[bodyAt+100] = 0xfe // the alternate local GID
		}
		l.hear(b)
		id := l.events()[0].ID
		if err := l.m.Accept(l.now, id, AcceptParams{QPN: 1}); err != nil {
			t.Fatal(err)
		}
		want := uint8(0)
		if alternate {
			want = FailoverUnsupported
		}
		if id.REP.Failover != want || id.REQ.Alternate != alternate {
			t.Errorf("alternate path %v: the REP says %d", alternate, id.REP.Failover)
		}
	}
	d := IDs{LocalID: 3, RemoteID: 4}
	b := d.apr(Header{TID: 7})
	if h, err := ParseHeader(b); err != nil || h.Attr != AttrAPR || h.TID != 7 || ParseIDs(b).LocalID != 3 ||
		ParseIDs(b).RemoteID != 4 || b[bodyAt+9] != apUnsupported {
		t.Errorf("%+v, %v, %x", h, err, b[bodyAt:bodyAt+16])
	}
}
