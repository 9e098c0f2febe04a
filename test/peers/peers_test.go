// Package peers runs our server against the NFS clients of others, and our
// client against a server of others, over TCP and over RPC-over-RDMA.
//
// The peers are vmware/go-nfs-client (and its fork willscott/go-nfs-client) and
// willscott/go-nfs. What they are known to get wrong is left out: LINK and
// EXCLUSIVE creates of the server, handles after a rename, concurrent calls of the
// client.
package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// portRDMA is where the servers of the tests listen for RDMA.
const portRDMA = 20049

var nextHost atomic.Uint32

var rstorectl string // the command, built for the tests

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rstored-peers-")
	if err != nil {
		panic(err)
	}
	rstorectl = filepath.Join(dir, "rstorectl")
	build := exec.Command("go", "build", "-C", "../..", "-o", rstorectl, "./cmd/rstorectl")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building rstorectl: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// loopback hands out an address of 127.192.0.0/10 that no other test of this
// process, and hardly one of another, has.
func loopback() netip.Addr {
	n := uint32(os.Getpid())<<7 | nextHost.Add(1)&0x7f
	return netip.AddrFrom4([4]byte{127, 192 | byte(n>>16&31), byte(n >> 8), byte(n)})
}

func device(t *testing.T, addr netip.Addr) *roce.Device {
	t.Helper()
	dev, err := roce.Open(roce.Config{Addr: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// ours is our server: NFS, MOUNT and portmap over TCP, NFS and MOUNT over RDMA.
type ours struct {
	addr netip.Addr
	nfs  netip.AddrPort // TCP
	rdma netip.AddrPort
	rdm  *rpcrdma.Listener
	// portmapped: port 111 could be had for portmap.
	portmapped bool
}

func serveOurs(t *testing.T) *ours {
	t.Helper()
	s := &ours{addr: loopback()}
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{
		ID: 1, Pseudo: "/data", FS: memfs.New(memfs.Options{RootMode: 0o777}),
		Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Squash: nfs.NoRootSquash}},
	}); err != nil {
		t.Fatal(err)
	}
	programs := nfs3.Programs(nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("a secret of thirty-two bytes ...."))})
	srv := rpc.NewServer(rpc.ServerConfig{Programs: append(programs, portmap.Programs(s.services)...)})
	t.Cleanup(srv.Close)
	l := listen(t, netip.AddrPortFrom(s.addr, 0))
	s.nfs = l.Addr().(*net.TCPAddr).AddrPort()
	serveTCP(t, l, srv)
	s.portmapped = servePortmap(t, s.addr, func(l net.Listener) { serveTCP(t, l, srv) })
	rdm, err := rpcrdma.Serve(device(t, s.addr), portRDMA, srv, rpcrdma.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdm.Close() })
	s.rdm, s.rdma = rdm, netip.AddrPortFrom(s.addr, portRDMA)
	return s
}

func (s *ours) services() []portmap.Service {
	return []portmap.Service{
		{Program: nfs3.Program, Version: nfs3.Version, Transport: rpc.TransportTCP, Addr: s.nfs},
		{Program: nfs3.MountProgram, Version: nfs3.MountVersion, Transport: rpc.TransportTCP, Addr: s.nfs},
	}
}

func listen(t *testing.T, addr netip.AddrPort) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func serveTCP(t *testing.T, l net.Listener, srv *rpc.Server) {
	p := tcp.Serve(l, srv)
	t.Cleanup(func() { _ = p.Close() })
}

// servePortmap listens on port 111 if this process may.
func servePortmap(t *testing.T, addr netip.Addr, serve func(net.Listener)) bool {
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, portmap.Port).String())
	if err != nil {
		t.Logf("no portmap: %v", err)
		return false
	}
	serve(l)
	return true
}

// overRDMA runs f and fails the test unless so many bytes of bulk data moved by
// RDMA meanwhile.
func (s *ours) overRDMA(t *testing.T, bytes uint64, f func()) {
	t.Helper()
	before := s.rdm.Stats()
	f()
	after := s.rdm.Stats()
	if n := after.RDMAWriteBytes + after.RDMAReadBytes - before.RDMAWriteBytes - before.RDMAReadBytes; n < bytes {
		t.Errorf("%d bytes moved by RDMA, want %d", n, bytes)
	}
}

func dialRDMA(t *testing.T, remote netip.AddrPort) func(context.Context) (rpc.Client, error) {
	t.Helper()
	dev := device(t, netip.Addr{})
	return func(ctx context.Context) (rpc.Client, error) {
		return rpcrdma.Dial(ctx, dev, remote, rpcrdma.ClientConfig{})
	}
}

func dialTCP(remote netip.AddrPort) func(context.Context) (rpc.Client, error) {
	return func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, remote.String()) }
}

func newClient(t *testing.T, dial func(context.Context) (rpc.Client, error)) *client.Client {
	c := client.New(client.Config{
		Peer: "the peer", Dial: dial, GiveUp: 10 * time.Second,
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "peers"},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// random is n bytes that are the same for the same seed.
func random(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// same compares without printing megabytes.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes with SHA-256 %x, want %d with %x", what, len(got), sha256.Sum256(got), len(want),
			sha256.Sum256(want))
	}
}
