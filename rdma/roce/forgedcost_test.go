package roce

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// deafLink receives nothing and drops what is sent.
type deafLink struct {
	link.Link
	now rdma.Time
}

func (*deafLink) Recv(rx *link.Rx, _ rdma.Time) (int, error) { rx.Reset(); return 0, nil }
func (*deafLink) Send(*wire.Batch) error                     { return nil }
func (*deafLink) Wake()                                      {}
func (*deafLink) LocalAddr() netip.Addr                      { return netip.MustParseAddr("192.0.2.2") }
func (*deafLink) MTU() int                                   { return 4200 }
func (l *deafLink) Now() rdma.Time                           { return l.now }
func (*deafLink) Close() error                               { return nil }

// BenchmarkForged measures the processor time of a loop for one forged packet, without the time of
// the kernel. docs/security.md has the numbers.
func BenchmarkForged(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 1))
	l := &deafLink{now: rdma.Second}
	d, err := NewWithLink(l, Config{Random: rnd.Uint32})
	if err != nil {
		b.Fatal(err)
	}
	s := d.shards[0]
	pd, err := d.AllocPD()
	if err != nil {
		b.Fatal(err)
	}
	cq, err := d.CreateCQ(s, rdma.CQOptions{Depth: 8, OnEvent: func() {}})
	if err != nil {
		b.Fatal(err)
	}
	caps := rdma.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}
	cfg := rdma.QPConfig{PD: pd, SendCQ: cq, RecvCQ: cq, Caps: caps}
	// The port bare accepts connections and does nothing with them. The port serves is
	// RPC-over-RDMA.
	const bare, serves = 7, 20049
	if _, err := d.Listen(bare, func(r rdma.ConnRequest) {
		_, err := r.Accept(cfg, rdma.ConnParams{ResponderResources: 4, InitiatorDepth: 4}, nil,
			func(c rdma.Conn, e rdma.ConnEvent) {
				if e.Kind != rdma.EventEstablished {
					c.Close()
				}
			})
		if err != nil {
			b.Fatal(err)
		}
	}); err != nil {
		b.Fatal(err)
	}
	server := rpc.NewServer(rpc.ServerConfig{})
	defer server.Close()
	if _, err := rpcrdma.Serve(d, serves, server, rpcrdma.Config{}); err != nil {
		b.Fatal(err)
	}
	peer := netip.MustParseAddr("192.0.2.1")
	datagram := func(p *wire.Packet, payload []byte) link.RxDatagram {
		p.PKey = wire.DefaultPKey
		f := wire.Flow{Src: peer, Dst: d.addr, SrcPort: wire.Port}
		hdr := wire.AppendHeaders(nil, p)
		data := append(append([]byte(nil), hdr...), payload...)
		data = binary.LittleEndian.AppendUint32(data, f.ICRC(0, hdr, [][]byte{payload}, 0))
		return link.RxDatagram{Src: peer, Dst: d.addr, SrcPort: wire.Port, Data: data}
	}
	req := func(port uint16) link.RxDatagram {
		r := cm.REQ{
			LocalID: rnd.Uint32(), ServiceID: cm.ServiceID(port), GUID: rnd.Uint64(),
			QPN: rnd.Uint32() & wire.PSNMask, MTU: 3, PKey: wire.DefaultPKey, ResponderResources: 16,
		}
		r.Primary.LocalGID, r.Primary.RemoteGID, r.Primary.AckTimeout = peer, d.addr, 14
		h := cm.IPHeader{Src: netip.AddrPortFrom(peer, 1), Dst: d.addr}
		h.Put(r.Private[:])
		return datagram(&wire.Packet{
			Op: wire.UDSendOnly, DestQPN: wire.QP1,
			DETH: wire.DETH{QKey: cm.QKey, SrcQPN: wire.QP1},
		}, r.Encode(cm.Header{TID: rnd.Uint64()}))
	}
	// step handles packets as a turn does. Each packet takes the time each on the loop's clock.
	step := func(b *testing.B, each rdma.Time, packets []link.RxDatagram) {
		b.Helper()
		for i := range b.N {
			s.packet(&packets[i%len(packets)])
			if i%32 == 31 || i == b.N-1 {
				l.now += 32 * each
				if err := s.turn(); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	if err := s.turn(); err != nil {
		b.Fatal(err)
	}
	q, err := d.CreateQP(s, cfg)
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range []rdma.QPAttr{
		{State: rdma.StateInit, Access: rdma.RemoteWrite},
		{State: rdma.StateRTR, RemoteAddr: peer, PathMTU: 1024, DestQPN: 5},
		{State: rdma.StateRTS},
	} {
		if err := q.Modify(a); err != nil {
			b.Fatal(err)
		}
	}
	known := q.Num()
	kib := make([]byte, 1024)
	wrong := datagram(&wire.Packet{Op: wire.WriteMiddle, DestQPN: known}, kib)
	wrong.Data[len(wrong.Data)-1] ^= 1
	for _, c := range []struct {
		name string
		d    link.RxDatagram
	}{
		{"no queue pair", datagram(&wire.Packet{Op: wire.CNP, DestQPN: known ^ 1}, kib[:16])},
		{"wrong ICRC, 1 KiB", wrong},
		{"wrong PSN, 1 KiB", datagram(&wire.Packet{
			Op: wire.WriteMiddle, DestQPN: known,
			PSN: wire.PSN(rnd.Uint32() & wire.PSNMask),
		}, kib)},
	} {
		b.Run(c.name, func(b *testing.B) { step(b, rdma.Microsecond, []link.RxDatagram{c.d}) })
	}
	many := func(port uint16) []link.RxDatagram {
		out := make([]link.RxDatagram, 1<<14) // more than are remembered
		for i := range out {
			out[i] = req(port)
		}
		return out
	}
	b.Run("REQ to a closed port", func(b *testing.B) { step(b, 20*rdma.Microsecond, many(8)) })
	// At this rate all REQs of one address become half-open connections.
	const slow = rdma.Second / 10_000
	b.Run("REQ, half-open", func(b *testing.B) { step(b, slow, many(bare)) })
	before := s.stats.CM
	b.Run("REQ, half-open, RPC-over-RDMA", func(b *testing.B) { step(b, slow, many(serves)) })
	if n := s.stats.CM.TxREP - before.TxREP; n == 0 || s.stats.CM.DropFull > before.DropFull {
		b.Errorf("%d REPs, %d REQs dropped", n, s.stats.CM.DropFull-before.DropFull)
	}
	b.Run("REQ, waits or dropped", func(b *testing.B) { step(b, 1, many(serves)) })
}
