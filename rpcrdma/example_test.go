package rpcrdma_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A program with one procedure is served and called over RPC-over-RDMA, on the loopback interface.
// Its result is bulk data: the server writes it into the client's memory by RDMA WRITE.
func Example() {
	const prog, vers, procGet = 0x20000001, 1, 1
	get := func(c *rpc.Call, _ bool) rpc.Status {
		n := c.Args.Uint32()
		if c.Args.Err() != nil || n > 1<<20 {
			return rpc.Garbage
		}
		b := c.Payload(int(n)) // registered memory; it belongs to the call
		if b == nil {
			return rpc.Failed
		}
		for i := range b {
			b[i] = 'a' + byte(i%26)
		}
		c.Res.Bulk(b)
		return rpc.Done
	}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{
		Name: "letters", Prog: prog, Vers: vers, Procs: []rpc.Proc{procGet: {Name: "GET", Inline: true, Serve: get}},
	}}})
	defer srv.Close()

	server, err := roce.Open(roce.Config{}) // a free loopback address
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	l, err := rpcrdma.Serve(server, 20049, srv, rpcrdma.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	client, err := roce.Open(roce.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	to := netip.AddrPortFrom(server.Addr(), 20049)
	c, err := rpcrdma.Dial(context.Background(), client, to, rpcrdma.ClientConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	letters := make([]byte, 100_000)
	err = c.Call(context.Background(), &rpc.Request{
		Prog: prog, Vers: vers, Proc: procGet, Dst: letters,
		Args: func(e *xdr.Encoder) { e.Uint32(uint32(len(letters))) },
		Res: func(d *xdr.Decoder) error {
			d.Bulk(len(letters))
			return d.Err()
		},
	})
	fmt.Printf("%s... %v\n", letters[:26], err)
	fmt.Println("by RDMA WRITE:", l.Stats().RDMAWriteBytes)
	// Output:
	// abcdefghijklmnopqrstuvwxyz... <nil>
	// by RDMA WRITE: 100000
}
