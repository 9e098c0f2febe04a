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
// Begin with conn.read and conn.write in conn.go, and with Client.Call.
//
// # Ownership
//
// The bytes of a call belong to the connection until its reply was written: the procedure may use
// slices of them. The results belong to the call too, and are written without a copy. The
// connection returns memory from Call.Payload to a pool after it has written the reply to the
// socket.
//
// # What a client may do
//
// It can send records that are too long or of too many fragments, and then loses its connection. It
// can send calls without reading replies: its calls then use MaxCalls or ConnMemory, the connection
// is not read any more, and after WriteTimeout it is closed. It can answer callbacks that were
// never made: such replies are counted and ignored.
//
// # Concurrency
//
// The methods of Listener, Client and CallbackDialer may be called from any goroutine. A
// connection of a Listener has two goroutines: one reads calls, one writes replies. A Client has
// one, which reads replies; its calls are written by the goroutines that make them (outbox.go).
package tcp
