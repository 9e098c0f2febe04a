// Package tcp carries ONC RPC over TCP with record marking (RFC 5531 section 11), with TLS on
// request of the client (RFC 9289): a server for the same rpc.Server that RPC-over-RDMA serves, a
// client, and the connections that a server makes for callbacks. It knows nothing of the RPC
// programs.
//
//	l, _ := net.Listen("tcp", ":2049")
//	s := tcp.Serve(l, srv)
//	defer s.Close()
//	c, err := tcp.Dial(ctx, s.Addr().String())
//
// Begin with conn.read and conn.write in server.go, and with Client.Call.
//
// # Concurrency
//
// The methods of Listener, Client and CallbackDialer may be called from any goroutine. A
// connection of a Listener has two goroutines: one reads calls, one writes replies.
package tcp
