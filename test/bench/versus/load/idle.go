package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// addresses is how many devices many connections come from at most.
const addresses = 8

// mount makes n clients that have looked path up, by connections of devices of their own.
// They are there until the function that it returns is called, with an error, too.
func mount(ctx context.Context, addr, path string, devices, n, depth int) (clients []*client.Client, release func(),
	err error,
) {
	clients = make([]*client.Client, n)
	devs := make([]*roce.Device, devices)
	release = func() {
		for _, c := range clients {
			if c != nil {
				_ = c.Close()
			}
		}
		for _, d := range devs {
			if d != nil {
				_ = d.Close()
			}
		}
	}
	server, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, release, err
	}
	local, err := roce.SourceFor(server.Addr())
	if err != nil {
		return nil, release, err
	}
	for i := range devs {
		if devs[i], err = roce.Open(roce.Config{Addr: local}); err != nil {
			return nil, release, err
		}
	}
	errs := make([]error, devices)
	var wg sync.WaitGroup
	for i, dev := range devs {
		wg.Go(func() {
			for j := i; j < n && errs[i] == nil; j += devices {
				clients[j], errs[i] = mountOne(ctx, dev, server, path, depth)
			}
		})
	}
	wg.Wait()
	return clients, release, errors.Join(errs...)
}

func mountOne(ctx context.Context, dev *roce.Device, server netip.AddrPort, path string, depth int) (*client.Client,
	error,
) {
	c := client.New(client.Config{
		Version: client.Version3, Peer: server.String(), Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "load"}, Depth: depth,
		Dial: func(ctx context.Context) (rpc.Client, error) {
			return rpcrdma.Dial(ctx, dev, server, rpcrdma.ClientConfig{})
		},
	})
	root, err := c.Resolve(ctx, path)
	if err == nil {
		_, err = c.GetAttr(ctx, root.Handle)
	}
	return c, err
}

// idle keeps n connections that have nothing to do, all from one device.
func idle(ctx context.Context, addr, path string, n int) error {
	_, release, err := mount(ctx, addr, path, 1, n, 0)
	defer release()
	if err != nil {
		return err
	}
	fmt.Println("begin")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// many measures n connections at work at once. args are SIZE CONNECTIONS DEPTH SECONDS
// FILESIZE.
func many(ctx context.Context, addr, path, op string, n int, args []string) error {
	depth := int(number(args[2]))
	clients, release, err := mount(ctx, addr, path, min(n, addresses), n, depth)
	defer release()
	if err != nil {
		return err
	}
	l, err := newLoad(ctx, clients, path, op, int(number(args[0])), depth, number(args[4]))
	if err != nil {
		return err
	}
	fmt.Println("connected")
	return l.report(ctx, args[3])
}
