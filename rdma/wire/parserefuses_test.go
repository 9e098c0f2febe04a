package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
)

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

// TestOpcodeTable: the length of each opcode is the sum of its headers, and a decoded packet
// encodes to the same bytes.
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
	for i, d := range b.D { // no datagram has overwritten an earlier one
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

// FuzzVerifyICRC: VerifyICRC accepts a datagram only if the ICRC is right for the identification
// that it returns. Every implementation copies the bytes behind the BTH, and gives the same result.
func FuzzVerifyICRC(f *testing.F) {
	for _, v := range vectors {
		_, d := split(unhex(f, v.ip))
		f.Add(d, uint16(0xc001))
	}
	f.Fuzz(func(t *testing.T, d []byte, port uint16) {
		fl := &Flow{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: port}
		if len(d) >= BTHLen+ICRCLen && len(d) < datagramMax {
			// The ICRC is made valid, so that the fuzzer also tests accepted datagrams.
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
