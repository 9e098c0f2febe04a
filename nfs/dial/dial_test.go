package dial_test

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/netip"
	"testing"
	"testing/fstest"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// serve exports a memory file system with one file at /data/hello over both
// transports and returns where.
func serve() (rdma, tcpAt string, l *rpcrdma.Listener, stop func()) {
	store := memfs.New(memfs.Options{RootMode: 0o777})
	root, err := store.Root()
	if err != nil {
		log.Fatal(err)
	}
	mode := uint32(0o644)
	h, _, _, err := store.Create(nil, root, "hello", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		log.Fatal(err)
	}
	if _, _, _, err := store.WriteAt(nil, h, []byte(greeting), 0, blockstore.FileSync); err != nil {
		log.Fatal(err)
	}
	table := nfs.NewTable()
	if err := table.Add(&nfs.Export{ID: 1, Pseudo: "/data", FS: store}); err != nil {
		log.Fatal(err)
	}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: nfs3.Programs(nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("the secret of the handles"))})})
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if l, err = rpcrdma.Serve(dev, 20049, srv, rpcrdma.Config{}); err != nil {
		log.Fatal(err)
	}
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	t := tcp.Serve(nl, srv)
	return netip.AddrPortFrom(dev.Addr(), 20049).String(), nl.Addr().String(), l, func() {
		_, _ = l.Close(), t.Close()
		srv.Close()
		_ = dev.Close()
	}
}

const greeting = "Hello, remote memory.\n"

// Read a file into memory that was registered once.
func Example() {
	server, _, _, stop := serve()
	defer stop()
	ctx := context.Background()

	var d dial.Dialer
	defer d.Close()
	f, err := d.Open(ctx, "nfs+rdma://"+server+"/data/hello")
	if err != nil {
		log.Fatal(err)
	}
	u, _ := client.ParseURL("nfs+rdma://" + server)
	m, err := d.Client(u).Register(make([]byte, 1<<20))
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	n, err := f.ReadAt(m.Bytes()[4096:4096+len(greeting)], 0) // lands there by RDMA WRITE
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(m.Bytes()[4096 : 4096+n]))
	// Output: Hello, remote memory.
}

func TestFS(t *testing.T) {
	rdma, tcpAt, l, stop := serve()
	defer stop()
	for _, url := range []string{"nfs+rdma://" + rdma + "/data", "nfs+tcp://" + tcpAt + "/data"} {
		t.Run(url[:8], func(t *testing.T) {
			var d dial.Dialer
			defer func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			view, err := d.FS(context.Background(), url)
			if err != nil {
				t.Fatal(err)
			}
			if err := fstest.TestFS(view, "hello"); err != nil {
				t.Error(err)
			}
			if b, err := fs.ReadFile(view, "hello"); string(b) != greeting {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	if n := len(l.Conns()); n > 1 {
		t.Errorf("%d RDMA connections", n)
	}
	var d dial.Dialer
	if _, err := d.FS(context.Background(), "nfs+rdma://"+rdma+"/nothing"); err == nil {
		t.Error("a path that is not exported was opened")
	}
	if _, err := d.Open(context.Background(), "http://"+rdma); err == nil {
		t.Error("http was dialed")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
