// Package bridge makes a server that speaks RPC-over-RDMA reachable for clients that speak RPC over
// TCP only. It forwards calls of NFS versions 3, 4.0, 4.1 and 4.2, of MOUNT version 3 and of NFSACL
// version 3. For each connection of a client it makes one connection to the server. It answers
// portmap queries with its own port.
//
// Callbacks of versions 4.1 and 4.2 arrive on the connection to the server, and go to the client on
// the client's connection. In version 4.0 the server would connect to the address of the client.
// The address of the connection is that of the bridge, so a server does not do so, and gives no
// delegations.
//
// The bridge knows the calls that carry bulk data, so that data moves by RDMA on the far side: READ
// and READLINK results, WRITE and SYMLINK arguments (RFC 8267 sections 4 and 6.1). Everything else
// passes as it is. Calls keep their XIDs and credentials; the far server sees the address of the
// bridge.
//
// The package knows neither transports of the far side nor devices: Config.Dial connects. Begin
// reading at Bridge.forward. The methods of a Bridge may be called from any goroutine. Each call
// waits for the far server on a worker.
//
//	b := bridge.New(bridge.Config{Dial: dial}) // Dialer.Connect of nfs/dial, for one
//	b.Serve(listener)
//	defer b.Close()
package bridge
