package wire_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wire/wiretest"
)

// captures lists the extracts in this package, from captures of NFS/RDMA between Linux 6.1 client
// and server over soft RoCE, and the captures in the directory RSTORED_CAPTURES.
func captures(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in testdata: %v", err)
	}
	dir := os.Getenv("RSTORED_CAPTURES")
	if dir == "" {
		return files
	}
	whole, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
	if err != nil || len(whole) == 0 {
		t.Fatalf("no captures in RSTORED_CAPTURES, which is %s: %v", dir, err)
	}
	return append(files, whole...)
}

// rebuild makes the datagram of a parsed packet as a link does: headers from a batch, payload by
// reference, then pad and ICRC.
func rebuild(b *wire.Batch, f *wire.Flow, p wire.Packet, id uint16) []byte {
	b.Reset()
	b.Add(f, &p, [][]byte{p.Payload})
	d := &b.D[0]
	c := f.ICRC(id, d.Hdr, d.Payload, int(d.Pad))
	out := append(bytes.Clone(d.Hdr), p.Payload...)
	out = append(out, make([]byte, d.Pad)...)
	return binary.LittleEndian.AppendUint32(out, c)
}

// TestKernelPackets: every packet that the kernel sent verifies, decodes, and
// encodes to the same bytes.
func TestKernelPackets(t *testing.T) {
	seen := make(map[wire.Opcode]int)
	for _, name := range captures(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			frames, err := wiretest.Frames(raw)
			if err != nil {
				t.Fatal(err)
			}
			if len(frames) == 0 {
				t.Fatal("no RoCEv2 packets")
			}
			batch := wire.NewBatch(1)
			var flow wire.Flow // one for all packets, as in a receiver
			for _, fr := range frames {
				flow.Src, flow.Dst, flow.SrcPort = fr.Src, fr.Dst, fr.SrcPort
				var p wire.Packet
				if err := p.Parse(fr.Datagram); err != nil {
					t.Fatalf("packet %d: %v", fr.Number, err)
				}
				seen[p.Op]++
				if got := rebuild(batch, &flow, p, fr.ID); !bytes.Equal(got, fr.Datagram) {
					t.Errorf("packet %d (%v)\n got %x\nwant %x", fr.Number, p.Op, got, fr.Datagram)
				}
				ok, exact, id := wire.VerifyICRC(&flow, fr.Datagram, 0)
				if !ok || id != fr.ID || exact != (fr.ID == 0) {
					t.Errorf("packet %d (%v): ok %v, exact %v, identification %#x; it was %#x", fr.Number, p.Op, ok, exact, id, fr.ID)
				}
			}
			t.Logf("%d packets", len(frames))
		})
	}
	for _, op := range []wire.Opcode{
		wire.SendFirst, wire.SendMiddle, wire.SendLast, wire.SendOnly, wire.SendOnlyInv,
		wire.WriteFirst, wire.WriteMiddle, wire.WriteLast, wire.WriteOnly,
		wire.ReadRequest, wire.ReadRespFirst, wire.ReadRespMiddle, wire.ReadRespLast, wire.Acknowledge, wire.UDSendOnly,
	} {
		if seen[op] == 0 {
			t.Errorf("no %v among the packets", op)
		}
	}
}
