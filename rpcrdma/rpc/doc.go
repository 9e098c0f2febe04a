// Package rpc is ONC RPC version 2 (RFC 5531) without a transport: message headers, credentials of
// AUTH_NONE, AUTH_SYS and RPCSEC_GSS, program tables, workers, and the duplicate request cache.
// Transports (RPC-over-RDMA in rpcrdma, record-marked TCP in rpcrdma/tcp, datagrams in rpcrdma/udp)
// pass messages in as Calls and send the replies. The package knows nothing of what the programs
// do.
//
// Begin reading at Call and Server, then at dispatch.go. A Program is a table of Procs. cache.go
// and journal.go recognize calls that come twice, client.go has what clients of all transports
// implement, backward.go the calls to clients.
//
// The methods of a Server may be called from any goroutine. A Proc runs on a worker. One with
// Inline may run on a loop of a transport, and then must not wait. A Call belongs to the goroutine
// that serves it until Call.Reply.
//
//	srv := rpc.NewServer(rpc.ServerConfig{Programs: programs})
//	l := tcp.Serve(listener, srv)
package rpc
