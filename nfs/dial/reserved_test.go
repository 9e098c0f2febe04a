package dial_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// TestReserved: root comes from a port below 1024, so that exports with the option secure are for
// it. A connection for others, as the bridge makes it, comes from any port.
func TestReserved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: others cannot bind ports below 1024")
	}
	table := nfs.NewTable(nil)
	rule := nfs.ClientRule{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Secure: true}
	if err := table.Add(&nfs.Export{
		ID: 1, Pseudo: "/data", FS: memfs.New(memfs.Options{RootMode: 0o777}), Clients: []nfs.ClientRule{rule},
	}); err != nil {
		t.Fatal(err)
	}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: nfs3.Programs(nfs.Config{
		Exports: table, Codec: nfs.NewCodec([]byte("the secret of the handles")),
	})})
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := tcp.Serve(l, srv)
	defer s.Close()
	u := client.URL{Transport: rpc.TransportTCP, Host: l.Addr().String(), Path: "/data"}
	for range 20 { // connections that have just ended are no obstacle
		d := dial.Dialer{Version: client.Version3}
		if _, err := d.Client(u).Mount(t.Context(), "/data"); err != nil {
			t.Fatal(err)
		}
		_ = d.Close()
	}
	var d dial.Dialer
	defer d.Close()
	c := client.New(client.Config{
		Peer: u.Host, Cred: dial.Self(), Version: client.Version3,
		Dial: func(ctx context.Context) (rpc.Client, error) { return d.Connect(ctx, u, nil) },
	})
	defer c.Close()
	if _, err := c.Mount(t.Context(), "/data"); err == nil {
		t.Error("a connection for others came from a port below 1024")
	}
}
