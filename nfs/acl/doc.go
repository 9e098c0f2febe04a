// Package acl translates between the ACLs of NFS version 4 (RFC 8881 section 6.2) and POSIX ACLs,
// which are what Linux stores, as the Linux NFS server does and draft-ietf-nfsv4-acl-mapping
// describes it. It has the form of the former on the wire too. It knows nothing of stores and of
// names of users: callers translate them.
//
// Begin reading at FromPOSIX and ToPOSIX. The package does no IO, and its functions may be called
// from any goroutine.
//
//	list, err := acl.Decode(&args, id)
//	access, inherit, err := acl.ToPOSIX(list, isDir)
package acl
