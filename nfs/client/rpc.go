package client

import "github.com/rstored/rstored/rpcrdma/rpc"

// RPC returns the connection of the client, for calls of any RPC program. Like the client's own
// calls they are sent again when the connection is lost. To close it is to close the client.
func (c *Client) RPC() rpc.Client { return c.nfs }
