package client

import "github.com/rstored/rstored/rpcrdma/rpc"

// RPC is the connection of the client for calls of the caller's own making, of
// any program. Like the client's own they survive a lost connection. Closing it
// is closing the client.
func (c *Client) RPC() rpc.Client { return c.nfs }
