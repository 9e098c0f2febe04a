// Package nfs3 serves NFS version 3, MOUNT version 3 (RFC 1813) and NFSACL version 3 from stores,
// as program tables of package rpc. It knows no transport.
//
// Every procedure decodes all its arguments before it does anything. The reply of a failure has the
// attributes that RFC 1813 allows in it.
//
// Begin reading at procs in server.go, the table of the procedures. A handler is in the file of its
// subject: read.go, write.go, dir.go, namespace.go, attr.go, fsinfo.go, mount.go, acl.go. wire.go
// has the types on the wire, for clients too.
//
// Handlers run on several goroutines at a time, and share nothing but what nfs.Config has. A
// procedure whose row is Inline may run on a loop of the transport, and must not wait there.
//
//	srv := rpc.NewServer(rpc.ServerConfig{Programs: nfs3.Programs(cfg)})
package nfs3
