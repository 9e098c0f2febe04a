package gonfs_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"

	"github.com/go-git/go-billy/v5/util"
	"github.com/willscott/go-nfs-client/nfs/rpc"
	"github.com/willscott/go-nfs/helpers/memfs"

	"github.com/rstored/rstored/nfs/gonfs"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
)

// Any go-billy file system is served over RPC-over-RDMA, here one in memory.
func ExampleServeFS() {
	dev, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.95.200.1")})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	srv, err := gonfs.ServeFS(dev, 20049, memfs.New(), rpcrdma.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("serving at", srv.Addr())
	if err := srv.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: serving at 127.95.200.1:20049
}

// A go-nfs-client reads a file of a server that it reaches by RDMA.
func ExampleDial() {
	dev, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.95.200.2")})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	fs := memfs.New()
	if err := util.WriteFile(fs, "/greeting", []byte("hello over RDMA"), 0o644); err != nil {
		log.Fatal(err)
	}
	srv, err := gonfs.ServeFS(dev, 20049, fs, rpcrdma.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()

	c, err := gonfs.Dial(context.Background(), nil, "nfs+rdma://127.95.200.2/")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	v, err := c.Mount(rpc.NewAuthUnix("example", 0, 0).Auth())
	if err != nil {
		log.Fatal(err)
	}
	f, err := v.Open("/greeting")
	if err != nil {
		log.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b)
	// Output: hello over RDMA
}
