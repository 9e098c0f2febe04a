package cm

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// lone is one machine with a connection in some state. The test plays its peer.
type lone struct {
	t   *testing.T
	m   *Machine
	id  *ID
	now rdma.Time
	req REQ // of the peer; zero if this machine sent the REQ
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

// newLone makes a machine with a connection in a state. For states of the active side the machine
// is the active one.
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

// local returns our communication ID, or an unknown one if there is no connection.
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

// said returns the messages that the machine sends now.
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

// TestEveryMessageInEveryState is the table of docs/transport.md: the answer to each message in
// each state, the event for the owner, and the next state.
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
