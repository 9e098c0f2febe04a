// Package acl translates between the ACLs of NFS version 4 (RFC 8881 section 6.2) and POSIX ACLs,
// which are what Linux stores. It follows draft-ietf-nfsv4-acl-mapping, as the Linux NFS server
// does. It also encodes and decodes the ACLs of version 4. It knows neither stores nor the names of
// users: callers translate both.
//
// Begin reading at FromPOSIX and ToPOSIX. The package does no IO, and its functions may be called
// from any goroutine.
//
//	list, err := acl.Decode(&args, id)
//	access, inherit, err := acl.ToPOSIX(list, isDir)
package acl
