package daemon

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/rdmatest/netns"
	"github.com/rstored/rstored/rdma/wire"
)

func newForger(t *testing.T, server *netns.Space, clientAddr, serverAddr netip.Addr) *forger {
	t.Helper()
	host := netns.New(t)
	host.Join(t, "attacker", server, "attacked", 4200)
	server.Addr(t, "198.51.100.2/24", "attacked")
	f := &forger{rnd: rand.New(rand.NewPCG(7, 7)), client: clientAddr, server: serverAddr}
	var err error
	server.Do(func() {
		// The server's host takes packets with the client's address from another interface, as it would
		// from a switch.
		for _, name := range []string{"all", "attacked"} {
			if e := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("0"), 0o644); e != nil {
				err = e
			}
		}
		i, e := net.InterfaceByName("attacked")
		if e != nil {
			err = e
			return
		}
		f.to.Halen = uint8(copy(f.to.Addr[:], i.HardwareAddr))
	})
	if err != nil {
		t.Fatal(err)
	}
	proto := uint16(unix.ETH_P_IP)
	if serverAddr.Is6() {
		proto = unix.ETH_P_IPV6
	}
	f.to.Protocol = proto<<8 | proto>>8
	host.Do(func() {
		i, e := net.InterfaceByName("attacker")
		if e != nil {
			err = e
			return
		}
		f.to.Ifindex = i.Index
		f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(f.fd) })
	return f
}

// ip sends a packet of IP.
func (f *forger) ip(src netip.Addr, proto, tos uint8, payload []byte) {
	var b []byte
	if f.server.Is4() {
		s, d := src.As4(), f.server.As4()
		b = []byte{0x45, tos, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0}
		b = append(append(b, s[:]...), d[:]...)
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(payload)))
		binary.BigEndian.PutUint16(b[10:], checksum(0, b))
	} else {
		s, d := src.As16(), f.server.As16()
		b = []byte{0x60 | tos>>4, tos << 4, 0, 0, byte(len(payload) >> 8), byte(len(payload)), proto, 255}
		b = append(append(b, s[:]...), d[:]...)
	}
	f.sent++
	if err := unix.Sendto(f.fd, append(b, payload...), 0, &f.to); err != nil && !errors.Is(err, unix.ENOBUFS) {
		f.err = err
	}
}

// checksum is that of the Internet, over b and what sum has.
func checksum(sum uint32, b []byte) uint16 {
	for sum = addWords(sum, b); sum > 0xffff; {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// addWords adds b to a sum, as words of 16 bits.
func addWords(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// transport sends payload with a checksum at an offset, over the pseudo header of IPv6 or none.
func (f *forger) transport(src netip.Addr, proto, tos uint8, payload []byte, at int, pseudo bool) {
	var start uint32
	if pseudo {
		for _, a := range []netip.Addr{src, f.server} {
			start = addWords(start, a.AsSlice())
		}
		start += uint32(proto) + uint32(len(payload))
	}
	binary.BigEndian.PutUint16(payload[at:], checksum(start, payload))
	f.ip(src, proto, tos, payload)
}

func (f *forger) udp(src netip.Addr, tos uint8, data []byte) {
	b := binary.BigEndian.AppendUint16(nil, wire.Port)
	b = binary.BigEndian.AppendUint16(b, wire.Port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	b = append(append(b, 0, 0), data...)
	f.transport(src, unix.IPPROTO_UDP, tos, b, 6, true)
}

// bytes are n random ones.
func (f *forger) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(f.rnd.Uint32())
	}
	return b
}

func (f *forger) word() uint32 { return f.rnd.Uint32() }

func (f *forger) psn() wire.PSN { return wire.PSN(f.word() & wire.PSNMask) }

// datagram is a RoCE packet with its ICRC.
func (f *forger) datagram(src netip.Addr, hdr, payload []byte) []byte {
	flow := wire.Flow{Src: src, Dst: f.server, SrcPort: wire.Port}
	b := append(append([]byte(nil), hdr...), payload...)
	return binary.LittleEndian.AppendUint32(b, flow.ICRC(0, hdr, [][]byte{payload}, 0))
}

// packet sends p with a payload.
func (f *forger) packet(src netip.Addr, tos uint8, p wire.Packet, payload []byte) {
	f.udp(src, tos, f.datagram(src, wire.AppendHeaders(nil, &p), payload))
}

// own is a packet to the client's queue pair at the server.
func (f *forger) own(op wire.Opcode) wire.Packet {
	return wire.Packet{Op: op, AckReq: true, PKey: wire.DefaultPKey, DestQPN: f.rep.QPN, PSN: f.psn()}
}

// anybody is an address that is no host's.
func (f *forger) anybody() netip.Addr {
	if f.server.Is4() {
		return netip.AddrFrom4([4]byte{10, byte(f.word()), byte(f.word()), 1})
	}
	a := netip.MustParseAddr("2001:db8::").As16()
	binary.BigEndian.PutUint32(a[12:], f.word())
	return netip.AddrFrom16(a)
}

func (f *forger) randomBytes(i int) {
	src := f.client
	if i%2 == 0 {
		src = f.anybody()
	}
	b := f.bytes(f.rnd.IntN(2000))
	if i%4 == 1 && len(b) > 1 { // an opcode and a version that there are
		b[0], b[1] = byte(wire.SendOnly), 0
	}
	f.udp(src, 0, b)
}

func (f *forger) cut(i int) {
	p := f.own(wire.WriteOnly)
	b := f.datagram(f.client, wire.AppendHeaders(nil, &p), f.bytes(64))
	f.udp(f.client, 0, b[:i%len(b)])
}

// opcodes sends all of them, with each padding, and with lengths that fit and do not.
func (f *forger) opcodes(i int) {
	hdr := []byte{byte(i), byte(i>>8) << 4 & 0x30, 0xff, 0xff, 0, 0, 0, 0, 0x80, 0, 0, 0}
	binary.BigEndian.PutUint32(hdr[4:], f.rep.QPN)
	binary.BigEndian.PutUint32(hdr[8:], f.word()&wire.PSNMask|1<<31)
	f.udp(f.client, 0, f.datagram(f.client, hdr, f.bytes([]int{0, 4, 16, 28, 1024, 1040, 33, 3000}[i>>8%8])))
}

func (f *forger) guessedQPN(i int) {
	p := f.own(wire.WriteMiddle)
	p.DestQPN = f.word() & wire.PSNMask
	if i%2 == 0 {
		p.Op = wire.CNP
	}
	f.packet(f.client, 0, p, f.bytes(16))
}

func (f *forger) wrongICRC(int) {
	p := f.own(wire.WriteMiddle)
	b := f.datagram(f.client, wire.AppendHeaders(nil, &p), f.bytes(1024))
	b[len(b)-1-f.rnd.IntN(4)] ^= 1 << f.rnd.IntN(8)
	f.udp(f.client, 0, b)
}

func (f *forger) wrongPKey(int) {
	p := f.own(wire.SendOnly)
	p.PKey = uint16(f.word()) &^ 0x7000
	f.packet(f.client, 0, p, f.bytes(64))
}

func (f *forger) wrongAddress(int) { f.packet(f.anybody(), 0, f.own(wire.SendOnly), f.bytes(64)) }

func (f *forger) guessedPSN(i int) {
	p := f.own([]wire.Opcode{
		wire.SendOnly, wire.WriteOnly, wire.ReadRequest, wire.CompareSwap, wire.WriteMiddle,
		wire.SendOnlyInv,
	}[i%6])
	p.RETH = wire.RETH{VA: uint64(f.word()), RKey: f.word(), Len: 64}
	var payload []byte
	if p.Op != wire.ReadRequest && p.Op != wire.CompareSwap {
		payload = f.bytes(64)
	}
	f.packet(f.client, 0, p, payload)
}

func (f *forger) acks(i int) {
	p := f.own([]wire.Opcode{wire.Acknowledge, wire.ReadRespOnly, wire.ReadRespMiddle, wire.AtomicAck}[i&3])
	p.AETH.Syndrome, p.AETH.MSN = uint8(i>>2), f.word()&wire.PSNMask
	var payload []byte
	if i&3 == 1 || i&3 == 2 {
		payload = f.bytes(1024)
	}
	f.packet(f.client, 0, p, payload)
}

func (f *forger) cnps(int) { f.packet(f.client, 0, f.own(wire.CNP), make([]byte, 16)) }

func (f *forger) marked(i int) { f.packet(f.client, uint8(i), f.own(wire.WriteMiddle), f.bytes(64)) }

// mad sends a message to the connection manager.
func (f *forger) mad(src netip.Addr, b []byte) {
	f.packet(src, 0, wire.Packet{
		Op: wire.UDSendOnly, MigReq: true, PKey: wire.DefaultPKey, DestQPN: wire.QP1,
		DETH: wire.DETH{QKey: cm.QKey, SrcQPN: wire.QP1},
	}, b)
}

// pick is v, or another number.
func (f *forger) pick(right bool, v uint32) uint32 {
	if right {
		return v
	}
	return f.word()
}

// request is a REQ in the name of a host.
func (f *forger) request(name netip.Addr, port uint16, change func(r *cm.REQ)) {
	r := cm.REQ{
		LocalID: f.word(), ServiceID: cm.ServiceID(port), GUID: f.rnd.Uint64(), QPN: f.word() & wire.PSNMask, MTU: 3,
		PKey: wire.DefaultPKey, ResponderResources: 16, RetryCount: 7, RNRRetryCount: 7,
	}
	r.Primary.LocalGID, r.Primary.RemoteGID, r.Primary.AckTimeout = name, f.server, 14
	h := cm.IPHeader{Src: netip.AddrPortFrom(name, 4000), Dst: f.server}
	h.Put(r.Private[:])
	copy(r.Private[cm.IPHeaderLen:], f.req.Private[cm.IPHeaderLen:])
	if change != nil {
		change(&r)
	}
	f.mad(name, r.Encode(cm.Header{TID: f.rnd.Uint64()}))
}

// manage sends messages of the connection manager in the client's name. GUID and queue pair are
// right and wrong, and of the two communication IDs, each of which is random, at most one is right.
func (f *forger) manage(i int) {
	h := cm.Header{TID: f.rnd.Uint64()}
	local, remote := i&16 != 0, i&32 != 0 && i&16 == 0
	ids := cm.IDs{LocalID: f.pick(local, f.req.LocalID), RemoteID: f.pick(remote, f.rep.LocalID), QPN: f.rep.QPN}
	guid := f.req.GUID
	if i&64 != 0 {
		guid = f.rnd.Uint64()
	}
	switch i % 16 {
	case 0, 1:
		f.request(f.client, 20049, func(r *cm.REQ) {
			r.GUID, r.LocalID = guid, ids.LocalID
			if i&128 == 0 {
				r.QPN = f.req.QPN
			}
		})
	case 2:
		r := cm.REP{LocalID: ids.LocalID, RemoteID: ids.RemoteID, QPN: f.req.QPN, GUID: guid}
		f.mad(f.client, r.Encode(h))
	case 3, 4, 5:
		r := cm.REJ{
			LocalID: ids.LocalID, RemoteID: ids.RemoteID, Message: uint8(i>>6) & 3, Reason: cm.Reason(i>>4) & 63,
			InfoLen: 8,
		}
		binary.BigEndian.PutUint64(r.Info[:], guid)
		f.mad(f.client, r.Encode(h))
	case 6:
		r := cm.MRA{LocalID: ids.LocalID, RemoteID: ids.RemoteID, Message: uint8(i>>6) & 3, Timeout: 31}
		f.mad(f.client, r.Encode(h))
	case 7:
		// Both IDs are right, and the queue pair is not.
		d := cm.IDs{LocalID: f.req.LocalID, RemoteID: f.rep.LocalID, QPN: f.rep.QPN ^ 1<<(i>>4%24)}
		h.Attr = cm.AttrDREQ
		f.mad(f.client, d.Encode(h))
	case 8, 9, 10, 11, 12:
		h.Attr = []cm.Attr{cm.AttrRTU, cm.AttrDREQ, cm.AttrDREP, cm.AttrLAP, cm.AttrAPR}[i%16-8]
		f.mad(f.client, ids.Encode(h))
	case 13:
		r := cm.SIDRREQ{RequestID: f.word(), ServiceID: cm.UDPServiceID(uint16(f.word())), PKey: wire.DefaultPKey}
		ip := cm.IPHeader{Src: netip.AddrPortFrom(f.client, 4000), Dst: f.server}
		ip.Put(r.Private[:])
		f.mad(f.client, r.Encode(h))
	case 14:
		h.Attr = cm.Attr(f.word())
		b := ids.Encode(h)
		copy(b[24:], f.bytes(len(b)-24))
		f.mad(f.client, b)
	case 15:
		h.Attr = cm.AttrRTU
		p := wire.Packet{
			Op: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQPN: wire.QP1,
			DETH: wire.DETH{QKey: f.word(), SrcQPN: wire.QP1},
		}
		if i&16 != 0 {
			p.Op, p.DETH.QKey = wire.SendOnly, 0
		}
		f.packet(f.client, 0, p, ids.Encode(h))
	}
}

func (f *forger) halfOpen(int)          { f.request(f.client, 20049, nil) }
func (f *forger) halfOpenOfAnybody(int) { f.request(f.anybody(), 20049, nil) }
func (f *forger) closedPort(int)        { f.request(f.anybody(), uint16(f.word()>>17)|1, nil) }
func (f *forger) largeMTU(int)          { f.request(f.client, 20049, func(r *cm.REQ) { r.MTU = 6 }) }

// icmp sends errors of all types about packets of the server to the client, with packet sizes down
// to 0.
func (f *forger) icmp(i int) {
	b := []byte{byte(i), byte(i >> 8), 0, 0, 0, 0, byte(f.word() & 7), byte(f.word())}
	from := f.client
	if i>>8&1 != 0 {
		from = f.anybody()
	}
	udp := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, wire.Port), wire.Port)
	udp = append(udp, 0x10, 0x24, 0, 0)
	s, d := f.server.AsSlice(), f.client.AsSlice()
	if f.server.Is4() {
		q := append(append([]byte{0x45, 0, 0x10, 0x38, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0}, s...), d...)
		binary.BigEndian.PutUint16(q[10:], checksum(0, q))
		f.transport(from, unix.IPPROTO_ICMP, 0, append(append(b, q...), udp...), 2, false)
		return
	}
	q := append(append([]byte{0x60, 0, 0, 0, 0x10, 0x24, unix.IPPROTO_UDP, 64}, s...), d...)
	f.transport(from, unix.IPPROTO_ICMPV6, 0, append(append(b, q...), udp...), 2, true)
}
