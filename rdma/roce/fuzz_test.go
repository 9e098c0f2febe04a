package roce_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// FuzzDatagrams sends a device any datagrams with a valid ICRC: to queue pairs and to the
// connection manager, from the peer and from other hosts, in the order of the input. Memory without
// remote access does not change, a second connection goes on, and the device can be closed.
//
// The input is a list of records: destination, sender, length, bytes. For a queue pair the test
// fills in the destination QPN, and adds the peer's PSN to the PSN in the input, because the fuzzer
// would hardly guess them.
func FuzzDatagrams(f *testing.F) {
	record := func(kind byte, b []byte) []byte {
		return append(binary.LittleEndian.AppendUint16([]byte{kind}, uint16(len(b))), b...)
	}
	packet := func(p *wire.Packet, payload []byte) []byte {
		p.PKey = wire.DefaultPKey
		b := wire.AppendHeaders(nil, p)
		return append(b, payload...)
	}
	reth := wire.RETH{VA: 0, RKey: 1, Len: 300}
	for _, p := range []*wire.Packet{
		{Op: wire.SendOnly, AckReq: true},
		{Op: wire.SendFirst},
		{Op: wire.WriteOnly, RETH: reth},
		{Op: wire.ReadRequest, RETH: reth},
		{Op: wire.CompareSwap},
		{Op: wire.Acknowledge},
		{Op: wire.ReadRespOnly},
		{Op: wire.AtomicAck},
		{Op: wire.CNP},
	} {
		f.Add(record(toPeer, packet(p, make([]byte, 300))))
		f.Add(append(record(toPeer, packet(p, nil)), record(toPeer|fromStranger, packet(p, make([]byte, 8)))...))
	}
	ids := cm.IDs{LocalID: 1, RemoteID: 2, QPN: 3}
	f.Add(record(toCM, ids.Encode(cm.Header{TID: 1, Attr: cm.AttrDREQ})))
	req := cm.REQ{LocalID: 1, ServiceID: cm.ServiceID(7), QPN: 5, MTU: 3}
	req.Primary.LocalGID, req.Primary.RemoteGID = simAddr[0], simAddr[1]
	f.Add(record(toCM, req.Encode(cm.Header{TID: 1})))
	sidr := cm.SIDRREQ{RequestID: 1, PKey: wire.DefaultPKey, ServiceID: cm.UDPServiceID(7)}
	ip := cm.IPHeader{Src: netip.AddrPortFrom(simAddr[0], 9), Dst: simAddr[1]}
	ip.Put(sidr.Private[:])
	f.Add(record(toCM, sidr.Encode(cm.Header{TID: 1})))
	for _, op := range []wire.Opcode{wire.UDSendOnly, wire.UDSendOnlyImm, wire.SendOnly} {
		f.Add(record(toQP|toDatagrams, packet(&wire.Packet{Op: op, DETH: wire.DETH{QKey: rdma.UDQKey, SrcQPN: 99}},
			make([]byte, 300))))
	}
	f.Add(record(toAnyone, []byte{0, 1, 2}))

	f.Fuzz(func(t *testing.T, input []byte) {
		w := newWorld(t, sim.Config{Seed: 1})
		w.connect()
		good := [2]*simSide{w.side[0], w.side[1]}
		w.connect()
		bad := [2]*simSide{w.side[0], w.side[1]}
		// The peers may change the memory of bad, and nothing else.
		secret, err := bad[1].pd.Register(bytes.Repeat([]byte{0x5a}, 4096), rdma.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		// The test learns the PSN from one request.
		if wc := w.post(rdma.SendWR{
			Op: rdma.OpWrite, RemoteAddr: bad[1].mr.Addr(),
			RKey: bad[1].mr.RKey(),
		}); wc.Status != rdma.Success {
			t.Fatal(wc.Status)
		}
		datagrams, room := w.udSide(1), w.side[1]
		const dgramRoom = rdma.GRHLen + 300
		if err := datagrams.PostRecv([]rdma.RecvWR{{SGL: []rdma.SGE{{
			Buf:  room.mr.Bytes()[:dgramRoom],
			LKey: room.mr.LKey(),
		}}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.dev[1].ListenUD(7, func(r rdma.UDRequest) {
			_ = r.Accept(datagrams.Num(), rdma.UDQKey,
				nil)
		}); err != nil {
			t.Fatal(err)
		}
		m := w.mallory()
		qpn := bad[1].conn.QP().Num()
		for n := 0; len(input) >= 3 && n < 64; n++ {
			kind, size := input[0], int(binary.LittleEndian.Uint16(input[1:]))
			b := append([]byte(nil), input[3:min(3+size, len(input))]...)
			input = input[min(3+size, len(input)):]
			to := qpn
			if kind&toDatagrams != 0 {
				to = datagrams.Num()
			}
			m.raw(kind, b, to)
			w.run(rdma.Millisecond, func() bool { return false })
		}
		w.run(3*rdma.Second, func() bool { return false })
		if !bytes.Equal(secret.Bytes(), bytes.Repeat([]byte{0x5a}, 4096)) {
			t.Error("memory was changed that no peer may change")
		}
		if !bytes.Equal(room.mr.Bytes()[dgramRoom:], make([]byte, simMemory-dgramRoom)) || len(room.wcs) > 1 {
			t.Errorf("one receive for datagrams completed %d times, or was overrun", len(room.wcs))
		}
		w.side[0], w.side[1] = good[0], good[1]
		local, remote := good[0].mr, good[1].mr
		copy(local.Bytes(), "still here")
		if wc := w.post(rdma.SendWR{
			Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: local.Bytes()[:10], LKey: local.LKey()}},
			RemoteAddr: remote.Addr(), RKey: remote.RKey(),
		}); wc.Status != rdma.Success ||
			string(remote.Bytes()[:10]) != "still here" {
			t.Errorf("the other connection: %v", wc.Status)
		}
		for _, d := range w.dev {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Kinds of records: the low bits name the destination, the next bit the sender.
const (
	toPeer       = 0 // the queue pair of a connection, whose PSN is filled in
	toQP         = 1 // the same, with the PSN of the input
	toCM         = 2 // a MAD
	toAnyone     = 3 // any bytes
	fromStranger = 4
	toDatagrams  = 8 // the queue pair is one for datagrams
)

// raw sends a record of the fuzzer with an ICRC that fits.
func (m *mallory) raw(kind byte, b []byte, qpn uint32) {
	f := wire.Flow{Src: simAddr[0], Dst: simAddr[1], SrcPort: wire.Port}
	if kind&fromStranger != 0 {
		f.Src = m.link.LocalAddr()
	}
	switch kind & 3 {
	case toPeer, toQP:
		if len(b) >= wire.BTHLen {
			binary.BigEndian.PutUint32(b[4:], binary.BigEndian.Uint32(b[4:])&0xff000000|qpn)
			if kind&3 == toPeer {
				psn := m.w.psn.Add(1 + int(int8(b[11])))
				binary.BigEndian.PutUint32(b[8:], binary.BigEndian.Uint32(b[8:])&0xff000000|uint32(psn))
			}
		}
	case toCM:
		mad := make([]byte, cm.MADLen)
		copy(mad, b)
		p := wire.Packet{
			Op: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQPN: wire.QP1,
			DETH: wire.DETH{QKey: cm.QKey, SrcQPN: wire.QP1},
		}
		b = append(wire.AppendHeaders(nil, &p), mad...)
	}
	if len(b) < wire.BTHLen {
		b = append(b, make([]byte, wire.BTHLen-len(b))...) // shorter ones are for the parser's fuzzer
	}
	if err := m.link.Send(&wire.Batch{D: []wire.Datagram{{Flow: &f, Hdr: b}}}); err != nil {
		m.w.t.Fatal(err)
	}
}
