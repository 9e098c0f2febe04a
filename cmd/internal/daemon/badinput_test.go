package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma"
	rdmaend "github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
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
