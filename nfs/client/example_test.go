package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/netip"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// newServer makes an NFS server of versions 3 and 4 that exports an empty store in memory as /data.
func newServer() *rpc.Server {
	exports := nfs.NewTable(nil)
	store := memfs.New(memfs.Options{RootMode: 0o777})
	if err := exports.Add(&nfs.Export{ID: 1, Pseudo: "/data", FS: store}); err != nil {
		log.Fatal(err)
	}
	cfg := nfs.Config{Exports: exports, Codec: nfs.NewCodec([]byte("the secret key of handles"))}
	four := nfs4.New(nfs4.Config{Config: cfg, Identity: []byte("example"), Boot: 1, Locks: lock.New(0)})
	return rpc.NewServer(rpc.ServerConfig{Programs: append(nfs3.Programs(cfg), four.Programs()...)})
}

// Over RDMA the server writes the data of a file directly into memory that the client has
// registered, and reads it directly out of such memory.
func Example_rdma() {
	// The server, on a soft RoCE device of its own. No RDMA hardware is needed.
	srv := newServer()
	defer srv.Close()
	serverDevice, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.95.210.1")})
	if err != nil {
		log.Fatal(err)
	}
	defer serverDevice.Close()
	listener, err := rpcrdma.Serve(serverDevice, 20049, srv, rpcrdma.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()

	// The client. It connects with the first call, and again whenever the connection is lost.
	ctx := context.Background()
	device, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.95.210.2")})
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	c := client.New(client.Config{
		Peer: "the example",
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, UID: 1000, GID: 1000},
		Dial: func(ctx context.Context) (rpc.Client, error) {
			at := netip.AddrPortFrom(serverDevice.Addr(), 20049)
			return rpcrdma.Dial(ctx, device, at, rpcrdma.ClientConfig{})
		},
	})
	defer c.Close()

	// Memory is registered once. Each call opens the part that it names, and only until it returns.
	memory, err := c.Register(make([]byte, 1<<20))
	if err != nil {
		log.Fatal(err)
	}
	defer memory.Close()
	out, in := memory.Bytes()[:64<<10], memory.Bytes()[512<<10:]
	copy(out, "Hello, remote memory.")

	f, err := c.CreateFile(ctx, "/data/hello", 0o644)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := f.WriteAt(out, 0); err != nil { // the server fetches the data by RDMA READ
		log.Fatal(err)
	}
	if err := f.Sync(); err != nil { // now the data is stable
		log.Fatal(err)
	}
	n, err := f.ReadAt(in[:len(out)], 0) // the server places the data by RDMA WRITE
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("version %v, %d bytes: %s\n", c.Version(), n, in[:21])
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: version 4.2, 65536 bytes: Hello, remote memory.
}

// A directory of a server has the methods of os.Root.
func ExampleFS() {
	srv := newServer()
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	listener := tcp.Serve(l, srv)
	defer listener.Close()

	ctx := context.Background()
	c := client.New(client.Config{
		Peer: "the example",
		Dial: func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, l.Addr().String()) },
	})
	defer c.Close()
	data, err := c.FS(ctx, "/data")
	if err != nil {
		log.Fatal(err)
	}
	err = errors.Join(
		data.MkdirAll("reports/2026", 0o755),
		data.WriteFile("reports/2026/may", []byte("All is well.\n"), 0o644),
		data.Rename("reports/2026/may", "reports/2026/june"),
	)
	if err != nil {
		log.Fatal(err)
	}
	names, err := fs.Glob(data, "reports/*/*")
	if err != nil {
		log.Fatal(err)
	}
	text, err := data.ReadFile(names[0])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s", names[0], text)
	// Output: reports/2026/june: All is well.
}

// The same client works over TCP. There the transport copies the data.
func Example_tcp() {
	srv := newServer()
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	listener := tcp.Serve(l, srv)
	defer listener.Close()

	ctx := context.Background()
	c := client.New(client.Config{
		Peer:    "the example",
		Version: client.Version3,
		Dial:    func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, l.Addr().String()) },
	})
	defer c.Close()
	f, err := c.CreateFile(ctx, "/data/greeting", 0o644)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := f.Write([]byte("Hello over TCP.")); err != nil {
		log.Fatal(err)
	}
	if err := f.Close(); err != nil { // syncs
		log.Fatal(err)
	}
	files, err := c.FS(ctx, "/data")
	if err != nil {
		log.Fatal(err)
	}
	b, err := fs.ReadFile(files, "greeting")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("version %v: %s\n", c.Version(), b)
	// Output: version 3: Hello over TCP.
}
