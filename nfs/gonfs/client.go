package gonfs

import (
	"context"
	"errors"
	"net"

	"github.com/willscott/go-nfs-client/nfs"
	"github.com/willscott/go-nfs-client/nfs/rpc"

	"github.com/rstored/rstored/nfs/bridge"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	ownrpc "github.com/rstored/rstored/rpcrdma/rpc"
)

// Client is a go-nfs-client whose calls go to the server of a URL.
type Client struct {
	*rpc.Client
	path   string
	addr   net.Addr
	dialer *dial.Dialer
	bridge *bridge.Bridge
}

// Dial connects a go-nfs-client to the server that url names: nfs+rdma://host/export, or nfs+tcp. d
// opens the RDMA device and the connections; nil is a Dialer with its defaults. The Client closes
// d.
//
// go-nfs-client dials TCP only, so Dial listens on a free port of 127.0.0.1 for as long as the
// Client is open. Every process of this host can connect there, and chooses the AUTH_SYS
// credentials of its calls. The process could also open an RDMA connection itself: the server sees
// this host in both cases.
func Dial(ctx context.Context, d *dial.Dialer, url string) (*Client, error) {
	u, err := client.ParseURL(url)
	if err != nil {
		return nil, err
	}
	if d == nil {
		d = new(dial.Dialer)
	}
	c := &Client{path: u.Path, dialer: d}
	connect := func(ctx context.Context, backward func([]byte, func([]byte))) (ownrpc.Client, error) {
		return d.Connect(ctx, u, backward)
	}
	// An unreachable server is an error of Dial, not of the first call.
	first, err := connect(ctx, nil)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	_ = first.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	c.addr = l.Addr()
	c.bridge = bridge.New(bridge.Config{Dial: connect, Version: client.Version3})
	c.bridge.Serve(l)
	if c.Client, err = rpc.DialTCP("tcp", c.addr.String(), false); err != nil {
		return nil, errors.Join(err, c.closeBelow())
	}
	return c, nil
}

// Addr is the TCP address on loopback at which other NFS clients of version 3 in this process can
// reach the server.
func (c *Client) Addr() net.Addr { return c.addr }

// Mount mounts the path of the URL by the MOUNT protocol. The Target shares the Client's connection
// and ends with it.
func (c *Client) Mount(auth rpc.Auth) (*nfs.Target, error) {
	m := nfs.Mount{Client: c.Client}
	return m.Mount(c.path, auth)
}

// Close ends the connection to the server.
func (c *Client) Close() error {
	c.Client.Close()
	return c.closeBelow()
}

func (c *Client) closeBelow() error {
	return errors.Join(c.bridge.Close(), c.dialer.Close())
}
