package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// lone is one machine with a connection in some state; its peer is the test.
type lone struct {
	t   *testing.T
	m   *Machine
	id  *ID
	now rdma.Time
	req REQ // of the peer, or nil fields where we asked
}

const (
	peerComm1 = 0x7001
	peerQPN1  = 0x7002
	peerGUID1 = 0x7003
)

func loneRequest() REQ {
	r := REQ{ServiceID: ServiceID(20049), LocalID: peerComm1, GUID: peerGUID1, QPN: peerQPN1, MTU: 3}
	r.Primary.LocalGID, r.Primary.RemoteGID, r.Primary.AckTimeout = testAddr[0], testAddr[1], 14
	h := IPHeader{Src: netip.AddrPortFrom(testAddr[0], 4000), Dst: testAddr[1]}
	h.Put(r.Private[:])
	return r
}

// newLone brings a connection into a state: those of the active side for active ones.
func newLone(t *testing.T, state State) *lone {
	t.Helper()
	words := uint32(0)
	l := &lone{t: t, now: rdma.Second, req: loneRequest()}
	l.m = New(Config{Addr: testAddr[1], GUID: 9, Random: func() uint32 { words++; return words }})
	if err := l.m.Listen(20049); err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	connect := func() {
		var err error
		l.id, err = l.m.Connect(l.now,
			ConnectParams{Remote: netip.AddrPortFrom(testAddr[0], 20049), QPN: 0x111, MTU: 3, AckTimeout: 14})
		check(err)
	}
	accept := func() {
		l.hear(l.req.Encode(Header{TID: 1}))
		l.id = l.events()[0].ID
	}
	switch state {
	case Idle:
	case REQSent:
		connect()
	case REPReceived:
		connect()
		l.hear(l.reply())
	case REQReceived:
		accept()
	case REPSent, Established, DREQSent, TimeWait:
		accept()
		check(l.m.Accept(l.now, l.id, AcceptParams{QPN: 0x222}))
	}
	switch state {
	case Established, DREQSent, TimeWait:
		l.hear(l.ids(AttrRTU))
	}
	switch state {
	case DREQSent:
		l.m.Disconnect(l.now, l.id)
	case TimeWait:
		l.hear(l.ids(AttrDREQ))
	}
	l.said()
	l.events()
	if l.id != nil && l.id.State != state {
		t.Fatalf("in state %d, not in %d", l.id.State, state)
	}
	return l
}

func (l *lone) hear(mad []byte) { l.m.Receive(l.now, testAddr[0], testAddr[1], mad) }

// local is our communication ID, one that does not exist without a connection.
func (l *lone) local() uint32 {
	if l.id == nil {
		return 0xdead
	}
	return l.id.Local
}

func (l *lone) reply() []byte {
	r := REP{LocalID: peerComm1, RemoteID: l.local(), QPN: peerQPN1, GUID: peerGUID1}
	return r.Encode(Header{TID: 1})
}

func (l *lone) ids(a Attr) []byte {
	d := IDs{LocalID: peerComm1, RemoteID: l.local()}
	if l.id != nil {
		d.QPN = l.id.LocalQPN
	}
	return d.Encode(Header{TID: 1, Attr: a})
}

func (l *lone) reject() []byte {
	r := REJ{LocalID: peerComm1, RemoteID: l.local(), Reason: ConsumerDefined}
	return r.Encode(Header{TID: 1})
}

func (l *lone) mra() []byte {
	r := MRA{LocalID: peerComm1, RemoteID: l.local(), Timeout: 20}
	if l.id != nil && l.id.State == REPSent {
		r.Message = OfREP
	}
	return r.Encode(Header{TID: 1})
}

var attrNames = map[Attr]string{
	AttrREQ: "REQ", AttrREP: "REP", AttrRTU: "RTU", AttrREJ: "REJ", AttrMRA: "MRA", AttrDREQ: "DREQ", AttrDREP: "DREP",
	AttrSIDRREQ: "SIDR_REQ", AttrSIDRREP: "SIDR_REP", AttrLAP: "LAP", AttrAPR: "APR",
}

// said is what the machine sends now.
func (l *lone) said() string {
	l.t.Helper()
	b := wire.NewBatch(64)
	l.m.Transmit(b)
	var out []string
	for _, d := range b.D {
		h, err := ParseHeader(d.Payload[0])
		if err != nil {
			l.t.Fatal(err)
		}
		what := attrNames[h.Attr]
		if h.Attr == AttrREJ {
			what += fmt.Sprintf("(%d)", ParseREJ(d.Payload[0]).Reason)
		}
		out = append(out, what)
	}
	return strings.Join(out, " ")
}

func (l *lone) events() []Event {
	var e [16]Event
	return append([]Event(nil), e[:l.m.Events(e[:])]...)
}

var eventNames = [...]string{
	ConnRequest: "request", Reply: "reply", ConnEstablished: "established", Rejected: "rejected",
	Unreachable: "unreachable", Disconnected: "disconnected", Gone: "gone", ResolveRequest: "resolve request",
	Resolved: "resolved",
}

func (l *lone) happened() string {
	var out []string
	for _, e := range l.events() {
		out = append(out, eventNames[e.Kind])
	}
	return strings.Join(out, " ")
}

// TestEveryMessageInEveryState is the table of docs/transport.md: what is said, what the
// owner is told, and the state after it.
func TestEveryMessageInEveryState(t *testing.T) {
	type cell struct {
		said, told string
		next       State
	}
	messages := []struct {
		name string
		mad  func(*lone) []byte
	}{
		{"REQ", func(l *lone) []byte { return l.req.Encode(Header{TID: 1}) }},
		{"REP", (*lone).reply},
		{"RTU", func(l *lone) []byte { return l.ids(AttrRTU) }},
		{"REJ", (*lone).reject},
		{"MRA", (*lone).mra},
		{"DREQ", func(l *lone) []byte { return l.ids(AttrDREQ) }},
		{"DREP", func(l *lone) []byte { return l.ids(AttrDREP) }},
	}
	const none = 255 // no connection, or none any more
	for _, row := range []struct {
		state State
		cells [7]cell
	}{
		{Idle, [7]cell{
			{"", "request", none},
			{"REJ(6)", "", none},
			{"", "", none},
			{"", "", none},
			{"", "", none},
			{"DREP", "", none},
			{"", "", none},
		}},
		{REQSent, [7]cell{
			{"", "request", REQSent},
			{"", "reply", REPReceived},
			{"", "", REQSent},
			{"", "rejected", none},
			{"", "", REQSent},
			{"DREP", "", REQSent},
			{"", "", REQSent},
		}},
		{REPReceived, [7]cell{
			{"", "", REPReceived},
			{"MRA", "", REPReceived},
			{"", "", REPReceived},
			{"", "rejected", none},
			{"", "", REPReceived},
			{"", "", REPReceived},
			{"", "", REPReceived},
		}},
		{REQReceived, [7]cell{
			{"MRA", "", REQReceived},
			{"REJ(6)", "", REQReceived},
			{"", "", REQReceived},
			{"", "rejected", none},
			{"", "", REQReceived},
			{"", "", REQReceived},
			{"", "", REQReceived},
		}},
		{REPSent, [7]cell{
			{"REP", "", REPSent},
			{"REJ(6)", "", REPSent},
			{"", "established", Established},
			{"", "rejected", none},
			{"", "", REPSent},
			{"DREP", "disconnected", TimeWait},
			{"", "", REPSent},
		}},
		{Established, [7]cell{
			{"", "", Established},
			{"REJ(6)", "", Established},
			{"", "", Established},
			{"", "disconnected", TimeWait},
			{"", "", Established},
			{"DREP", "disconnected", TimeWait},
			{"", "", Established},
		}},
		{DREQSent, [7]cell{
			{"", "", DREQSent},
			{"REJ(6)", "", DREQSent},
			{"", "", DREQSent},
			{"", "", DREQSent},
			{"", "", DREQSent},
			{"DREP", "", TimeWait},
			{"", "", TimeWait},
		}},
		{TimeWait, [7]cell{
			{"REJ(10)", "", TimeWait},
			{"REJ(6)", "", TimeWait},
			{"", "", TimeWait},
			{"", "", TimeWait},
			{"", "", TimeWait},
			{"DREP", "", TimeWait},
			{"", "", TimeWait},
		}},
	} {
		for i, m := range messages {
			t.Run(fmt.Sprintf("%d/%s", row.state, m.name), func(t *testing.T) {
				l := newLone(t, row.state)
				l.hear(m.mad(l))
				got := cell{l.said(), l.happened(), none}
				if l.id != nil && l.m.ids[l.id.Local] == l.id {
					got.next = l.id.State
				}
				if got != row.cells[i] {
					t.Errorf("%+v, want %+v", got, row.cells[i])
				}
			})
		}
	}
}

// TestRefusedRequests: REQs that are rejected without a state.
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

// TestUser: what the owner may do in which state, and what the peer hears of it.
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

// TestOddMessages: what is not for us, or for no connection.
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

// TestTimeWaitIsBounded: beyond the limit the oldest goes.
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

// TestAlternatePaths: we have none. The REP to a REQ with one says so, and so does the APR.
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
