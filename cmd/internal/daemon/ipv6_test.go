package daemon

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// TestIPv6: ports, client lists and both transports with IPv6, and ports that are added
// and removed.
func TestIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip(err) // a host without IPv6
	} else {
		_ = l.Close()
	}
	ctx := t.Context()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, dir+"=/a ::1/128(ro)", t.TempDir()+"=/b 127.0.0.0/8 2001:db8::/32")
	cfg.RDMAListen, cfg.TCPListen = []string{"[::1]:20049"}, nil
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	const port = "[::1]:12049"
	spec := control.PortSpec{Transport: "tcp", Listen: port}
	if _, err := ctl.AddPort(ctx, spec); err != nil {
		t.Fatal(err)
	}
	dials := map[string]func() (rpc.Client, error){
		"tcp": func() (rpc.Client, error) { return tcp.Dial(ctx, port) },
		// There is one loopback address of IPv6, so that the device speaks to itself.
		"rdma": func() (rpc.Client, error) {
			return rpcrdma.Dial(ctx, d.devices.List()[0].Device, netip.MustParseAddrPort("[::1]:20049"), rpcrdma.ClientConfig{})
		},
	}
	for name, dial := range dials {
		t.Run(name, func(t *testing.T) {
			r, err := dial()
			if err != nil {
				t.Fatal(err)
			}
			c := client.New(client.Config{
				Peer: name, Cred: &rpc.Cred{Flavor: rpc.AuthSys},
				Dial: func(context.Context) (rpc.Client, error) { return r, nil },
			})
			defer func() { _ = c.Close() }()
			root, err := c.Mount(ctx, "/a")
			if err != nil {
				t.Fatal(err)
			}
			n, err := c.Lookup(ctx, root, "f")
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 100)
			if k, eof, err := c.Read(ctx, n.Handle, b, 0); string(b[:k]) != "content" || !eof || err != nil {
				t.Errorf("read %q, end %v: %v", b[:k], eof, err)
			}
			if _, err := c.Mount(ctx, "/b"); !client.IsStatus(err, nfs.ErrAcces) {
				t.Errorf("an export of others was mounted: %v", err)
			}
			list := d.Clients()
			if !slices.ContainsFunc(list, func(c control.Client) bool { return strings.HasPrefix(c.Address, "[::1]:") }) {
				t.Errorf("clients %+v", list)
			}
		})
	}
	if err := ctl.RemovePort(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", port); err == nil {
		_ = c.Close()
		t.Error("a removed port is open")
	}
}
