package gonfs

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5"
	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"
	"github.com/willscott/go-nfs/helpers/memfs"

	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

var hosts atomic.Uint32

// device is a soft device at a loopback address that no other device of the test has.
func device(t *testing.T) *roce.Device {
	t.Helper()
	pid := os.Getpid()
	a := netip.AddrFrom4([4]byte{127, 96 + byte(pid>>12&15), byte(pid >> 4), byte(pid<<4) | byte(hosts.Add(1))})
	dev, err := roce.Open(roce.Config{Addr: a})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// dialServer connects to s from a device of its own.
func dialServer(t *testing.T, s *rpcrdma.Listener) (*rpcrdma.Client, error) {
	t.Helper()
	c, err := rpcrdma.Dial(t.Context(), device(t), s.Addr(), rpcrdma.ClientConfig{})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func null(c *rpcrdma.Client, prog, vers uint32) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return c.Call(ctx, &rpc.Request{Prog: prog, Vers: vers, Proc: 0})
}

// watcher is a handler that notes who mounts and keeps the stream.
type watcher struct {
	gonfs.Handler
	streams chan net.Conn
}

// Mount implements gonfs.Handler.
func (w *watcher) Mount(ctx context.Context, c net.Conn, r gonfs.MountRequest) (gonfs.MountStatus, billy.Filesystem,
	[]gonfs.AuthFlavor,
) {
	w.streams <- c
	return w.Handler.Mount(ctx, c, r)
}

// TestHandlerSeesTheRDMAPeer: a handler that admits clients by address gets that of the RDMA
// connection. When it ends the stream the client's connection ends, so that the client connects
// anew.
func TestHandlerSeesTheRDMAPeer(t *testing.T) {
	fs := memfs.New()
	if err := fs.MkdirAll("/dir", 0o755); err != nil {
		t.Fatal(err)
	}
	w := &watcher{helpers.NewCachingHandler(helpers.NewNullAuthHandler(fs), 100), make(chan net.Conn, 1)}
	s, err := Serve(device(t), 20049, w, rpcrdma.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dev := device(t)
	c, err := rpcrdma.Dial(t.Context(), dev, s.Addr(), rpcrdma.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.Call(t.Context(), &rpc.Request{
		Prog: nfs3.MountProgram, Vers: nfs3.MountVersion, Proc: nfs3.MountMnt,
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"},
		Args: func(e *xdr.Encoder) { e.String("/") },
	})
	if err != nil {
		t.Fatal(err)
	}
	stream := <-w.streams
	if got, ok := stream.RemoteAddr().(*net.UDPAddr); !ok || got.AddrPort().Addr().Unmap() != dev.Addr() {
		t.Errorf("the handler sees %v, the client is %v", stream.RemoteAddr(), dev.Addr())
	}
	if got, ok := stream.LocalAddr().(*net.UDPAddr); !ok || got.AddrPort().Addr().Unmap() != s.Addr().Addr() {
		t.Errorf("the handler is at %v, the server at %v", stream.LocalAddr(), s.Addr())
	}
	_ = stream.Close()
	var lost *rpc.ConnError
	for end := time.Now().Add(20 * time.Second); !errors.As(err, &lost); {
		if time.Now().After(end) {
			t.Fatalf("the connection goes on after its stream has ended: %v", err)
		}
		err = null(c, nfs3.Program, nfs3.Version)
	}
}

// TestServerThatCannotBeReached: a client whose stream cannot be opened loses its connection.
func TestServerThatCannotBeReached(t *testing.T) {
	refuse := func(context.Context, rpc.Peer) (net.Conn, error) { return nil, errors.New("refused") }
	l, err := serveStream(device(t), 20049, rpcrdma.Config{},
		&proxy{dial: refuse, cut: cut, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialServer(t, l)
	if err == nil {
		err = null(c, nfs3.Program, nfs3.Version)
	}
	var lost *rpc.ConnError
	if !errors.As(err, &lost) {
		t.Errorf("%v, want a ConnError", err)
	}
}
