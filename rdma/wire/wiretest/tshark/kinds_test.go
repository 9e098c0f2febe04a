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
	"time"

	"github.com/rstored/rstored/rdma/link/pcap"
	"github.com/rstored/rstored/rdma/wire"
)

// TestDataIsNoFrame: there is no complaint about an RDMA WRITE of file data that begins with the
// number of an Ethernet protocol (here CGMP).
func TestDataIsNoFrame(t *testing.T) {
	if _, err := exec.LookPath("tshark"); errors.Is(err, exec.ErrNotFound) {
		t.Skip("tshark is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	data := make([]byte, 64)
	copy(data, []byte{0x20, 0x01, 0, 0, 0x48, 0x89, 0x94, 0x24}) // CGMP of 36 groups
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	p := wire.Packet{Op: wire.WriteMiddle, PKey: wire.DefaultPKey, DestQPN: 5, PSN: 7}
	hdr := wire.AppendHeaders(nil, &p)
	f := wire.Flow{Src: src, Dst: dst, SrcPort: wire.Port}
	dgram := binary.LittleEndian.AppendUint32(append(hdr, data...), f.ICRC(0, hdr, [][]byte{data}, 0))
	name := filepath.Join(t.TempDir(), "data.pcap")
	file := pcap.AppendRecord(pcap.FileHeader(), time.Unix(1, 0), &f, dgram, 0)
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := Count(ctx, name, "frame.protocols contains \"infiniband:ethertype\" and _ws.malformed"); err != nil ||
		n != 1 {
		t.Fatalf("%d packets are misread, want 1: %v", n, err)
	}
	if kinds, err := Kinds(ctx, name); err != nil || len(kinds) > 0 {
		t.Errorf("%v, %v", kinds, err)
	}
}
