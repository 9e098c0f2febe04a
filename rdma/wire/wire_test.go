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
			// A changed byte never passes the check of all 32 bits. If the identification is
			// unknown, one change in 32768 passes.
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

// TestICRCOfAnyTransport: the ICRC does not depend on the opcode. This packet is of the unreliable
// connection class, which Parse refuses.
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

// TestRewindIsTheInverse: rewinding the register through n zero bytes undoes the forward
// computation, which is made with the table of the standard library.
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

// TestUnknownID: VerifyICRC finds any identification for packets of every length, with DF set or
// clear. It does not take corruption for an identification.
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
	// Two of the 2^16 values of the flags word are accepted, so about one in 32768 changes passes.
	if passed > 1+tried*8/32768 {
		t.Errorf("seed %d: %d of %d corrupted packets passed", seed, passed, tried)
	}
}

func TestUnknownIDWithDFClear(t *testing.T) {
	// The sender cleared DF in the CNP. The ICRC of the same bytes changes by the contribution of
	// the flag.
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

// TestFlowForms: the mapped form of an IPv4 address is the same flow, a change of the fields takes
// effect, and no packet verifies against a flow of mixed families.
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
