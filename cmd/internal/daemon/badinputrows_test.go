package daemon

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	rdmaend "github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// badRow is one thing that a client does on a connection of its own.
type badRow struct {
	name     string
	rdma     bool
	do       func(*testing.T, *badPeer)
	want     string // see badPeer.next; empty: there is no answer
	counters []string
	ends     bool // the connection is over then
}

func (r *badRow) run(t *testing.T, h *badServer) {
	p := h.dialTCP
	if r.rdma {
		p = h.dialRDMA
	}
	peer := p(t)
	before := make([]uint64, len(r.counters))
	for i, k := range r.counters {
		before[i] = h.count(t, k)
	}
	r.do(t, peer)
	if r.want != "" {
		if got, xid := peer.next(t); got != r.want || xid != 7 {
			t.Errorf("answer %q to call %d, want %q to call 7", got, xid, r.want)
		}
	}
	if r.ends {
		if got, _ := peer.next(t); got != "the connection ended" {
			t.Errorf("%s, and the connection should have ended", got)
		}
	} else {
		peer.call(t, callOf(99, nfs3.Program, nfs3.Version, nfs3.ProcGetAttr, func(e *xdr.Encoder) { e.Opaque(h.file) }))
		if got, xid := peer.next(t); got != "status 0" || xid != 99 {
			t.Errorf("then the connection gives %q to call %d", got, xid)
		}
	}
	for i, k := range r.counters {
		for until := time.Now().Add(time.Minute); h.count(t, k) == before[i]; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Errorf("%s stays at %d", k, before[i])
				break
			}
		}
	}
	h.served(t)
}

// recordRows is what is no record.
func recordRows() []badRow {
	raw := func(b []byte) func(*testing.T, *badPeer) {
		return func(t *testing.T, p *badPeer) { p.send(t, b) }
	}
	counted := []string{"tcp_bad_records"}
	return []badRow{
		{name: "tcp/a record longer than the limit", do: raw(be(1<<31 | (rpc.MaxRecord + 1))), counters: counted, ends: true},
		{
			name: "tcp/a record longer than the limit in two fragments",
			do:   raw(append(append(be(rpc.MaxRecord), make([]byte, rpc.MaxRecord)...), be(1<<31|4)...)), counters: counted,
			ends: true,
		},
		{name: "tcp/fragments of nothing without end", do: raw(make([]byte, 4*5000)), counters: counted, ends: true},
		{
			name: "tcp/another protocol", do: raw([]byte("GET / HTTP/1.1\r\nHost: here\r\n\r\n")), counters: counted,
			ends: true,
		},
		{name: "tcp/an empty record", do: raw(be(1 << 31)), counters: []string{"rpc_not_a_call"}},
		{name: "tcp/a record that is cut off", do: func(t *testing.T, p *badPeer) {
			p.send(t, append(be(1<<31|100), 1, 2, 3))
			if err := p.tcp.(*net.TCPConn).CloseWrite(); err != nil {
				t.Error(err)
			}
		}, ends: true}, // as any client does that is killed: no fault, and not counted
	}
}

// headerRows is what is wrong with transport headers (RFC 8166 section 4).
func (h *badServer) headerRows(null []byte) []badRow {
	raw := func(b []byte) func(*testing.T, *badPeer) {
		return func(t *testing.T, p *badPeer) { p.send(t, b) }
	}
	seg := rpcrdma.Segment{Handle: 1, Length: 40, Offset: 1 << 20}
	many := func(n int) (c rpcrdma.Chunk) {
		for range n {
			c = append(c, seg)
		}
		return c
	}
	header := func(h rpcrdma.Header, msg []byte) []byte {
		h.XID = 7
		return framed(h, msg)
	}
	reads := func(segs ...rpcrdma.ReadSegment) []rpcrdma.ReadSegment { return segs }
	huge := rpcrdma.Segment{Handle: 1, Length: 1 << 30}
	rows := []badRow{
		{name: "an empty message", do: raw(nil), counters: []string{"rpcrdma_short_message"}},
		{name: "a header cut off in its fixed part", do: raw(be(7, 1, 8)), counters: []string{"rpcrdma_short_message"}},
		{name: "a header cut off in its lists", do: raw(be(7, 1, 8, 0, 0, 0)), counters: []string{"rpcrdma_short_message"}},
		{
			name: "a segment cut off", do: raw(be(7, 1, 8, 0, 1, 40, 1, 1)), want: "ERR_CHUNK",
			counters: []string{"rpcrdma_malformed_header"},
		},
		{
			name: "header version 2", do: raw(append(be(7, 2, 8, 0, 0, 0, 0), null...)), want: "ERR_VERS 1-1",
			counters: []string{"rpcrdma_version_mismatch"},
		},
		{
			name: "header version 0", do: raw(append(be(7, 0, 8, 0, 0, 0, 0), null...)), want: "ERR_VERS 1-1",
			counters: []string{"rpcrdma_version_mismatch"},
		},
		{
			name: "an unknown message type", do: raw(append(be(7, 1, 8, 9, 0, 0, 0), null...)), want: "ERR_CHUNK",
			counters: []string{"rpcrdma_malformed_header"},
		},
		{
			name: "a chunk of 4 billion segments", do: raw(be(7, 1, 8, 0, 0, 1, 1<<32-1, 0, 0)), want: "ERR_CHUNK",
			counters: []string{"rpcrdma_malformed_header"},
		},
		{name: "too many segments", do: raw(header(rpcrdma.Header{Writes: []rpcrdma.Chunk{many(
			rpcrdma.MaxChunkSegments + 1)}}, null)), want: "ERR_CHUNK", counters: []string{"rpcrdma_too_many_segments"}},
		{name: "too many Read segments", do: raw(header(rpcrdma.Header{Reads: func() (r []rpcrdma.ReadSegment) {
			for range rpcrdma.MaxReadSegments + 1 {
				r = append(r, rpcrdma.ReadSegment{Position: 40, Segment: seg})
			}
			return r
		}()}, null)), want: "ERR_CHUNK", counters: []string{"rpcrdma_too_many_segments"}},
		{
			name: "a read position beyond the message",
			do: raw(header(rpcrdma.Header{Reads: reads(rpcrdma.ReadSegment{Position: uint32(len(null) + 4), Segment: seg})},
				null)), want: "ERR_CHUNK", counters: []string{"rpcrdma_bad_read_position"},
		},
		{
			name: "a read position within a word",
			do:   raw(header(rpcrdma.Header{Reads: reads(rpcrdma.ReadSegment{Position: 41, Segment: seg})}, null)),
			want: "ERR_CHUNK", counters: []string{"rpcrdma_bad_read_position"},
		},
		{
			name: "a long call without its chunk", do: raw(header(rpcrdma.Header{Type: rpcrdma.TypeNoMsg}, nil)),
			want: "ERR_CHUNK", counters: []string{"rpcrdma_bad_read_position"},
		},
		{name: "a call of 3 GiB", do: raw(header(rpcrdma.Header{
			Type: rpcrdma.TypeNoMsg,
			Reads: reads(rpcrdma.ReadSegment{Segment: huge}, rpcrdma.ReadSegment{Segment: huge},
				rpcrdma.ReadSegment{Segment: huge}),
		}, nil)), want: "ERR_CHUNK", counters: []string{"rpcrdma_call_too_long"}},
		{
			name: "XIDs that differ", do: raw(framed(rpcrdma.Header{XID: 7},
				callOf(8, nfs3.Program, nfs3.Version, nfs3.ProcNull, nil))), want: "ERR_CHUNK",
			counters: []string{"rpcrdma_xid_mismatch"},
		},
		{
			name: "no chunk for the bytes of a READ, which is then a short one",
			do:   raw(header(rpcrdma.Header{}, badRead(h.file, 8192))), want: "status 0",
		},
		// The receive of the server has no room for it: IBTA 9.7.4.1.7, an
		// invalid request, after which the queue pair is of no use.
		{
			name:     "a message longer than was agreed on",
			do:       raw(header(rpcrdma.Header{}, append(bytes.Clone(null), make([]byte, 5120)...))),
			counters: []string{"RC.TxNAKInvalid"}, ends: true,
		},
	}
	for i := range rows {
		rows[i].name, rows[i].rdma = "rdma/"+rows[i].name, true
	}
	return rows
}

// memoryRows is access to memory that is not to be had (IBTA 9.7.5.2), and
// packets that are not the peer's.
func (h *badServer) memoryRows() []badRow {
	// write has the client reach into the server, whose memory is nobody's. (It grants
	// no resources for RDMA READ, so that no client can even ask.)
	write := func(at func(*testing.T, *badPeer) rdmaend.Remote) func(*testing.T, *badPeer) {
		return func(t *testing.T, p *badPeer) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			m := p.region(t, make([]byte, 64), rdma.LocalWrite)
			err := p.c.Write(ctx, m, 0, 64, at(t, p))
			var refused *rdmaend.Error
			if !errors.As(err, &refused) || refused.Status != rdma.RemAccessErr {
				t.Errorf("%v, want a remote access error", err)
			}
		}
	}
	none := func(*testing.T, *badPeer) rdmaend.Remote { return rdmaend.Remote{Addr: 1 << 20, RKey: 0xbad} }
	// foreign is memory that another connection of the same device offered.
	foreign := func(t *testing.T, _ *badPeer) rdmaend.Remote {
		return rdmaend.RemoteOf(h.dialRDMA(t).region(t, make([]byte, 64<<10),
			rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead))
	}
	own := func(t *testing.T, p *badPeer) rdmaend.Remote {
		return rdmaend.RemoteOf(p.region(t, make([]byte, 4096), rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead))
	}
	// A long call from 8000 bytes, and 8000 bytes of the file.
	longCall := func(at func(*testing.T, *badPeer) rdmaend.Remote) func(*testing.T, *badPeer) {
		return func(t *testing.T, p *badPeer) {
			r := at(t, p)
			p.send(t, framed(rpcrdma.Header{
				XID: 7, Type: rpcrdma.TypeNoMsg,
				Reads: []rpcrdma.ReadSegment{{Segment: rpcrdma.Segment{Handle: r.RKey, Length: 8000, Offset: r.Addr}}},
			}, nil))
		}
	}
	readInto := func(at func(*testing.T, *badPeer) rdmaend.Remote) func(*testing.T, *badPeer) {
		return func(t *testing.T, p *badPeer) {
			r := at(t, p)
			p.send(t, framed(rpcrdma.Header{XID: 7, Writes: []rpcrdma.Chunk{{{Handle: r.RKey, Length: 8000, Offset: r.Addr}}}},
				badRead(h.file, 8000)))
		}
	}
	refused := []string{"RC.TxNAKAccess"}
	readFailed := []string{"rpcrdma_read_failed", "RC.RxNAKAccess"}
	writeFailed := []string{"rpcrdma_write_failed", "RC.RxNAKAccess"}
	rows := []badRow{
		{name: "RDMA WRITE with a wrong R_Key", do: write(none), counters: refused, ends: true},
		{name: "RDMA WRITE with the R_Key of another connection", do: write(foreign), counters: refused, ends: true},
		{name: "a Read chunk with a wrong R_Key", do: longCall(none), counters: readFailed, ends: true},
		{name: "a Read chunk beyond its region", do: longCall(own), counters: readFailed, ends: true},
		{name: "a Read chunk of another connection", do: longCall(foreign), counters: readFailed, ends: true},
		{name: "a Write chunk with a wrong R_Key", do: readInto(none), counters: writeFailed, ends: true},
		{name: "a Write chunk beyond its region", do: readInto(own), counters: writeFailed, ends: true},
		{name: "a Write chunk of another connection", do: readInto(foreign), counters: writeFailed, ends: true},
		{name: "a packet from an address that is not the peer's", do: h.intrude, counters: []string{"RC.DropPeer"}},
		{name: "a packet with a wrong ICRC", do: h.corrupt, counters: []string{"ICRCErrors"}},
	}
	for i := range rows {
		rows[i].name, rows[i].rdma = "rdma/"+rows[i].name, true
	}
	return rows
}

// intrude sends the very packet that the connection expects next, from elsewhere.
func (h *badServer) intrude(t *testing.T, p *badPeer) {
	p.call(t, callOf(1, nfs3.Program, nfs3.Version, nfs3.ProcNull, nil))
	if got, xid := p.next(t); got != "status 0" || xid != 1 {
		t.Fatalf("NULL: %s", got)
	}
	l, err := udp.Open(udp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b := wire.NewBatch(1)
	f := wire.Flow{Src: l.LocalAddr(), Dst: h.rdma.Addr(), SrcPort: wire.Port}
	b.Add(&f, &wire.Packet{
		Op: wire.SendOnly, AckReq: true, PKey: 0xffff, DestQPN: h.spy.qpn.Load(), PSN: wire.PSN(h.spy.psn.Load()).Add(1),
	}, [][]byte{framed(rpcrdma.Header{XID: 7}, getAttr(h.file))})
	if err := l.Send(b); err != nil {
		t.Fatal(err)
	}
	h.waitFor(t, "RC.DropPeer")
}

// corrupt sends the packet with a wrong checksum, through an ordinary socket.
func (h *badServer) corrupt(t *testing.T, p *badPeer) {
	p.call(t, callOf(1, nfs3.Program, nfs3.Version, nfs3.ProcNull, nil))
	if got, xid := p.next(t); got != "status 0" || xid != 1 {
		t.Fatalf("NULL: %s", got)
	}
	c, err := net.Dial("udp", netip.AddrPortFrom(h.rdma.Addr(), wire.Port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	msg := framed(rpcrdma.Header{XID: 7}, getAttr(h.file))
	pkt := wire.AppendHeaders(nil,
		&wire.Packet{
			Op: wire.SendOnly, AckReq: true, PKey: 0xffff, DestQPN: h.spy.qpn.Load(),
			PSN: wire.PSN(h.spy.psn.Load()).Add(1),
		})
	pkt = append(append(pkt, msg...), 0xde, 0xad, 0xbe, 0xef)
	if _, err := c.Write(pkt); err != nil {
		t.Fatal(err)
	}
	h.waitFor(t, "ICRCErrors")
}

// waitFor waits until something has been counted at all, so that what comes
// next on the connection comes after it.
func (h *badServer) waitFor(t *testing.T, counter string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); h.count(t, counter) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s is not counted", counter)
		}
	}
}
