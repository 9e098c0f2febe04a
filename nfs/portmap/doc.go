// Package portmap answers portmap version 2 (RFC 1833 section 3) and rpcbind versions 3 and 4
// (section 2) for this server's own programs. Nobody can register anything, and calls are not
// forwarded. The package knows no transport.
//
// Begin reading at Programs. The procedures run on several goroutines at a time. They call services
// for each query, so it must be safe for that.
//
//	srv := rpc.NewServer(rpc.ServerConfig{Programs: portmap.Programs(services)})
package portmap
