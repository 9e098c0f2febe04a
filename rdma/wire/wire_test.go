package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reqVector and repVector are a REQ and a REP of CM for NFS on port 20049.
var (
	reqVector = "45000134 1a2b4000 40119b82 c000020a c0000201" + // IPv4
		"d87212b7 01200000" + // UDP
		"6400ffff 00000001 80000000 80010000 00000001" + // BTH, DETH
		"01070203 00000000 00000003 d2913c5a 00100000 00000000" + // MAD header
		"5a3c91d2 00000000 00000000 01064e51 505400ff fe123456" + // communication ID, service, GUID
		zeros(8) + "00001180 00000000 000000a0 9c41e7a6 ffff30f0 ffffffff" + // QPN, depths, PSN, MTU, LIDs
		zeros(10) + "ffff c000020a" + zeros(10) + "ffff c0000201" + // GIDs
		"3cf7f000 00400098" + zeros(44) + // path, alternate path
		"0040a112" + zeros(12) + "c000020a" + zeros(12) + "c0000201" + // addresses
		"f6ab0e18 01010303" + zeros(48) + "05bca2e0"
	repVector = "45000134 00004000 4011b5ad c0000201 c000020a" +
		"c00112b7 01200000" +
		"6440ffff 00000001 00000000 80010000 00000001" +
		"01070203 00000000 00000003 d2913c5a 00130000 00000000" +
		"7e0a44c1 5a3c91d2" + // communication IDs
		"00000000 4b21f700 00000000 2d90aa00 001078e0 0200c000 02010001" + // QPN, PSN, depths, GUID
		"f6ab0e18 01000303" + zeros(188) + "53075992"
)

func zeros(n int) string { return strings.Repeat("00", n) }

// vectors are whole packets from the IP header on. The first was captured
// from a ConnectX-4 Lx, the others were computed independently.
var vectors = []struct {
	name, ip string
	id       uint16
	op       Opcode
}{
	{
		"hardware CNP",
		"45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff4000011800000000" +
			"00000000000000000000000000000000" + "82fd002a", 0x718c, CNP,
	},
	{
		"IPv4 ACK", "45000030000040004011b6b1c0000201c000020ac00112b7001c00001100ffff00000011009c41e71f0000017a080f61", 0,
		Acknowledge,
	},
	{
		"IPv4 SEND, pad 3",
		"45000034000040004011b6adc0000201c000020ac00112b7002000000470ffff0000001180123456" +
			"68656c6c6f000000fb1126cd", 0, SendOnly,
	},
	{"REQ, made by hand", reqVector, 0x1a2b, UDSendOnly},
	{"REP, made by hand", repVector, 0, UDSendOnly},
	{
		"IPv6 SEND",
		"600000000020114020010db800000000000000000000000120010db800000000000000000000000a" +
			"d23412b7002000000470ffff000000118012345668656c6c6f0000003ed77bfb", 0, SendOnly,
	},
}

func split(b []byte) (f *Flow, dgram []byte) {
	f = new(Flow)
	n := ip4Len
	if b[0]>>4 == 6 {
		n = ip6Len
		f.Src, f.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	} else {
		f.Src, f.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	}
	f.SrcPort = binary.BigEndian.Uint16(b[n:])
	return f, b[n+udpLen:]
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			f, d := split(unhex(t, v.ip))
			var p Packet
			if err := p.Parse(d); err != nil {
				t.Fatal(err)
			}
			if p.Op != v.op {
				t.Errorf("opcode %v, want %v", p.Op, v.op)
			}
			again := AppendHeaders(nil, &p)
			if !bytes.Equal(again, d[:len(again)]) {
				t.Errorf("headers\n got %x\nwant %x", again, d[:len(again)])
			}
			want := binary.LittleEndian.Uint32(d[len(d)-ICRCLen:])
			if got := f.ICRC(v.id, again, [][]byte{p.Payload}, int(p.Pad)); got != want {
				t.Errorf("ICRC %08x, want %08x", got, want)
			}
			ok, exact, id := VerifyICRC(f, d, 0)
			if !ok || exact != (v.id == 0) || id != v.id {
				t.Errorf("verify: ok %v exact %v id %#x", ok, exact, id)
			}
			// A changed byte never passes all 32 bits; where the identification
			// is not known, chance lets one in 32768 pass.
			passed := 0
			for i := range d {
				if i == 4 {
					continue // FECN and BECN are not covered
				}
				d[i] ^= 0x5a
				if ok, exact, _ := VerifyICRC(f, d, 0); exact {
					t.Errorf("a flipped byte %d passed", i)
				} else if ok {
					passed++
				}
				d[i] ^= 0x5a
			}
			if passed > 1 || passed > 0 && f.Src.Is6() {
				t.Errorf("%d of %d flipped bytes passed", passed, len(d))
			}
		})
	}
}

// TestICRCOfAnyTransport: the ICRC does not depend on what the opcode is. This
// packet is of the unreliable connection class, which Parse refuses.
func TestICRCOfAnyTransport(t *testing.T) {
	f := &Flow{Src: netip.MustParseAddr("192.168.0.7"), Dst: netip.MustParseAddr("192.168.0.7"), SrcPort: 49152}
	d := unhex(t, "2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3")
	if got := f.ICRC(1144, d[:BTHLen], [][]byte{d[BTHLen : BTHLen+18]},
		2); got != binary.LittleEndian.Uint32(d[len(d)-ICRCLen:]) {
		t.Errorf("ICRC %08x", got)
	}
	if ok, exact, id := VerifyICRC(f, d, 0); !ok || exact || id != 1144 {
		t.Errorf("verify: ok %v exact %v id %d", ok, exact, id)
	}
	if err := new(Packet).Parse(d); !errors.Is(err, ErrOpcode) {
		t.Errorf("Parse: %v", err)
	}
}

// TestRewindIsTheInverse: running the register back through n zero bytes undoes
// running it forth, which is done here with the table of the standard library.
func TestRewindIsTheInverse(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 255, 256, 257, 298, 1098, 4150, 65506, 65535} {
		const want = 0x00002b1a
		reg := uint32(want)
		for range n {
			reg = crc32.IEEETable[reg&0xff] ^ reg>>8
		}
		if got := rewind(reg, n); got != want {
			t.Errorf("through %d bytes and back: %08x, want %08x", n, got, want)
		}
	}
}

// TestUnknownID: for packets of every length a link carries, any identification
// is found, DF set or clear, and corruption is not taken for one.
func TestUnknownID(t *testing.T) {
	const seed = 11
	rnd := rand.New(rand.NewPCG(seed, 0))
	f := &Flow{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xc001}
	buf := make([]byte, 9000)
	for i := range buf {
		buf[i] = byte(rnd.Uint32())
	}
	passed, tried := 0, 0
	for n := 0; n <= len(buf)-BTHLen; n += 4 {
		id := uint16(rnd.Uint32())
		hdr, body := buf[:BTHLen], buf[BTHLen:BTHLen+n]
		d := binary.LittleEndian.AppendUint32(bytes.Clone(buf[:BTHLen+n]), f.ICRC(id, hdr, [][]byte{body}, 0))
		if ok, exact, got := VerifyICRC(f, d, 0); !ok || got != id || exact != (id == 0) {
			t.Fatalf("seed %d: %d bytes with identification %#x: ok %v exact %v id %#x", seed, n, id, ok, exact, got)
		}
		if ok, exact, got := VerifyICRC(f, d, id); !ok || !exact || got != id {
			t.Fatalf("seed %d: %d bytes with the right identification %#x: ok %v exact %v id %#x", seed, n, id, ok, exact, got)
		}
		if like := uint16(rnd.Uint32()); like != id {
			if ok, exact, got := VerifyICRC(f, d, like); !ok || exact || got != id {
				t.Fatalf("seed %d: %d bytes with identification %#x, not %#x: ok %v exact %v id %#x", seed, n, id, like, ok, exact,
					got)
			}
		}
		for range 40 {
			at := rnd.IntN(len(d))
			if at == 4 {
				continue // FECN and BECN are not covered
			}
			was := d[at]
			d[at] ^= byte(1 + rnd.IntN(255))
			if ok, exact, _ := VerifyICRC(f, d, 0); exact {
				t.Fatalf("seed %d: a changed byte %d of %d passed all 32 bits", seed, at, len(d))
			} else if ok {
				passed++
			}
			tried++
			d[at] = was
		}
	}
	// Two of 2^16 values of the flags word are taken, so about one in 32768.
	if passed > 1+tried*8/32768 {
		t.Errorf("seed %d: %d of %d corrupted packets passed", seed, passed, tried)
	}
}

func TestUnknownIDWithDFClear(t *testing.T) {
	// The CNP with its DF flag cleared at the sender: the ICRC of the same
	// bytes changes by what the flag contributes.
	f, d := split(unhex(t, vectors[0].ip))
	ip := unhex(t, vectors[0].ip)[:ip4Len+udpLen]
	ip[1], ip[6], ip[8], ip[10], ip[11], ip[26], ip[27] = 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff
	bth := bytes.Clone(d[:len(d)-ICRCLen])
	bth[4] = 0xff
	c := crc32.Update(crc32.Update(crc32.ChecksumIEEE(bytes.Repeat([]byte{0xff}, 8)), crc32.IEEETable, ip),
		crc32.IEEETable, bth)
	binary.LittleEndian.PutUint32(d[len(d)-ICRCLen:], c)
	if ok, exact, id := VerifyICRC(f, d, 0); !ok || exact || id != 0x718c {
		t.Errorf("ok %v exact %v id %#x", ok, exact, id)
	}
}

func TestVerifyRefusesLengths(t *testing.T) {
	f := &Flow{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2")}
	for _, n := range []int{0, 3, BTHLen + ICRCLen - 1, 1<<16 - ip4Len - udpLen, 1 << 17} {
		if ok, _, _ := VerifyICRC(f, make([]byte, n), 0); ok {
			t.Errorf("%d bytes passed", n)
		}
	}
}

// TestFlowForms: the mapped form of an IPv4 address is the same flow, a change
// of the fields takes effect, and a flow of mixed families harms nobody.
func TestFlowForms(t *testing.T) {
	f, d := split(unhex(t, vectors[1].ip))
	mapped := &Flow{Src: netip.AddrFrom16(f.Src.As16()), Dst: netip.AddrFrom16(f.Dst.As16()), SrcPort: f.SrcPort}
	if ok, exact, _ := VerifyICRC(mapped, d, 0); !ok || !exact {
		t.Error("the mapped form does not verify")
	}
	f.Dst = netip.MustParseAddr("2001:db8::1")
	if ok, _, _ := VerifyICRC(f, d, 0); ok {
		t.Error("a flow from IPv4 to IPv6 verifies")
	}
	if ok, _, _ := VerifyICRC(new(Flow), d, 0); ok {
		t.Error("a flow without addresses verifies")
	}
	*f = *mapped
	if ok, exact, _ := VerifyICRC(f, d, 0); !ok || !exact {
		t.Error("the flow does not verify after a change of its addresses")
	}
}

func TestParseRefuses(t *testing.T) {
	ack := unhex(t, "1100ffff00000011009c41e7 1f000001 00000000")
	edit := func(at int, v byte) []byte {
		b := bytes.Clone(ack)
		b[at] = v
		return b
	}
	for _, c := range []struct {
		name string
		d    []byte
		want error
	}{
		{"nothing", nil, ErrTooShort},
		{"no ICRC", ack[:BTHLen+3], ErrTooShort},
		{"no room for the AETH", ack[:BTHLen+AETHLen], ErrTooShort},
		{"transport version 1", edit(1, 1), ErrVersion},
		{"reserved opcode", edit(0, 0x15), ErrOpcode},
		{"unreliable class", edit(0, 0x24), ErrOpcode},
		{"payload behind an ACK", append(bytes.Clone(ack), 1, 2, 3, 4), ErrPad},
		{"pad on an ACK", edit(1, 0x10), ErrPad},
		{"pad longer than the payload", append([]byte{0x04, 0x30}, ack[2:BTHLen+ICRCLen]...), ErrPad},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := new(Packet).Parse(c.d); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// TestOpcodeTable: each opcode's length is what its headers add up to, and every
// packet comes back from its own bytes.
func TestOpcodeTable(t *testing.T) {
	known := 0
	for i := range 256 {
		op := Opcode(i)
		if !op.Known() {
			if op.HeaderLen() != 0 || op.IsRC() {
				t.Errorf("%v is unknown and has a shape", op)
			}
			continue
		}
		known++
		n := BTHLen
		for _, h := range []struct {
			s   Shape
			len int
		}{
			{HasRETH, RETHLen},
			{HasAETH, AETHLen},
			{HasImm, ImmLen},
			{HasIETH, IETHLen},
			{HasDETH, DETHLen},
			{HasAtomic, AtomicLen},
			{HasAtomicAck, AtomicAckLen},
		} {
			if op.Is(h.s) {
				n += h.len
			}
		}
		if n != op.HeaderLen() || n > HeadersMax {
			t.Errorf("%v: headers of %d bytes, the table says %d", op, n, op.HeaderLen())
		}
		if op.Is(Request) == op.Is(Response) && op != CNP {
			t.Errorf("%v is neither a request nor a response, or both", op)
		}
		p := Packet{
			Op: op, Solicited: true, MigReq: true, AckReq: true, FECN: true, BECN: true, PKey: 0x1234, DestQPN: 0xabcdef,
			PSN:  0x123456,
			RETH: RETH{1 << 60, 2, 3}, AETH: AETH{0x7f, 0x654321}, Imm: 4, InvRKey: 5, DETH: DETH{QKey: 6, SrcQPN: 0xfedcba},
			Atomic: Atomic{VA: 1 << 61, RKey: 7, SwapAdd: 8, Compare: 9}, AtomicAck: 10,
		}
		var q Packet
		if err := q.Parse(append(AppendHeaders(nil, &p), 0, 0, 0, 0)); err != nil {
			t.Errorf("%v: %v", op, err)
			continue
		}
		if a, b := AppendHeaders(nil, &p), AppendHeaders(nil, &q); !bytes.Equal(a, b) {
			t.Errorf("%v\n got %x\nwant %x", op, b, a)
		}
	}
	if known != 26 {
		t.Errorf("%d opcodes are known, want 26", known)
	}
}

func TestBatch(t *testing.T) {
	f := &Flow{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2")}
	b := NewBatch(3)
	many := make([][]byte, PartsMax)
	for i := range many {
		many[i] = []byte{byte(i)}
	}
	for i, c := range []struct {
		parts [][]byte
		n     int
		pad   uint8
	}{{[][]byte{{1, 2}, nil, {3}}, 3, 1}, {nil, 0, 0}, {many, PartsMax, 0}} {
		if b.Full() {
			t.Fatalf("full with %d of 3 datagrams", i)
		}
		p := Packet{Op: SendOnly, PSN: PSN(i)}
		b.Add(f, &p, c.parts)
		d := &b.D[i]
		if d.PayloadLen != c.n || d.Pad != c.pad || d.Size() != BTHLen+c.n+int(c.pad)+ICRCLen {
			t.Errorf("datagram %d: %d bytes of payload, pad %d, size %d", i, d.PayloadLen, d.Pad, d.Size())
		}
		if cap(d.Hdr)-len(d.Hdr) < trailerMax {
			t.Errorf("datagram %d: room for %d bytes of trailer", i, cap(d.Hdr)-len(d.Hdr))
		}
	}
	if !b.Full() || b.Room() != 0 {
		t.Errorf("not full with 3 of 3, room %d", b.Room())
	}
	for i, d := range b.D { // what was added later has not run over what was added before
		if d.Hdr[11] != byte(i) {
			t.Errorf("datagram %d has PSN %d", i, d.Hdr[11])
		}
	}
	if first := bytes.Join(b.D[0].Payload, nil); !bytes.Equal(first, []byte{1, 2, 3}) {
		t.Errorf("payload of the first %v", first)
	}
	b.Reset()
	if b.Full() || b.Room() != 3 || len(b.D) != 0 {
		t.Error("not empty after Reset")
	}
}

func TestPSNAtTheWrap(t *testing.T) {
	for _, c := range []struct {
		a, b PSN
		d    int32
	}{{0, 0, 0}, {1, 0, 1}, {0, 0xffffff, 1}, {0xffffff, 0, -1}, {0x7fffff, 0, 0x7fffff}, {0x800000, 0, -0x800000}} {
		if got := c.a.Sub(c.b); got != c.d {
			t.Errorf("%#x - %#x = %d, want %d", c.a, c.b, got, c.d)
		}
	}
	if PSN(0xffffff).Add(2) != 1 || PSN(1).Add(-2) != 0xffffff {
		t.Error("Add does not wrap")
	}
}

func TestNoAllocs(t *testing.T) {
	f := &Flow{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xc001}
	b := NewBatch(4)
	p := Packet{Op: WriteOnly, PKey: DefaultPKey, DestQPN: 17}
	data := make([]byte, 1024)
	parts := [][]byte{data}
	var d []byte
	buf := make([]byte, 0, 2048)
	n := testing.AllocsPerRun(100, func() {
		b.Reset()
		b.Add(f, &p, parts)
		g := &b.D[0]
		c := f.ICRC(0, g.Hdr, g.Payload, int(g.Pad))
		d = append(append(buf, g.Hdr...), data...)
		d = binary.LittleEndian.AppendUint32(d, c)
		var q Packet
		if q.Parse(d) != nil {
			t.Error("does not parse")
		}
		if ok, exact, _ := VerifyICRC(f, d, 0); !ok || !exact {
			t.Error("does not verify")
		}
		binary.LittleEndian.PutUint32(d[len(d)-ICRCLen:], f.ICRC(7, g.Hdr, g.Payload, int(g.Pad)))
		if ok, exact, id := VerifyICRC(f, d, 0); !ok || exact || id != 7 {
			t.Error("does not verify with another identification")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range vectors {
		_, d := split(unhex(f, v.ip))
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, d []byte) {
		var p, q Packet
		if p.Parse(d) != nil {
			return
		}
		b := AppendHeaders(nil, &p)
		b = append(append(b, p.Payload...), make([]byte, int(p.Pad)+ICRCLen)...)
		if err := q.Parse(b); err != nil {
			t.Fatalf("re-encoded packet does not parse: %v", err)
		}
		if !bytes.Equal(AppendHeaders(nil, &q), AppendHeaders(nil, &p)) || !bytes.Equal(p.Payload, q.Payload) {
			t.Fatal("parse, append, parse differs")
		}
	})
}

// FuzzVerifyICRC: no datagram makes verification fail in another way than by
// saying no, and what it accepts is explained by the identification it returns.
// Every implementation copies what is behind the BTH, and finds the same.
func FuzzVerifyICRC(f *testing.F) {
	for _, v := range vectors {
		_, d := split(unhex(f, v.ip))
		f.Add(d, uint16(0xc001))
	}
	f.Fuzz(func(t *testing.T, d []byte, port uint16) {
		fl := &Flow{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: port}
		if len(d) >= BTHLen+ICRCLen && len(d) < datagramMax {
			// Seal it, so that acceptance is reached at all.
			c := fl.ICRC(port, d[:BTHLen], [][]byte{d[BTHLen : len(d)-ICRCLen]}, 0)
			sealed := binary.LittleEndian.AppendUint32(bytes.Clone(d[:len(d)-ICRCLen]), c)
			if ok, exact, id := VerifyICRC(fl, sealed, 7); !ok || id != port || exact != (port == 7) {
				t.Fatalf("sealed with identification %#x: ok %v exact %v id %#x", port, ok, exact, id)
			}
		}
		ok, exact, id := VerifyICRC(fl, d, 0)
		if len(d) < BTHLen+ICRCLen || len(d) > datagramMax {
			return
		}
		body := d[BTHLen : len(d)-ICRCLen]
		for _, name := range crcImplementations(t) {
			dst := make([]byte, len(body)+16)
			gotOK, gotExact, gotID := VerifyCopy(fl, d, 0, dst[:len(body)])
			if gotOK != ok || gotExact != exact || gotID != id || !bytes.Equal(dst[:len(body)], body) ||
				!bytes.Equal(dst[len(body):], make([]byte, 16)) {
				t.Fatalf("%s: %v %v %#x instead of %v %v %#x, or another copy", name, gotOK, gotExact, gotID, ok, exact, id)
			}
		}
	})
}

func benchmarkVerify(b *testing.B, id, like uint16, size int) {
	f := &Flow{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xc001}
	d := make([]byte, BTHLen+size, BTHLen+size+ICRCLen)
	d = binary.LittleEndian.AppendUint32(d, f.ICRC(id, d[:BTHLen], [][]byte{d[BTHLen:]}, 0))
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if ok, _, _ := VerifyICRC(f, d, like); !ok {
			b.Fatal("does not verify")
		}
	}
}

func BenchmarkVerifyKnownID1024(b *testing.B)   { benchmarkVerify(b, 7, 7, 1024) }
func BenchmarkVerifyUnknownID1024(b *testing.B) { benchmarkVerify(b, 0x1a2b, 0, 1024) }
func BenchmarkVerifyKnownID4096(b *testing.B)   { benchmarkVerify(b, 7, 7, 4096) }
func BenchmarkVerifyUnknownID4096(b *testing.B) { benchmarkVerify(b, 0x1a2b, 0, 4096) }

func BenchmarkParse(b *testing.B) {
	_, d := split(unhex(b, repVector))
	var p Packet
	b.ReportAllocs()
	for b.Loop() {
		if p.Parse(d) != nil {
			b.Fatal("does not parse")
		}
	}
}
