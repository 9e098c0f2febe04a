package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	rdmaend "github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// spy notes where the last packet of a connection went, which is what somebody
// who looks on from elsewhere would have to guess.
type spy struct {
	link.Link
	qpn, psn atomic.Uint32
}

func (s *spy) Send(b *wire.Batch) error {
	for i := range b.D {
		hdr := b.D[i].Hdr
		if op := wire.Opcode(hdr[0]); op.Is(wire.Request) && op.IsRC() {
			s.qpn.Store(wire.DestQPN(hdr))
			s.psn.Store(binary.BigEndian.Uint32(hdr[8:]) & wire.PSNMask)
		}
	}
	return s.Link.Send(b)
}

// badServer is a server with a file in an export, and what a broken client needs
// to annoy it.
type badServer struct {
	t        *testing.T
	ctl      *control.Dialer
	rdma     netip.AddrPort
	tcp      string
	dev      *roce.Device
	spy      *spy
	file     client.Handle // of the file
	gone     client.Handle // in an export that was removed
	closed   client.Handle // in an export that lets nobody in
	content  []byte
	goodRDMA *client.Client
	goodTCP  *client.Client
}

// badPeer is a client that sends what it likes.
type badPeer struct {
	h       *badServer
	c       *rdmaend.Conn // nil over TCP
	tcp     net.Conn
	replies chan []byte // closed when the server is gone
}

func newBadServer(t *testing.T) *badServer {
	t.Helper()
	dir, gone, closed := t.TempDir(), t.TempDir(), t.TempDir()
	h := &badServer{t: t, content: make([]byte, 150_001)}
	for i := range h.content {
		h.content[i] = byte(i>>9 + i)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), h.content, 0o644); err != nil {
		t.Fatal(err)
	}
	const everyone = " *(no_root_squash)"
	cfg := testConfig(t, dir+"=/a"+everyone, gone+"=/gone"+everyone, closed+"=/closed"+everyone)
	d, ctl := startDaemon(t, cfg)
	t.Cleanup(func() { stopDaemon(t, d) })
	h.ctl, h.rdma, h.tcp = ctl, netip.MustParseAddrPort(cfg.RDMAListen[0]), cfg.TCPListen[0]

	var dialer dial.Dialer
	t.Cleanup(func() { _ = dialer.Close() })
	h.goodRDMA = dialer.Client(client.URL{Transport: rpc.TransportRDMA, Host: h.rdma.String()})
	mount := func(path string) client.Handle {
		fh, err := h.goodRDMA.Mount(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return fh
	}
	node, err := h.goodRDMA.Lookup(t.Context(), mount("/a"), "f")
	if err != nil {
		t.Fatal(err)
	}
	h.file, h.gone, h.closed = node.Handle, mount("/gone"), mount("/closed")
	if err := ctl.RemoveExport(t.Context(), "/gone"); err != nil {
		t.Fatal(err)
	}
	elsewhere := []config.Client{{CIDR: "203.0.113.0/24"}}
	if _, err := ctl.SetExport(t.Context(), "/closed", control.ExportPatch{Clients: &elsewhere}); err != nil {
		t.Fatal(err)
	}
	tcpDialer := dial.Dialer{MountPort: config.TCPPort}
	t.Cleanup(func() { _ = tcpDialer.Close() })
	h.goodTCP = tcpDialer.Client(client.URL{Transport: rpc.TransportTCP, Host: h.tcp})

	h.spy = &spy{}
	h.dev, err = roce.Open(roce.Config{Wrap: func(_ int, l link.Link) link.Link {
		h.spy.Link = l
		return h.spy
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.dev.Close() })
	return h
}

// served checks that clients that behave are served as ever.
func (h *badServer) served(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, c := range map[string]*client.Client{"RDMA": h.goodRDMA, "TCP": h.goodTCP} {
		got := make([]byte, len(h.content)+1)
		if n, eof, err := c.Read(ctx, h.file, got, 0); err != nil || !eof || !bytes.Equal(got[:n], h.content) {
			t.Errorf("another client over %s then reads %d bytes, end %v: %v", name, n, eof, err)
		}
	}
}

// count is a counter wherever it is in the statistics.
func (h *badServer) count(t *testing.T, name string) uint64 {
	t.Helper()
	s, err := h.ctl.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Errors[name] + s.Messages[name] + s.Devices[h.rdma.Addr().String()][name]
}

func (h *badServer) dialRDMA(t *testing.T) *badPeer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	private := rpcrdma.PrivateMessage{RemoteInvalidation: true, Send: 4096, Receive: 4096}.Append(nil)
	c, err := rdmaend.Dial(ctx, h.dev, h.rdma, rdmaend.Config{Params: rdma.ConnParams{PrivateData: private}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	p := &badPeer{h: h, c: c, replies: make(chan []byte, 16)}
	go func() {
		defer close(p.replies)
		for {
			m, err := c.Recv(context.Background())
			if err != nil {
				return
			}
			p.replies <- m.Data
		}
	}()
	return p
}

func (h *badServer) dialTCP(t *testing.T) *badPeer {
	t.Helper()
	c, err := net.Dial("tcp", h.tcp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := &badPeer{h: h, tcp: c, replies: make(chan []byte, 16)}
	go func() {
		defer close(p.replies)
		r := bufio.NewReader(c)
		for {
			b, err := rpc.ReadRecord(r, nil, rpc.MaxRecord)
			if err != nil {
				return
			}
			p.replies <- b
		}
	}()
	return p
}

// send sends bytes as they are: one RDMA SEND, or a piece of the TCP stream.
func (p *badPeer) send(t *testing.T, b []byte) {
	t.Helper()
	if p.c == nil {
		if err := p.tcp.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.tcp.Write(b); err != nil {
			t.Logf("send: %v", err) // the server may hang up before it has all
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := p.region(t, append([]byte(nil), b...), rdma.LocalWrite)
	if err := p.c.Send(ctx, m, 0, len(b)); err != nil {
		t.Logf("send: %v", err) // the connection may end before its acknowledgement
	}
}

func (p *badPeer) region(t *testing.T, b []byte, access rdma.Access) rdma.MR {
	t.Helper()
	if len(b) == 0 {
		b = make([]byte, 1)
	}
	m, err := p.c.Register(b, access)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// call sends an RPC message in the usual frame of its transport.
func (p *badPeer) call(t *testing.T, msg []byte) {
	t.Helper()
	if p.c == nil {
		mark := rpc.RecordMark(len(msg))
		p.send(t, append(mark[:], msg...))
		return
	}
	var xid uint32
	if len(msg) >= 4 {
		xid = binary.BigEndian.Uint32(msg)
	}
	p.send(t, framed(rpcrdma.Header{XID: xid}, msg))
}

// framed is a message behind a transport header.
func framed(h rpcrdma.Header, msg []byte) []byte {
	h.Version, h.Credits = rpcrdma.Version, 8
	return append(h.Append(nil), msg...)
}

// next waits for a message and says what it is: an error of the transport, a
// refusal of RPC, or the first word of the results; and its XID.
func (p *badPeer) next(t *testing.T) (what string, xid uint32) {
	t.Helper()
	var b []byte
	select {
	case m, ok := <-p.replies:
		if !ok {
			return "the connection ended", 0
		}
		b = m
	case <-time.After(time.Minute):
		return "nothing", 0
	}
	if p.c != nil {
		var h rpcrdma.Header
		if len(b) < 8 {
			return fmt.Sprintf("% x", b), 0
		}
		binary.BigEndian.PutUint32(b[4:], rpcrdma.Version) // ERR_VERS has the version of the call
		rest, err := h.Parse(b)
		switch {
		case err != nil:
			return fmt.Sprintf("% x: %v", b, err), 0
		case h.Type == rpcrdma.TypeError && h.Code == rpcrdma.CodeVers:
			return fmt.Sprintf("ERR_VERS %d-%d", h.Low, h.High), h.XID
		case h.Type == rpcrdma.TypeError:
			return "ERR_CHUNK", h.XID
		}
		b = rest
	}
	xid = rpc.ReplyXID(b)
	d := xdr.NewDecoder(b)
	err := rpc.DecodeReply(&d, xid)
	var accepted *rpc.AcceptError
	var denied *rpc.DeniedError
	switch {
	case errors.As(err, &accepted) && accepted.Stat == rpc.ProgMismatch:
		return fmt.Sprintf("PROG_MISMATCH %d-%d", accepted.Low, accepted.High), xid
	case errors.As(err, &accepted):
		return fmt.Sprintf("accept_stat %d", accepted.Stat), xid
	case errors.As(err, &denied) && denied.Auth == 0:
		return fmt.Sprintf("RPC_MISMATCH %d-%d", denied.Low, denied.High), xid
	case errors.As(err, &denied):
		return fmt.Sprintf("auth_stat %d", denied.Auth), xid
	case err != nil:
		return err.Error(), xid
	}
	return fmt.Sprintf("status %d", d.Uint32()), xid
}

// Calls of XID 7.

func badCall(prog, vers, proc uint32, args func(*xdr.Encoder)) []byte {
	return callOf(7, prog, vers, proc, args)
}

func callOf(xid, prog, vers, proc uint32, args func(*xdr.Encoder)) []byte {
	var e xdr.Encoder
	rpc.EncodeCall(&e, xid, prog, vers, proc, &rpc.Cred{Flavor: rpc.AuthSys, Machine: "bad", UID: 1000})
	if args != nil {
		args(&e)
	}
	return e.B
}

func getAttr(fh []byte) []byte {
	return badCall(nfs3.Program, nfs3.Version, nfs3.ProcGetAttr, func(e *xdr.Encoder) { e.Opaque(fh) })
}

func badRead(fh []byte, n uint32) []byte {
	return badCall(nfs3.Program, nfs3.Version, nfs3.ProcRead, func(e *xdr.Encoder) {
		e.Opaque(fh)
		e.Uint64(0)
		e.Uint32(n)
	})
}

func be(words ...uint32) (b []byte) {
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

func status(s nfs.Status) string { return fmt.Sprintf("status %d", uint32(s)) }

// TestBadInput: what broken and hostile clients send is answered as the
// specifications say, is counted, costs at most its own connection, and is no
// matter for others.
func TestBadInput(t *testing.T) {
	h := newBadServer(t)
	h.served(t)
	null := badCall(nfs3.Program, nfs3.Version, nfs3.ProcNull, nil)
	forged := bytes.Clone(h.file)
	forged[len(forged)-1] ^= 1
	other := bytes.Clone(h.file) // of another export, if it could be had so
	other[4] ^= 3
	withCred := func(flavor uint32, length uint32, body ...byte) []byte {
		b := be(7, rpc.MsgCall, rpc.Version, nfs3.Program, nfs3.Version, nfs3.ProcNull, flavor, length)
		return append(append(b, body...), be(0, 0)...)
	}
	truncated := getAttr(h.file)
	truncated = truncated[:len(truncated)-8]

	// The bare numbers are those of RFC 5531 (accept_stat, auth_stat) and RFC
	// 1813 (nfsstat3, mountstat3). No answer is "".
	calls := []struct {
		name    string
		msg     []byte
		want    string
		counter string
	}{
		{"an RPC header cut short", null[:20], "", "rpc_not_a_call"},
		{"a reply", be(7, rpc.MsgReply, 0, 0, 0, 0), "", ""},
		{"arguments cut short", truncated, "accept_stat 4", "rpc_garbage_arguments"},
		{"a handle longer than any", getAttr(make([]byte, 68)), "accept_stat 4", "nfs_garbage"},
		{"RPC version 3", append(be(7, rpc.MsgCall, 3), null[12:]...), "RPC_MISMATCH 2-2", "rpc_version_mismatch"},
		{"unknown program", badCall(400_000, 1, 0, nil), "accept_stat 1", "rpc_program_unavailable"},
		{"wrong version", badCall(nfs3.Program, 2, 0, nil), "PROG_MISMATCH 3-4", "rpc_program_mismatch"},
		{"unknown procedure", badCall(nfs3.Program, nfs3.Version, 22, nil), "accept_stat 3", "rpc_procedure_unavailable"},
		{
			"a huge procedure number", badCall(nfs3.Program, nfs3.Version, 1<<32-1, nil), "accept_stat 3",
			"rpc_procedure_unavailable",
		},
		{
			"a credential shorter than what is in it", withCred(uint32(rpc.AuthSys), 4, 0, 0, 0, 0), "auth_stat 1",
			"rpc_bad_credential",
		},
		{"a credential of 17 groups", withCred(uint32(rpc.AuthSys), 22*4-4,
			be(append([]uint32{0, 0, 0, 0, 17}, make([]uint32, 16)...)...)...), "auth_stat 1", "rpc_bad_credential"},
		{"a verifier cut short", null[:len(null)-4], "auth_stat 3", "rpc_bad_credential"},
		{
			"a credential of 404 bytes", withCred(uint32(rpc.AuthSys), 404, make([]byte, 404)...), "auth_stat 1",
			"rpc_bad_credential",
		},
		{"a credential longer than the message", withCred(uint32(rpc.AuthSys), 300), "auth_stat 1", "rpc_bad_credential"},
		{"a credential of 4 GiB", withCred(uint32(rpc.AuthSys), 1<<32-1), "auth_stat 1", "rpc_bad_credential"},
		{"an unknown flavor", withCred(3, 4, 0, 0, 0, 0), "auth_stat 2", "rpc_bad_credential"},
		{"a cut credential of RPCSEC_GSS", withCred(6, 4, 0, 0, 0, 1), "auth_stat 1", "rpc_bad_credential"},
		{
			"a call in an unknown security context", withCred(6, 20, be(1, 0, 1, 1, 0)...), "auth_stat 13",
			"gss_unknown_context",
		},
		{"a forged handle", getAttr(forged), status(nfs.ErrBadHandle), "nfs_forged_handles"},
		{"a handle moved to another export", getAttr(other), status(nfs.ErrBadHandle), "nfs_forged_handles"},
		{"a handle of no form", getAttr([]byte("nothing")), status(nfs.ErrBadHandle), "nfs_bad_handles"},
		{"a handle of a removed export", getAttr(h.gone), status(nfs.ErrStale), "nfs_gone_exports"},
		{
			"a call in an export that lets the client in no more", getAttr(h.closed), status(nfs.ErrAcces),
			"nfs_denied_clients",
		},
		{"a mount of it", badCall(nfs3.MountProgram, nfs3.MountVersion, nfs3.MountMnt,
			func(e *xdr.Encoder) { e.String("/closed") }), status(nfs.ErrAcces), "nfs_denied_clients"},
		{"a mount of nothing", badCall(nfs3.MountProgram, nfs3.MountVersion, nfs3.MountMnt,
			func(e *xdr.Encoder) { e.String("/a/../../etc") }), status(nfs.ErrNoEnt), "nfs_status_NOENT"},
		{
			"a mount of a path that never ends",
			badCall(nfs3.MountProgram, nfs3.MountVersion, nfs3.MountMnt,
				func(e *xdr.Encoder) { e.String("/" + strings.Repeat("a", 1100)) }), "accept_stat 4", "nfs_garbage",
		},
	}
	var rows []badRow
	for _, c := range calls {
		do := func(t *testing.T, p *badPeer) { p.call(t, c.msg) }
		overRDMA := badRow{name: "rdma/" + c.name, rdma: true, do: do, want: c.want, counters: []string{c.counter}}
		overTCP := badRow{name: "tcp/" + c.name, do: do, want: c.want, counters: []string{c.counter}}
		if c.counter == "" { // a reply: RDMA has calls in both directions
			overRDMA.counters, overTCP.counters = []string{"rpcrdma_backward_message"}, []string{"rpc_not_a_call"}
		}
		rows = append(rows, overRDMA, overTCP)
	}
	rows = append(rows, recordRows()...)
	rows = append(rows, h.headerRows(null)...)
	rows = append(rows, h.memoryRows()...)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) { r.run(t, h) })
	}
}

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
			do:       raw(header(rpcrdma.Header{}, append(bytes.Clone(null), make([]byte, 4096)...))),
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
