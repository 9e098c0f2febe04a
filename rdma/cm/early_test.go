package cm

import (
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestEarly sends REQs to a machine that is starting. They are not rejected while their port is not
// open. When the port opens, the machine handles the REQ that waits, without a repetition by its
// sender. After the start, REQs for closed ports are rejected.
func TestEarly(t *testing.T) {
	n := newNetwork(t, 1)
	server := n.m[1]
	server.cfg.Starting = true
	connect := func(port uint16, qpn uint32) *ID {
		p := params()
		p.Remote, p.QPN = netip.AddrPortFrom(testAddr[1], port), qpn
		id, err := n.m[0].Connect(n.now, p)
		if err != nil {
			t.Fatal(err)
		}
		n.deliver()
		return id
	}
	open, shut := connect(20049, 0x111), connect(20050, 0x112)
	n.tick() // both REQs are repeated
	n.deliver()
	if open.State != REQSent || shut.State != REQSent || len(n.ev[1]) != 0 || server.n.TxREJ != 0 {
		t.Fatalf("before the start: states %v and %v, events %+v, %d rejected", open.State, shut.State, n.ev[1],
			server.n.TxREJ)
	}
	if len(server.early) != 2 || server.n.Early < 3 {
		t.Errorf("%d REQs wait, %d came early", len(server.early), server.n.Early)
	}
	asked := n.m[0].n.TxREQ + n.m[0].n.Resent
	if err := server.Listen(20049); err != nil {
		t.Fatal(err)
	}
	n.deliver()
	if len(n.ev[1]) != 1 || n.ev[1][0].Kind != ConnRequest || n.m[0].n.TxREQ+n.m[0].n.Resent != asked {
		t.Fatalf("the port is open: events %+v", n.ev[1])
	}
	if err := server.Accept(n.now, n.ev[1][0].ID, AcceptParams{QPN: 0x222}); err != nil {
		t.Fatal(err)
	}
	if e := n.await(0, Reply); e.ID != open {
		t.Errorf("a reply for %+v", e.ID)
	}
	server.Started()
	if e := n.await(0, Rejected); e.ID != shut || e.Reason != InvalidServiceID {
		t.Errorf("after the start: %+v", e)
	}
	late := connect(20051, 0x113)
	if e := n.await(0, Rejected); e.ID != late || e.Reason != InvalidServiceID {
		t.Errorf("after the start: %+v", e)
	}
}

// TestEarlyIsBounded: forged REQs do not fill the memory of a machine that is starting.
func TestEarlyIsBounded(t *testing.T) {
	n := newNetwork(t, 2)
	server := n.m[1]
	server.cfg.Starting = true
	for i := range 2 * server.cfg.PendingMax {
		r := REQ{ServiceID: ServiceID(20049), LocalID: uint32(i), MTU: 3}
		forged := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		server.Receive(rdma.Second, forged, testAddr[1], r.Encode(Header{TID: 1}))
	}
	if got := len(server.early); got != server.cfg.PeerPendingMax {
		t.Errorf("%d REQs wait", got)
	}
	q := loneSIDR()
	server.Receive(rdma.Second, testAddr[0], testAddr[1], q.Encode(Header{TID: 1}))
	if server.HasWork() {
		t.Error("a question is answered before the service is there")
	}
	server.Started()
	server.Receive(rdma.Second, testAddr[0], testAddr[1], q.Encode(Header{TID: 1}))
	if server.n.TxSIDRREP != 1 || len(server.early) != 0 {
		t.Errorf("after the start: %d answers, %d REQs wait", server.n.TxSIDRREP, len(server.early))
	}
}

// TestEnding: a machine whose socket another process takes over answers no request for a closed
// port. The repetition of the request reaches the other process.
func TestEnding(t *testing.T) {
	n := newNetwork(t, 3)
	server := n.m[1]
	if err := server.Listen(20049); err != nil {
		t.Fatal(err)
	}
	server.Ending()
	server.Unlisten(20049)
	id, err := n.m[0].Connect(n.now, params())
	if err != nil {
		t.Fatal(err)
	}
	n.tick()
	n.deliver()
	q := loneSIDR()
	server.Receive(n.now, testAddr[0], testAddr[1], q.Encode(Header{TID: 1}))
	if id.State != REQSent || server.n.RxREQ == 0 || server.HasWork() || len(server.early) != 0 {
		t.Errorf("state %v, %d REQs came", id.State, server.n.RxREQ)
	}
	n.m[1] = New(Config{Addr: testAddr[1], GUID: 2, Random: n.rnd.Uint32})
	if err := n.m[1].Listen(20049); err != nil {
		t.Fatal(err)
	}
	n.await(1, ConnRequest) // the repetition reaches the next machine
}
