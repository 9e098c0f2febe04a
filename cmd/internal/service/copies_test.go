package service

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// TestSilentSource: a source that accepts a connection and never answers ends the copy in time.
func TestSilentSource(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := partners{settings: func() *config.Config { return &config.Config{CopyPartners: []string{l.Addr().String()}} }}
	f, err := p.Open(t.Context(), &nfs4.CopySource{At: l.Addr().(*net.TCPAddr).AddrPort(), Handle: []byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	f.(*remoteFile).wait = 100 * time.Millisecond
	if _, _, err := f.ReadAt(t.Context(), make([]byte, 9), 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Log(err)
	}
}

// TestSourcePort: port 2049 takes the place of 20049 only where the setting admits both.
func TestSourcePort(t *testing.T) {
	for entry, want := range map[string]uint16{"127.0.0.1": 2049, "127.0.0.1:20049": 20049} {
		p := partners{settings: func() *config.Config { return &config.Config{CopyPartners: []string{entry}} }}
		if at := p.port(netip.MustParseAddrPort("127.0.0.1:20049")); at.Port() != want {
			t.Errorf("%s: %v", entry, at)
		}
	}
}

// sourceWith makes the server of a source with one file, whose export has the rules.
func sourceWith(t *testing.T, data []byte, rules ...nfs.ClientRule) (srv *rpc.Server, handle []byte) {
	t.Helper()
	store := memfs.New(memfs.Options{RootMode: 0o777})
	root, err := store.Root()
	if err != nil {
		t.Fatal(err)
	}
	h, _, _, err := store.Create(nil, root, "file", blockstore.Guarded, &blockstore.SetAttr{Mode: new(uint32(0o644))},
		[8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := store.WriteAt(nil, h, data, 0, blockstore.FileSync); err != nil {
		t.Fatal(err)
	}
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{ID: 1, Pseudo: "/data", FS: store, Clients: rules}); err != nil {
		t.Fatal(err)
	}
	cfg := nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("secret"))}
	four := nfs4.New(nfs4.Config{Config: cfg, Identity: []byte("source"), Boot: 1, Locks: lock.New(0)})
	srv = rpc.NewServer(rpc.ServerConfig{Programs: four.Programs()})
	t.Cleanup(srv.Close)
	return srv, cfg.Codec.Append(nil, 1, &h)
}

// TestSourceDemandsKerberos: a source whose export is for Kerberos alone does not let the destination
// read, whose calls have AUTH_SYS. The server then tells the client to copy by itself.
func TestSourceDemandsKerberos(t *testing.T) {
	srv, handle := sourceWith(t, nil,
		nfs.ClientRule{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Flavors: nfs.FlavorsGSS})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Serve(l, srv).Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	p := partners{settings: func() *config.Config { return &config.Config{CopyPartners: []string{at.String()}} }}
	f, err := p.Open(t.Context(), &nfs4.CopySource{
		At: at, Handle: handle, Stateid: state.Stateid{Seq: 1, Other: [12]byte{1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, err := f.ReadAt(t.Context(), make([]byte, 9), 0); n != 0 || !errors.Is(err, nfs.ErrWrongSec) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestSourceByRDMA: a source that is said to have RDMA is read by RDMA, and by TCP where that fails.
func TestSourceByRDMA(t *testing.T) {
	data := bytes.Repeat([]byte("some data"), 100_000)
	srv, handle := sourceWith(t, data)
	var devs [2]*roce.Device
	for i := range devs {
		var err error
		if devs[i], err = roce.Open(roce.Config{}); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = devs[i].Close() }()
	}
	l, err := rpcrdma.Serve(devs[0], 20049, srv, rpcrdma.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	nl, err := net.Listen("tcp", netip.AddrPortFrom(devs[0].Addr(), 20049).String())
	if err != nil {
		t.Fatal(err)
	}
	onTCP := tcp.Serve(nl, srv)
	defer onTCP.Close()
	at := netip.AddrPortFrom(devs[0].Addr(), 20049)
	dials := 0
	p := partners{
		tcpOnly:  &tcpSources{log: zap.NewNop()},
		settings: func() *config.Config { return &config.Config{CopyPartners: []string{at.String()}} },
		rdma: func(ctx context.Context, local netip.Addr, to netip.AddrPort) (rpc.Client, error) {
			dials++
			if local != devs[1].Addr() {
				return nil, net.ErrClosed
			}
			return rpcrdma.Dial(ctx, devs[1], to, rpcrdma.ClientConfig{})
		},
	}
	for _, c := range []struct {
		name  string
		rdma  bool
		from  netip.Addr
		conns int // by RDMA
		dials int // by RDMA, up to then
	}{
		{"by RDMA", true, devs[1].Addr(), 1, 1},
		{"the client names TCP", false, devs[1].Addr(), 0, 1},
		{"no device has the address", true, netip.MustParseAddr("127.0.0.1"), 0, 2},
		{"a copy soon after", true, netip.MustParseAddr("127.0.0.1"), 0, 2},
		{"by RDMA again", true, devs[1].Addr(), 1, 3},
	} {
		f, err := p.Open(t.Context(), &nfs4.CopySource{
			At: at, RDMA: c.rdma, From: c.from, Handle: handle, Stateid: state.Anonymous,
		})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data))
		if n, eof, err := f.ReadAt(t.Context(), got, 0); err != nil || !eof || !bytes.Equal(got[:n], data) {
			t.Errorf("%s: %d bytes, %v, %v", c.name, n, eof, err)
		}
		if n := len(l.Conns()); n != c.conns || dials != c.dials {
			t.Errorf("%s: %d connections by RDMA instead of %d, after %d attempts instead of %d", c.name, n, c.conns, dials,
				c.dials)
		}
		if err := f.Close(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for end := time.Now().Add(10 * time.Second); len(l.Conns()) > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
}
