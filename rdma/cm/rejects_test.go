package cm

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
)

func TestRejects(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*network, *ConnectParams)
		want Reason
	}{
		{
			"no listener", func(n *network, p *ConnectParams) { p.Remote = netip.AddrPortFrom(testAddr[1], 9) },
			InvalidServiceID,
		},
		{"bad MTU", func(n *network, p *ConnectParams) { p.MTU = 9 }, InvalidMTU},
		{"too many", func(n *network, p *ConnectParams) { n.m[1].cfg.PendingMax = 0 }, NoResources},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(t, 1)
			_ = n.m[1].Listen(20049)
			p := params()
			c.set(n, &p)
			if _, err := n.m[0].Connect(n.now, p); err != nil {
				t.Fatal(err)
			}
			if e := n.await(0, Rejected); e.Reason != c.want || e.Err == nil {
				t.Errorf("got %v (%v), want %v", e.Reason, e.Err, c.want)
			}
		})
	}
	t.Run("by the consumer", func(t *testing.T) {
		n := newNetwork(t, 1)
		_ = n.m[1].Listen(20049)
		_, _ = n.m[0].Connect(n.now, params())
		n.m[1].Reject(n.await(1, ConnRequest).ID, ConsumerDefined, []byte("no"))
		if e := n.await(0, Rejected); e.Reason != ConsumerDefined || !bytes.HasPrefix(e.Private, []byte("no")) {
			t.Errorf("%+v", e)
		}
	})
}

func TestNobodyAnswers(t *testing.T) {
	n := newNetwork(t, 1)
	n.loss = 1
	start := n.now
	_, _ = n.m[0].Connect(n.now, params())
	e := n.await(0, Unreachable)
	if d := n.now - start; d < 7*rdma.Second || d > 9*rdma.Second || !strings.Contains(e.Err.Error(), "4791") {
		t.Errorf("after %d ms: %v", d/rdma.Millisecond, e.Err)
	}
	if len(n.m[0].ids) != 0 || n.m[0].pending != 0 {
		t.Error("the attempt was not forgotten")
	}
}

func TestRestartedPeerReplacesItsOldConnection(t *testing.T) {
	n := newNetwork(t, 1)
	_ = n.m[1].Listen(20049)
	connect := func() (*ID, *ID) {
		a, _ := n.m[0].Connect(n.now, params())
		b := n.await(1, ConnRequest).ID
		_ = n.m[1].Accept(n.now, b, AcceptParams{QPN: 0x222})
		n.await(0, Reply)
		_ = n.m[0].Confirm(a)
		n.await(1, ConnEstablished)
		return a, b
	}
	_, old := connect()
	n.m[0] = New(Config{Addr: testAddr[0], GUID: 1, Random: n.rnd.Uint32}) // same QPN, other IDs
	connect()
	if e := n.await(1, Disconnected); e.ID != old {
		t.Error("another connection was given up")
	}
}

// TestResume kills a machine with a connection. The next machine ends the connection by a DREQ. A
// peer that does not know the connection any more answers the DREQ too.
func TestResume(t *testing.T) {
	n := newNetwork(t, 1)
	ledger := make([]byte, 4*LedgerRecord)
	next := func() *Machine {
		return New(Config{Addr: testAddr[1], GUID: 2, Random: n.rnd.Uint32, Ledger: ledger})
	}
	n.m[1] = next()
	if got := n.m[1].Resume(n.now); got != 0 {
		t.Fatalf("%d connections of a first life", got)
	}
	_ = n.m[1].Listen(20049)
	var a [3]*ID
	for i := range a {
		p := params()
		p.QPN += uint32(i)
		a[i], _ = n.m[0].Connect(n.now, p)
		b := n.await(1, ConnRequest).ID
		_ = n.m[1].Accept(n.now, b, AcceptParams{QPN: 0x222 + uint32(i)})
		n.await(0, Reply)
		_ = n.m[0].Confirm(a[i])
		n.await(1, ConnEstablished)
	}
	n.m[0].Disconnect(n.now, a[0]) // removes the record from the ledger
	n.await(1, Disconnected)
	n.m[0].Forget(a[1])               // the peer does not know this one
	ledger[0] ^= ledger[LedgerRecord] // damages one record

	n.m[1] = next()
	if got := n.m[1].Resume(n.now); got != 2 {
		t.Fatalf("%d connections were remembered, want 2", got)
	}
	if e := n.await(0, Disconnected); e.ID != a[2] {
		t.Error("another connection was ended")
	}
	n.await(1, Gone)
	n.await(1, Gone)
	if !bytes.Equal(ledger, make([]byte, len(ledger))) || len(n.m[1].blank) != 4 {
		t.Errorf("the ledger is not blank: %x, %d free", ledger, len(n.m[1].blank))
	}
	if n.m[1].n.RxDREP != 2 {
		t.Errorf("%d DREPs", n.m[1].n.RxDREP)
	}
}

func FuzzReceive(f *testing.F) {
	for _, m := range kernelMADs(f) {
		f.Add(m)
	}
	sidr := loneSIDR()
	f.Add(sidr.Encode(Header{TID: 1}))
	rep := SIDRREP{RequestID: 7, ServiceID: UDPServiceID(7174), QPN: 9}
	f.Add(rep.Encode(Header{TID: 1}))
	f.Fuzz(func(t *testing.T, mad []byte) {
		m := New(Config{Addr: testAddr[1], GUID: 9, Random: func() uint32 { return 7 }})
		_ = m.Listen(20049)
		_ = m.ListenUD(7174)
		if _, err := m.Resolve(rdma.Second, ResolveParams{Remote: netip.AddrPortFrom(testAddr[0], 7174)}); err != nil {
			t.Fatal(err)
		}
		m.Receive(rdma.Second, testAddr[0], testAddr[1], mad)
		var e [4]Event
		for i := range m.Events(e[:]) {
			if id := e[i].ID; id.State == SIDRREQReceived {
				if err := m.Answer(rdma.Second, id, AnswerParams{QPN: 5}); err != nil {
					t.Error(err)
				}
			}
		}
		m.Receive(rdma.Second, testAddr[0], testAddr[1], mad)
		if h, err := ParseHeader(mad); err == nil {
			if b := again(h, mad); b != nil && !bytes.Equal(again(h, b), b) {
				t.Error("decode, encode, decode differs")
			}
		}
		m.Expire(100 * rdma.Second)
	})
}
