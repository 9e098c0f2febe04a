package client

import "github.com/rstored/rstored/rpcrdma/rpc"

// RPC returns the connection of the client, for calls of any RPC program. If the connection is
// lost, these calls are sent again like the client's own calls. Closing it closes the client.
func (c *Client) RPC() rpc.Client { return c.nfs }
