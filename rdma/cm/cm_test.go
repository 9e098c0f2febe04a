package cm

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

func kernelMADs(t testing.TB) (mads [][]byte) {
	t.Helper()
	b, err := os.ReadFile("testdata/kernel-cm.hex")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		m, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		mads = append(mads, m)
	}
	return mads
}

// again decodes a message and encodes it. It returns nil for messages without a codec.
func again(h Header, m []byte) []byte {
	switch h.Attr {
	case AttrREQ:
		r := ParseREQ(m)
		return r.Encode(h)
	case AttrREP:
		r := ParseREP(m)
		return r.Encode(h)
	case AttrREJ:
		r := ParseREJ(m)
		return r.Encode(h)
	case AttrMRA:
		r := ParseMRA(m)
		return r.Encode(h)
	case AttrRTU, AttrDREQ, AttrDREP:
		r := ParseIDs(m)
		return r.Encode(h)
	case AttrSIDRREQ:
		r := ParseSIDRREQ(m)
		return r.Encode(h)
	case AttrSIDRREP:
		r := ParseSIDRREP(m)
		return r.Encode(h)
	}
	return nil
}

func TestKernelMessagesRoundTrip(t *testing.T) {
	seen := map[Attr]int{}
	for i, m := range kernelMADs(t) {
		h, err := ParseHeader(m)
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		seen[h.Attr]++
		if got := again(h, m); !bytes.Equal(got, m) {
			t.Errorf("message %d (attribute %#x)\n got %x\nwant %x", i, h.Attr, got, m)
		}
		if h.Attr == AttrREQ {
			r := ParseREQ(m)
			ip, err := ParseIPHeader(r.Private[:])
			if err != nil || ip.Src.Addr() != r.Primary.LocalGID || ip.Dst != r.Primary.RemoteGID || ip.Src.Port() == 0 {
				t.Errorf("address header %+v, %v; GIDs %v %v", ip, err, r.Primary.LocalGID, r.Primary.RemoteGID)
			}
			var p [REQPrivateLen]byte
			copy(p[IPHeaderLen:], r.Private[IPHeaderLen:])
			ip.Put(p[:])
			if p != r.Private {
				t.Errorf("address header re-encodes to %x, was %x", p, r.Private)
			}
		}
	}
	for i, m := range kernelMADs(t) {
		switch h, _ := ParseHeader(m); h.Attr {
		case AttrSIDRREQ:
			r := ParseSIDRREQ(m)
			ip, err := ParseIPHeader(r.Private[:])
			port, ok := UDPServicePort(r.ServiceID)
			if err != nil || ip.Src.Addr() != netip.MustParseAddr("10.99.0.2") || ip.Dst != netip.MustParseAddr("10.99.0.1") ||
				port != 7174 || !ok || r.PKey != wire.DefaultPKey || r.RequestID == 0 {
				t.Errorf("message %d: %+v, %+v, %v", i, r, ip, err)
			}
		case AttrSIDRREP:
			if r := ParseSIDRREP(m); r.Status != SIDRValid || r.QPN != 0x12 || r.QKey != rdma.UDQKey ||
				r.ServiceID != UDPServiceID(7174) || r.RequestID == 0 {
				t.Errorf("message %d: %+v", i, r)
			}
		}
	}
	for _, a := range []Attr{AttrREQ, AttrREP, AttrRTU, AttrDREQ, AttrDREP, AttrSIDRREQ, AttrSIDRREP} {
		if seen[a] == 0 {
			t.Errorf("no message with attribute %#x among the kernel's", a)
		}
	}
}

// net joins two machines by a wire that loses and repeats.
type network struct {
	t    *testing.T
	now  rdma.Time
	m    [2]*Machine
	rnd  *rand.Rand
	loss float64
	sent int
	ev   [2][]Event
}

var testAddr = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}

func newNetwork(t *testing.T, seed uint64) *network {
	n := &network{t: t, now: rdma.Second, rnd: rand.New(rand.NewPCG(seed, 0))}
	for i := range 2 {
		n.m[i] = New(Config{Addr: testAddr[i], GUID: uint64(i + 1), Random: n.rnd.Uint32})
	}
	return n
}

func (n *network) deliver() {
	b := wire.NewBatch(64)
	for moved := true; moved; {
		moved = false
		for i, m := range n.m {
			b.Reset()
			m.Transmit(b)
			for _, d := range b.D {
				moved = true
				n.sent++
				if d.Flow.Dst != testAddr[1-i] {
					continue // the address was forged
				}
				for n.rnd.Float64() > n.loss {
					n.m[1-i].Receive(n.now, testAddr[i], testAddr[1-i], append([]byte(nil), d.Payload[0]...))
					if n.rnd.Float64() > n.loss/2 {
						break // otherwise the datagram is sent twice
					}
				}
			}
		}
	}
	for i, m := range n.m {
		var e [8]Event
		for k := m.Events(e[:]); k > 0; k = m.Events(e[:]) {
			n.ev[i] = append(n.ev[i], e[:k]...)
		}
	}
}

func (n *network) tick() bool {
	n.deliver()
	next := rdma.Time(0)
	for _, m := range n.m {
		if d := m.Deadline(); d != 0 && (next == 0 || d < next) {
			next = d
		}
	}
	if next == 0 {
		return false
	}
	n.now = max(n.now, next)
	for _, m := range n.m {
		m.Expire(n.now)
	}
	return true
}

// await turns until side i has an event of the kind, and takes it.
func (n *network) await(i int, k EventKind) Event {
	n.t.Helper()
	for range 1000 {
		n.deliver()
		for j, e := range n.ev[i] {
			if e.Kind == k {
				n.ev[i] = append(n.ev[i][:j], n.ev[i][j+1:]...)
				return e
			}
		}
		if !n.tick() {
			break
		}
	}
	n.t.Fatalf("no event %d on side %d; there are %+v", k, i, n.ev)
	return Event{}
}

func params() ConnectParams {
	return ConnectParams{
		Remote: netip.AddrPortFrom(testAddr[1], 20049), SourcePort: 4000, QPN: 0x111, PSN: 5, MTU: 3,
		PKey: 0xffff, RetryCount: 6, AckTimeout: 14, HopLimit: 64, Private: []byte("hello"),
	}
}

func TestConnectAndDisconnectOverALossyWire(t *testing.T) {
	for seed := range uint64(200) {
		n := newNetwork(t, seed)
		n.loss = []float64{0, 0.1, 0.3}[seed%3]
		if err := n.m[1].Listen(20049); err != nil {
			t.Fatal(err)
		}
		a, err := n.m[0].Connect(n.now, params())
		if err != nil {
			t.Fatal(err)
		}
		req := n.await(1, ConnRequest)
		if req.ID.REQ.QPN != 0x111 || !bytes.HasPrefix(req.ID.REQ.Private[IPHeaderLen:], []byte("hello")) ||
			req.ID.Peer.Port() != 4000 {
			t.Fatalf("seed %d: request %+v", seed, req.ID.REQ)
		}
		if err := n.m[1].Accept(n.now, req.ID,
			AcceptParams{QPN: 0x222, PSN: 6, InitiatorDepth: 4, RNRRetryCount: 7, Private: []byte("world")}); err != nil {
			t.Fatal(err)
		}
		rep := n.await(0, Reply)
		if rep.ID != a || a.REP.QPN != 0x222 || a.REP.InitiatorDepth != 4 {
			t.Fatalf("seed %d: reply %+v", seed, a.REP)
		}
		if err := n.m[0].Confirm(a); err != nil {
			t.Fatal(err)
		}
		n.await(1, ConnEstablished)
		closer := int(seed & 1)
		ids := [2]*ID{a, req.ID}
		n.m[closer].Disconnect(n.now, ids[closer])
		n.await(closer, Gone)
		// All DREQs may have been lost. The other side then detects the end by its queue pair.
		for range 100 {
			if !n.tick() {
				break
			}
		}
		for i, m := range n.m {
			if n.loss == 0 && (len(m.ids) != 0 || len(m.comms) != 0 || len(m.qpns) != 0 || m.pending != 0 || m.waiting != 0) {
				t.Errorf("seed %d: side %d keeps %d ids, %d comms, %d qpns, pending %d, waiting %d", seed, i, len(m.ids),
					len(m.comms), len(m.qpns), m.pending, m.waiting)
			}
		}
	}
}
