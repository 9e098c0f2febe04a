package client

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// server is NFS over TCP on loopback from a store in memory.
type server struct {
	t     *testing.T
	vers  Version
	rpc   *rpc.Server
	ports *tcp.Listener
	addr  string

	boot  uint32
	cfg   nfs4.Config
	four  *nfs4.Server
	known []string
}

// eachVersion runs a test for every version of NFS.
func eachVersion(t *testing.T, f func(t *testing.T, s *server)) {
	for _, v := range []Version{Version3, Version41, Version42} {
		t.Run("version "+v.String(), func(t *testing.T) {
			s := newServer(t)
			s.vers = v
			f(t, s)
		})
	}
}

// Add implements state.Journal.
func (s *server) Add(owner string) error {
	s.known = append(s.known, owner)
	return nil
}

// Remove implements state.Journal.
func (s *server) Remove(owners ...string) error {
	s.known = slices.DeleteFunc(slices.Clone(s.known), func(o string) bool { return slices.Contains(owners, o) })
	return nil
}

// start starts the programs, or, after a restart, other ones on the same store.
func (s *server) start() {
	s.boot++
	cfg := s.cfg
	cfg.Boot, cfg.Known = s.boot, s.known
	cfg.Locks = lock.New(0)
	cfg.Journal = s
	s.four = nfs4.New(cfg)
	s.rpc = rpc.NewServer(rpc.ServerConfig{Programs: append(nfs3.Programs(cfg.Config), s.four.Programs()...)})
}

func newServer(t *testing.T) *server {
	t.Helper()
	return newServerOf(t, memfs.New(memfs.Options{}))
}

// newServerOf serves a store.
func newServerOf(t *testing.T, store blockstore.FS) *server {
	t.Helper()
	table := nfs.NewTable(nil)
	err := table.Add(&nfs.Export{
		ID: 1, Path: "/srv/data", Pseudo: "/data", FS: store,
		Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Squash: nfs.NoRootSquash}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, cfg: nfs4.Config{
		Config:   nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("0123456789abcdef0123456789abcdef"))},
		Identity: []byte("test"),
	}}
	s.start()
	s.listen("127.0.0.9:0") // who connects while it is closed comes from another address, and never to himself
	t.Cleanup(func() {
		_ = s.ports.Close()
		s.rpc.Close()
	})
	return s
}

func (s *server) listen(addr string) {
	s.t.Helper()
	var l net.Listener
	var err error
	for range 100 {
		if l, err = net.Listen("tcp", addr); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if s.addr == "" {
		s.addr = l.Addr().String() // and stays: others read it
	}
	s.ports = tcp.Serve(l, s.rpc)
}

func (s *server) client() *Client {
	c := New(Config{
		Peer: s.addr, Version: s.vers, Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "test"},
		Dial: func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, s.addr) },
	})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func fill(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func put(t *testing.T, c *Client, name string, data []byte) {
	t.Helper()
	f, err := c.CreateFile(context.Background(), name, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFileSystemView(t *testing.T) { eachVersion(t, testFileSystemView) }

func testFileSystemView(t *testing.T, s *server) {
	c := s.client()
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	mode := uint32(0o755)
	if _, err := c.Mkdir(ctx, root.Handle, "sub", &blockstore.SetAttr{Mode: &mode}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Symlink(ctx, root.Handle, "link", "sub/b", nil); err != nil {
		t.Fatal(err)
	}
	put(t, c, "/data/a", []byte("hello"))
	put(t, c, "/data/sub/b", fill(1, 5001))
	put(t, c, "/data/sub/empty", nil)
	view, err := c.FS(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(view, "a", "sub/b", "sub/empty", "link"); err != nil {
		t.Error(err)
	}
	if b, err := fs.ReadFile(view, "link"); err != nil || !bytes.Equal(b, fill(1, 5001)) {
		t.Errorf("through the link: %d bytes, %v", len(b), err)
	}
	if _, err := view.Open("../data/a"); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
}

func TestProcedures(t *testing.T) { eachVersion(t, testProcedures) }
