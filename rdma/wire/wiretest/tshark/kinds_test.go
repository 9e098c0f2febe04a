package tshark

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/rdma/wire"
)

// TestDataIsNoFrame: file data in an RDMA WRITE that begins as an Ethernet protocol (CGMP here) does is no complaint.
func TestDataIsNoFrame(t *testing.T) {
	if _, err := exec.LookPath("tshark"); errors.Is(err, exec.ErrNotFound) {
		t.Skip("tshark is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	data := make([]byte, 64)
	copy(data, []byte{0x20, 0x01, 0, 0, 0x48, 0x89, 0x94, 0x24}) // a CGMP frame of 36 groups, which do not follow
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	p := wire.Packet{Op: wire.WriteMiddle, PKey: wire.DefaultPKey, DestQPN: 5, PSN: 7}
	hdr := wire.AppendHeaders(nil, &p)
	f := wire.Flow{Src: src, Dst: dst, SrcPort: wire.Port}
	udp := binary.LittleEndian.AppendUint32(append(hdr, data...), f.ICRC(0, hdr, [][]byte{data}, 0))
	b := make([]byte, 12, 512)   // MAC addresses
	b = append(b, 8, 0, 0x45, 0) // IPv4
	b = binary.BigEndian.AppendUint16(b, uint16(28+len(udp)))
	b = append(b, 0, 0, 0x40, 0, 64, 17, 0, 0)
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	for _, v := range []uint16{wire.Port, wire.Port, uint16(8 + len(udp)), 0} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	b = append(b, udp...)
	var file []byte
	for _, v := range []uint32{0xa1b2c3d4, 4<<16 | 2, 0, 0, 1 << 16, 1, 0, 0, uint32(len(b)), uint32(len(b))} {
		file = binary.LittleEndian.AppendUint32(file, v)
	}
	name := filepath.Join(t.TempDir(), "data.pcap")
	if err := os.WriteFile(name, append(file, b...), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := Count(ctx, name, "frame.protocols contains \"infiniband:ethertype\" and _ws.malformed"); err != nil || n != 1 {
		t.Fatalf("%d packets are misread, want 1: %v", n, err)
	}
	if kinds, err := Kinds(ctx, name); err != nil || len(kinds) > 0 {
		t.Errorf("%v, %v", kinds, err)
	}
}
