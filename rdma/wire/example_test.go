package wire_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma/wire"
)

// A SEND of five bytes is encoded, gets its pad and ICRC, and is decoded again.
func Example() {
	flow := &wire.Flow{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 49153,
	}
	batch := wire.NewBatch(1)
	batch.Add(flow, &wire.Packet{Op: wire.SendOnly, PKey: wire.DefaultPKey, DestQPN: 17, PSN: 1},
		[][]byte{[]byte("hello")})

	d := &batch.D[0]
	dgram := append([]byte{}, d.Hdr...)
	dgram = append(dgram, "hello"...)
	dgram = append(dgram, make([]byte, d.Pad)...)
	dgram = binary.LittleEndian.AppendUint32(dgram, flow.ICRC(0, d.Hdr, d.Payload, int(d.Pad)))

	ok, exact, _ := wire.VerifyICRC(flow, dgram, 0)
	var p wire.Packet
	err := p.Parse(dgram)
	fmt.Println(ok, exact, err)
	fmt.Printf("%v to QP %d, PSN %d: %q\n", p.Op, p.DestQPN, p.PSN, p.Payload)
	// Output:
	// true true <nil>
	// SEND_ONLY to QP 17, PSN 1: "hello"
}
