package cm

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// loneSIDR is a SIDR REQ of the peer.
func loneSIDR() SIDRREQ {
	r := SIDRREQ{RequestID: peerComm1, PKey: wire.DefaultPKey, ServiceID: UDPServiceID(7174)}
	h := IPHeader{Src: netip.AddrPortFrom(testAddr[0], 4000), Dst: testAddr[1]}
	h.Put(r.Private[:])
	return r
}

// TestResolveOverALossyWire: the user gets an answer or Unreachable. The service sees each request
// once.
func TestResolveOverALossyWire(t *testing.T) {
	for seed := range uint64(200) {
		n := newNetwork(t, seed)
		n.loss = []float64{0, 0.1, 0.3}[seed%3]
		if err := n.m[1].ListenUD(7174); err != nil {
			t.Fatal(err)
		}
		id, err := n.m[0].Resolve(n.now,
			ResolveParams{
				Remote: netip.AddrPortFrom(testAddr[1], 7174), SourcePort: 4000, PKey: 0xffff,
				Private: []byte("hello"),
			})
		if err != nil {
			t.Fatal(err)
		}
		req := n.await(1, ResolveRequest)
		if r := req.ID.Resolution.REQ; r.PKey != 0xffff || req.ID.Service != 7174 ||
			req.ID.Peer != netip.AddrPortFrom(testAddr[0], 4000) || !bytes.HasPrefix(r.Private[IPHeaderLen:], []byte("hello")) {
			t.Fatalf("seed %d: %+v", seed, req.ID)
		}
		if err := n.m[1].Answer(n.now, req.ID, AnswerParams{QPN: 0x222, QKey: 0x333, Private: []byte("world")}); err != nil {
			t.Fatal(err)
		}
		if err := n.m[1].Answer(n.now, req.ID, AnswerParams{}); !errors.Is(err, ErrState) {
			t.Errorf("answered twice: %v", err)
		}
		got := n.await(0, Resolved)
		if r := id.Resolution.REP; got.ID != id || r.QPN != 0x222 || r.QKey != 0x333 ||
			!bytes.HasPrefix(r.Private[:], []byte("world")) {
			t.Fatalf("seed %d: %+v", seed, r)
		}
		for n.tick() {
		}
		for i, m := range n.m {
			m.tidyAnswered()
			if len(m.ids) != 0 || len(m.sidrs) != 0 || len(m.answered) != 0 || m.resolving != 0 || len(n.ev[i]) != 0 {
				t.Errorf("seed %d: side %d keeps %d IDs, %d and %d requests, %d of its own, and tells %+v", seed, i, len(m.ids),
					len(m.sidrs), len(m.answered), m.resolving, n.ev[i])
			}
		}
	}
}

// TestSIDRRules: the answer to each kind of SIDR REQ, and the event for the owner.
func TestSIDRRules(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*SIDRREQ)
		told   string
		status SIDRStatus
	}{
		{"good", func(*SIDRREQ) {}, "resolve request", SIDRValid},
		{"nobody listens", func(r *SIDRREQ) { r.ServiceID++ }, "", SIDRUnsupported},
		{"a port for connections", func(r *SIDRREQ) { r.ServiceID = ServiceID(20049) }, "", SIDRUnsupported},
		{"another service", func(r *SIDRREQ) { r.ServiceID |= 1 << 60 }, "", SIDRUnsupported},
		{"no addresses", func(r *SIDRREQ) { clear(r.Private[:]) }, "", SIDRReject},
		{"another version", func(r *SIDRREQ) { r.Private[0] = 1 }, "", SIDRReject},
		{"from another", func(r *SIDRREQ) { r.Private[19]++ }, "", SIDRReject},
		{"to another", func(r *SIDRREQ) { r.Private[35]++ }, "", SIDRReject},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLone(t, Idle)
			if err := l.m.ListenUD(7174); err != nil {
				t.Fatal(err)
			}
			if err := l.m.ListenUD(7174); !errors.Is(err, ErrPortTaken) {
				t.Errorf("listening twice: %v", err)
			}
			r := loneSIDR()
			c.change(&r)
			l.hear(r.Encode(Header{TID: 77}))
			events := l.events()
			if c.told != "" {
				if len(events) != 1 || eventNames[events[0].Kind] != c.told {
					t.Fatalf("told %+v", events)
				}
				// The request comes again, before the answer and after it.
				l.hear(r.Encode(Header{TID: 77}))
				if said := l.said(); said != "" {
					t.Errorf("said %q before the answer", said)
				}
				if err := l.m.Answer(l.now, events[0].ID, AnswerParams{Private: make([]byte, SIDRREPPrivateLen+1)}); err == nil {
					t.Error("private data that does not fit")
				}
				if err := l.m.Answer(l.now, events[0].ID, AnswerParams{QPN: 5, QKey: 6}); err != nil {
					t.Fatal(err)
				}
				l.hear(r.Encode(Header{TID: 77}))
				if l.m.n.Duplicates != 2 || len(l.m.out) != 2 || len(l.events()) != 0 {
					t.Errorf("%d duplicates, %d answers", l.m.n.Duplicates, len(l.m.out))
				}
			} else if len(events) != 0 {
				t.Fatalf("told %+v", events)
			}
			b := wire.NewBatch(4)
			l.m.Transmit(b)
			for _, d := range b.D {
				h, _ := ParseHeader(d.Payload[0])
				a := ParseSIDRREP(d.Payload[0])
				if h.TID != 77 || h.Attr != AttrSIDRREP || a.RequestID != r.RequestID || a.ServiceID != r.ServiceID ||
					a.Status != c.status {
					t.Errorf("answered %+v", a)
				}
			}
			if len(b.D) == 0 {
				t.Error("no answer")
			}
		})
	}
	l := newLone(t, Idle)
	_ = l.m.ListenUD(7174)
	l.m.UnlistenUD(7174)
	r := loneSIDR()
	l.hear(r.Encode(Header{}))
	if l.happened() != "" {
		t.Error("the port is closed")
	}
}

// TestSIDRReplies: the event for each kind of answer to a SIDR REQ of ours.
func TestSIDRReplies(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*SIDRREP)
		told   string
	}{
		{"good", func(*SIDRREP) {}, "resolved"},
		{"nobody listens", func(r *SIDRREP) { r.Status = SIDRUnsupported }, "rejected"},
		{"refused", func(r *SIDRREP) { r.Status = 77 }, "rejected"},
		{"QP1", func(r *SIDRREP) { r.QPN = 1 }, "rejected"},
		{"multicast", func(r *SIDRREP) { r.QPN = wire.PSNMask }, "rejected"},
		{"of another request", func(r *SIDRREP) { r.RequestID++ }, ""},
		{"of another service", func(r *SIDRREP) { r.ServiceID++ }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLone(t, Idle)
			id, err := l.m.Resolve(l.now, ResolveParams{Remote: netip.AddrPortFrom(testAddr[0], 7174)})
			if err != nil {
				t.Fatal(err)
			}
			r := SIDRREP{RequestID: id.Local, ServiceID: UDPServiceID(7174), QPN: 0x222, QKey: 1}
			c.change(&r)
			l.m.Receive(l.now, netip.MustParseAddr("192.0.2.77"), testAddr[1], r.Encode(Header{}))
			if l.happened() != "" || l.m.n.DropUnknown != 1 {
				t.Fatal("a stranger's answer was taken")
			}
			l.hear(r.Encode(Header{}))
			events := l.events()
			if c.told == "" {
				if len(events) != 0 || l.m.n.DropUnknown != 2 {
					t.Errorf("%+v", events)
				}
				return
			}
			if len(events) != 1 || eventNames[events[0].Kind] != c.told || events[0].ID != id ||
				(events[0].Err != nil) != (c.told == "rejected") {
				t.Errorf("%+v", events)
			}
			if l.hear(r.Encode(Header{})); l.happened() != "" || l.m.resolving != 0 {
				t.Error("answered twice")
			}
		})
	}
}

// TestResolveRepeats: a SIDR REQ is repeated, and given up after the limit. A canceled one is not
// repeated.
func TestResolveRepeats(t *testing.T) {
	l := newLone(t, Idle)
	start := l.now
	p := ResolveParams{Remote: netip.AddrPortFrom(testAddr[0], 7174)}
	if _, err := l.m.Resolve(l.now, p); err != nil {
		t.Fatal(err)
	}
	gone, err := l.m.Resolve(l.now, p)
	if err != nil {
		t.Fatal(err)
	}
	l.m.Forget(gone)
	var events []Event
	for len(events) == 0 && l.m.Deadline() != 0 {
		l.now = l.m.Deadline()
		l.m.Expire(l.now)
		events = l.events()
	}
	if len(events) != 1 || events[0].Kind != Unreachable || events[0].Err == nil || l.now-start != 8*rdma.Second ||
		l.m.n.Resent < 4 || l.m.n.Timeouts != 1 {
		t.Errorf("%+v after %d ns, repeated %d times", events, l.now-start, l.m.n.Resent)
	}
	for i := 0; i < len(events)+2; i++ {
		p.Private = make([]byte, ResolvePrivateLen+i)
		if _, err := l.m.Resolve(l.now, p); (err == nil) != (i == 0) {
			t.Errorf("%d bytes of private data: %v", len(p.Private), err)
		}
	}
	for _, a := range []netip.Addr{{}, netip.IPv6Loopback()} {
		if _, err := l.m.Resolve(l.now, ResolveParams{Remote: netip.AddrPortFrom(a, 1)}); !errors.Is(err, ErrAddress) {
			t.Errorf("%v: %v", a, err)
		}
	}
}

// TestSIDRTablesAreBounded: the oldest answers are deleted for new requests. Requests without an
// answer stay for as long as their sender may wait.
func TestSIDRTablesAreBounded(t *testing.T) {
	l := newLone(t, Idle)
	l.m.cfg.PendingMax = 3
	_ = l.m.ListenUD(7174)
	r := loneSIDR()
	ask := func(id uint32) string {
		r.RequestID = id
		l.hear(r.Encode(Header{}))
		return l.said()
	}
	for i := range uint32(10) {
		ask(i)
		e := l.events()
		if len(e) != 1 {
			t.Fatalf("request %d: %+v", i, e)
		}
		if err := l.m.Answer(l.now, e[0].ID, AnswerParams{QPN: 5}); err != nil {
			t.Fatal(err)
		}
		l.said()
	}
	if len(l.m.sidrs) != 3 || len(l.m.ids) != 3 || len(l.m.answered) > 4 {
		t.Errorf("%d requests and %d answers are held", len(l.m.sidrs), len(l.m.answered))
	}
	if ask(9) != "SIDR_REP" || len(l.events()) != 0 {
		t.Error("the newest was forgotten")
	}
	for i := range uint32(3) {
		if said := ask(100 + i); said != "" {
			t.Fatalf("said %q", said)
		}
	}
	if said := ask(103); said != "SIDR_REP" || l.m.n.DropFull != 1 || strings.Count(l.happened(), "resolve") != 3 {
		t.Errorf("said %q, %d refused", said, l.m.n.DropFull)
	}
	l.now += replyLimit
	l.m.Expire(l.now)
	if len(l.m.sidrs) != 0 || l.m.Deadline() != 0 {
		t.Errorf("%d requests after the limit", len(l.m.sidrs))
	}
	for i := range 4 {
		_, err := l.m.Resolve(l.now, ResolveParams{Remote: netip.AddrPortFrom(testAddr[0], 1)})
		if errors.Is(err, ErrTooMany) != (i == 3) {
			t.Errorf("own request %d: %v", i, err)
		}
	}
	for s := SIDRValid; s <= SIDRVersion+1; s++ {
		if s.String() == "" || strings.HasPrefix(s.String(), "status") != (s > SIDRVersion) {
			t.Errorf("%d is %q", s, s.String())
		}
	}
}
