package fusefs

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// host is an NFS server over RDMA and TCP that exports a directory of this host at /data.
type host struct {
	t     testing.TB
	dir   string
	state string
	store *posixfs.FS
	cfg   nfs4.Config
	boot  uint32
	known []string
	links int // most connections of each mount
	wrap  func(*posixfs.FS) blockstore.FS

	dev   *roce.Device
	rdma  string
	tcp   string
	rpc   *rpc.Server
	four  *nfs4.Server
	ports []interface{ Close() error }
}

// Add and Remove implement state.Journal.
func (s *host) Add(owner string) error {
	s.known = append(s.known, owner)
	return nil
}

func (s *host) Remove(owners ...string) error {
	s.known = slices.DeleteFunc(slices.Clone(s.known), func(o string) bool { return slices.Contains(owners, o) })
	return nil
}

func newHost(t testing.TB) *host {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("there is no FUSE here: %v", err)
	} else {
		_ = f.Close()
	}
	s := &host{t: t, dir: t.TempDir()}
	if err := os.Chmod(s.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	s.state = t.TempDir()
	s.cfg = nfs4.Config{
		Config:   nfs.Config{Codec: nfs.NewCodec([]byte("0123456789abcdef0123456789abcdef"))},
		Identity: []byte("test"), Lease: 10 * time.Second, Grace: 2 * time.Second,
	}
	var err error
	if s.dev, err = roce.Open(roce.Config{}); err != nil {
		t.Fatal(err)
	}
	s.rdma = netip.AddrPortFrom(s.dev.Addr(), 20049).String()
	s.tcp = "127.0.0.9:0"
	s.start()
	t.Cleanup(func() {
		s.stop()
		_ = s.dev.Close()
	})
	return s
}

// start starts the server, or, after stop, another on the same directory.
func (s *host) start() {
	s.t.Helper()
	var err error
	// A store that is opened anew has another write verifier.
	if s.store, err = posixfs.Open(s.dir, posixfs.Options{StateDir: s.state}); err != nil {
		s.t.Fatal(err)
	}
	var fs blockstore.FS = s.store
	if s.wrap != nil {
		fs = s.wrap(s.store)
	}
	s.cfg.Exports = nfs.NewTable(nil)
	err = s.cfg.Exports.Add(&nfs.Export{
		ID: 1, Path: s.dir, Pseudo: "/data", FS: fs,
		Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Squash: nfs.NoRootSquash}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.boot++
	cfg := s.cfg
	cfg.Boot, cfg.Known, cfg.Locks, cfg.Journal = s.boot, s.known, lock.New(0), s
	s.four = nfs4.New(cfg)
	s.rpc = rpc.NewServer(rpc.ServerConfig{Programs: append(nfs3.Programs(cfg.Config), s.four.Programs()...)})
	overRDMA, err := rpcrdma.Serve(s.dev, 20049, s.rpc, rpcrdma.Config{})
	if err != nil {
		s.t.Fatal(err)
	}
	var l net.Listener
	for range 100 {
		if l, err = net.Listen("tcp", s.tcp); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.tcp = l.Addr().String()
	s.ports = []interface{ Close() error }{overRDMA, tcp.Serve(l, s.rpc)}
}

// cut ends the connections of the server.
func (s *host) cut() {
	for _, p := range s.ports {
		_ = p.Close()
	}
	s.ports = nil
}

// stop ends the server with all that it has in memory.
func (s *host) stop() {
	s.cut()
	s.rpc.Close()
	known := s.known
	for _, c := range s.four.State().Clients(time.Now()) {
		s.four.State().Evict(c.ID) // a process that ends has no leases of the host any more
	}
	s.known = known
	_ = s.store.Close()
}

// url is the export over a transport.
func (s *host) url(transport string) string {
	if transport == "rdma" {
		return "nfs+rdma://" + s.rdma + "/data"
	}
	return "nfs+tcp://" + s.tcp + "/data"
}

// mounted is a mount of a test.
type mounted struct {
	*FS
	t   testing.TB
	dir string
}

// path returns a name in the mount.
func (m *mounted) path(name string) string { return m.dir + "/" + name }

// mount mounts the export; set changes the configuration. The test ends with an unmount.
func (s *host) mount(transport string, v client.Version, set ...func(*Config)) *mounted {
	s.t.Helper()
	d := &dial.Dialer{Version: v, Provider: provider.Soft, GiveUp: time.Hour, Connections: s.links}
	u, err := client.ParseURL(s.url(transport))
	if err != nil {
		s.t.Fatal(err)
	}
	c := d.Client(u)
	root, err := c.Follow(context.Background(), u.Path, true)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := Config{
		Client: c, Root: root, Source: "test", Times: DefaultCacheTimes,
		Log: slog.New(slog.NewTextHandler(testWriter{s.t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, f := range set {
		f(&cfg)
	}
	dir := s.t.TempDir()
	f, err := Mount(dir, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	m := &mounted{f, s.t, dir}
	s.t.Cleanup(func() {
		if err := f.Unmount(); err != nil {
			s.t.Error(err)
			_ = syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH)
		}
		if n := len(f.pool.free); n != f.pool.size {
			s.t.Errorf("%d of %d blocks of memory are free after the unmount", n, f.pool.size)
		}
		_ = d.Close()
	})
	return m
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// each runs a test over each transport with each version.
func each(t *testing.T, f func(t *testing.T, s *host, m *mounted)) {
	for _, transport := range []string{"tcp", "rdma"} {
		for _, v := range []client.Version{client.Version3, client.Version41, client.Version42} {
			t.Run(transport+" "+v.String(), func(t *testing.T) {
				s := newHost(t)
				f(t, s, s.mount(transport, v))
			})
		}
	}
}
