// Package captures_test reads recorded conversations of the Linux kernel through every
// layer of the product: what its decoders make of each message has to encode to the
// same bytes.
//
// RSTORED_CAPTURES names a directory of pcap files; without it the extracts kept with
// rdma/wire are read.
package captures_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wire/wiretest"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// extracts is what is read when nothing else is named.
const extracts = "../../rdma/wire/testdata"

// TestCaptures: every RoCE packet, CM message, RPC-over-RDMA header and message of
// NFS version 3 and MOUNT decodes and encodes to the same bytes. It logs how many of
// which kind there were.
func TestCaptures(t *testing.T) {
	dir := os.Getenv("RSTORED_CAPTURES")
	if dir == "" {
		dir = extracts
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in %s: %v", dir, err)
	}
	total := make(counts)
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			pcap, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			w := newWalk(t)
			w.rdma(pcap)
			w.tcp(pcap)
			w.finish()
			w.count.log(t)
			for k, n := range w.count {
				total[k] += n
			}
		})
	}
	t.Logf("%d captures together:", len(files))
	total.log(t)
	for _, kind := range []string{"RoCE packets", "CM REQ", "RPC-over-RDMA headers", "NFSv3 calls", "NFSv3 replies"} {
		if total[kind] == 0 {
			t.Errorf("no %s in %s", kind, dir)
		}
	}
}

// counts are how many there were of a kind.
type counts map[string]int

func (c counts) log(t *testing.T) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(c)) {
		t.Logf("%7d %s", c[k], k)
	}
}

// queue is where packets of a queue pair go.
type queue struct {
	dst netip.Addr
	qpn uint32
}

// walk is one capture being read.
type walk struct {
	t      *testing.T
	count  counts
	mem    memory
	sends  map[queue][]byte // messages that have begun
	calls  map[callKey]*half
	echo   *echo
	server *decoder
}

func newWalk(t *testing.T) *walk {
	w := &walk{
		t: t, count: make(counts), mem: newMemory(), sends: make(map[queue][]byte),
		calls: make(map[callKey]*half), echo: newEcho(), server: newDecoder(),
	}
	t.Cleanup(func() { w.echo.srv.Close(); w.server.srv.Close() })
	return w
}

// rdma reads what came over RoCE.
func (w *walk) rdma(pcap []byte) {
	frames, err := wiretest.Frames(pcap)
	if err != nil {
		w.t.Fatal(err)
	}
	batch := wire.NewBatch(1)
	var flow wire.Flow // one for all, as a receiver has it
	for _, f := range frames {
		flow.Src, flow.Dst, flow.SrcPort = f.Src, f.Dst, f.SrcPort
		var p wire.Packet
		if err := p.Parse(f.Datagram); err != nil {
			w.t.Errorf("packet %d: %v", f.Number, err)
			continue
		}
		p.Src, p.Dst = f.Src, f.Dst
		w.count["RoCE packets"]++
		w.count["RoCE "+p.Op.String()]++
		if got := rebuild(batch, &flow, p, f.ID); !bytes.Equal(got, f.Datagram) {
			w.t.Errorf("packet %d (%v)\n got %x\nwant %x", f.Number, p.Op, got, f.Datagram)
		}
		if ok, exact, id := wire.VerifyICRC(&flow, f.Datagram, 0); !ok || id != f.ID || exact != (f.ID == 0) {
			w.t.Errorf("packet %d (%v): its ICRC is good: %v, exact: %v, for identification %#x; it was %#x", f.Number, p.Op, ok,
				exact, id, f.ID)
		}
		w.packet(f.Number, &p)
	}
}

// rebuild makes the datagram of a parsed packet the way a link does.
func rebuild(b *wire.Batch, f *wire.Flow, p wire.Packet, id uint16) []byte {
	b.Reset()
	b.Add(f, &p, [][]byte{p.Payload})
	d := &b.D[0]
	out := append(bytes.Clone(d.Hdr), p.Payload...)
	out = append(out, make([]byte, d.Pad)...)
	return binary.LittleEndian.AppendUint32(out, f.ICRC(id, d.Hdr, d.Payload, int(d.Pad)))
}

// packet follows messages and memory.
func (w *walk) packet(number int, p *wire.Packet) {
	q := queue{p.Dst, p.DestQPN}
	switch p.Op {
	case wire.UDSendOnly:
		w.mad(number, p.Payload)
	case wire.SendFirst:
		w.sends[q] = bytes.Clone(p.Payload)
	case wire.SendMiddle:
		w.sends[q] = append(w.sends[q], p.Payload...)
	case wire.SendOnly, wire.SendOnlyInv, wire.SendLast, wire.SendLastInv:
		msg := append(w.sends[q], p.Payload...)
		delete(w.sends, q)
		w.message(number, p, msg)
	default:
		w.mem.packet(p)
	}
}

var attributes = map[cm.Attr]string{
	cm.AttrREQ: "REQ", cm.AttrMRA: "MRA", cm.AttrREJ: "REJ", cm.AttrREP: "REP", cm.AttrRTU: "RTU", cm.AttrDREQ: "DREQ",
	cm.AttrDREP: "DREP",
}

// mad is a message of the connection manager.
func (w *walk) mad(number int, b []byte) {
	h, err := cm.ParseHeader(b)
	if err != nil {
		w.t.Errorf("packet %d: %v", number, err)
		return
	}
	var got []byte
	switch h.Attr {
	case cm.AttrREQ:
		r := cm.ParseREQ(b)
		got = r.Encode(h)
		ip, err := cm.ParseIPHeader(r.Private[:])
		if err != nil {
			w.t.Errorf("packet %d: %v", number, err)
			return
		}
		again := r.Private
		ip.Put(again[:])
		if again != r.Private {
			w.t.Errorf("packet %d: the address header %x encodes as %x", number, r.Private, again)
		}
		w.private(number, r.Private[cm.IPHeaderLen:])
	case cm.AttrREP:
		r := cm.ParseREP(b)
		got = r.Encode(h)
		w.private(number, r.Private[:])
	case cm.AttrREJ:
		r := cm.ParseREJ(b)
		got = r.Encode(h)
	case cm.AttrMRA:
		r := cm.ParseMRA(b)
		got = r.Encode(h)
	case cm.AttrRTU, cm.AttrDREQ, cm.AttrDREP:
		r := cm.ParseIDs(b)
		got = r.Encode(h)
	}
	w.count["CM "+attributes[h.Attr]]++
	w.count["CM messages"]++
	if !bytes.Equal(got, b) {
		w.t.Errorf("packet %d (CM %s)\n got %x\nwant %x", number, attributes[h.Attr], got, b)
	}
}

// private is what RPC-over-RDMA says in the private data of a connection.
func (w *walk) private(number int, b []byte) {
	m, ok := rpcrdma.ParsePrivate(b)
	if !ok {
		return
	}
	w.count["RPC-over-RDMA private messages"]++
	if !bytes.Contains(b, m.Append(nil)) {
		w.t.Errorf("packet %d: the private message of %x encodes as %x", number, b, m.Append(nil))
	}
}

// message is a SEND.
func (w *walk) message(number int, p *wire.Packet, msg []byte) {
	h := new(rpcrdma.Header)
	rest, err := h.Parse(msg)
	if err != nil {
		w.t.Errorf("packet %d: %v: %x", number, err, msg)
		return
	}
	head := msg[:len(msg)-len(rest)]
	w.count["RPC-over-RDMA headers"]++
	w.count["RPC-over-RDMA "+h.Type.String()]++
	if got := h.Append(nil); !bytes.Equal(got, head) || h.Len() != len(head) {
		w.t.Errorf("packet %d: header of %d bytes\n%x encodes as %d\n%x", number, len(head), head, h.Len(), got)
	}
	m := &half{number: number, header: h, msg: rest, src: p.Src, dst: p.Dst}
	if h.Type == rpcrdma.TypeError {
		w.reply(m)
		return
	}
	reply := h.HasReply && h.Type == rpcrdma.TypeNoMsg && len(h.Reads) == 0
	if len(rest) >= 8 {
		reply = binary.BigEndian.Uint32(rest[4:]) == rpc.MsgReply
	}
	if reply {
		w.reply(m)
	} else {
		w.call(m)
	}
}

// tcp reads what came by TCP: MOUNT, and what else has no place on RDMA.
func (w *walk) tcp(pcap []byte) {
	streams, err := wiretest.Streams(pcap)
	if err != nil {
		w.t.Fatal(err)
	}
	var replies []*half
	for _, s := range streams {
		for b := bytes.NewReader(s.Data); b.Len() > 0; {
			msg, err := rpc.ReadRecord(b, nil, 1<<20)
			if err != nil || len(msg) < 8 {
				w.t.Errorf("stream %v to %v: %v", s.Src, s.Dst, err)
				break
			}
			m := &half{msg: bytes.Clone(msg), src: s.Src.Addr(), dst: s.Dst.Addr(), tcp: true, port: s.Src.Port()}
			if binary.BigEndian.Uint32(msg[4:]) == rpc.MsgReply {
				m.port = s.Dst.Port()
				replies = append(replies, m)
			} else {
				w.call(m)
			}
		}
	}
	for _, m := range replies {
		w.reply(m)
	}
}

func (m *half) String() string {
	if m.tcp {
		return fmt.Sprintf("XID %#x by TCP port %d", m.xid(), m.port)
	}
	return fmt.Sprintf("packet %d, XID %#x", m.number, m.xid())
}
