package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// idle keeps n connections that have nothing to do, all from one device.
func idle(ctx context.Context, addr, path string, n int) error {
	server, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	local, err := roce.SourceFor(server.Addr())
	if err != nil {
		return err
	}
	dev, err := roce.Open(roce.Config{Addr: local})
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	for range n {
		c := client.New(client.Config{
			Version: client.Version3, Peer: server.String(), Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "load"},
			Dial: func(ctx context.Context) (rpc.Client, error) {
				return rpcrdma.Dial(ctx, dev, server, rpcrdma.ClientConfig{})
			},
		})
		defer func() { _ = c.Close() }()
		root, err := c.Resolve(ctx, path)
		if err != nil {
			return err
		}
		if _, err := c.GetAttr(ctx, root.Handle); err != nil {
			return err
		}
	}
	fmt.Println("begin")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
