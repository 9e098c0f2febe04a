// Package nfs4 serves NFS version 4, minor versions 0 to 2 (RFC 7530, RFC 8881, RFC 7862, RFC
// 8276), from stores, as a program table of package rpc. It knows no transport. What the server
// remembers of clients is in package state.
//
// A COMPOUND is a list of operations with a current file handle. compound.run executes them one
// after another by compound.step (compound.go). step makes the checks that all operations have in
// common, by a table with a row for each operation: whether the operation may stand where it
// stands, whether it needs a file handle, how long its result can become. A handler decodes its
// arguments to the end before it does anything, appends its result, and returns a status. step cuts
// off the result of a handler that failed.
//
// Begin reading at Server.compound, then at compound.step, table.go, and a handler such as read.
//
// # How to add an operation
//
//  1. wire.go: its number, an Op constant. Raise numOps if it is the highest.
//  2. table.go: its row: name, first minor version, flags, the longest result in bytes if it is
//     changing, handler. mainop.go: its weight, by which metrics choose the name of a compound.
//     compound.go: quick, if it may begin on a transport's loop.
//  3. A handler, func(*compound) nfs.Status, in the file of its subject. It reads k.c.Args to the
//     end, returns ErrBadXDR if k.bad(), and then acts on k.cur, and on k.saved if it has two
//     files.
//  4. A stateid of the arguments goes through k.stateid. An operation on data begins with k.dataOp.
//     One that changes a file without an open calls k.beginChange first. One that changes names
//     asks k.once whether it did so before the server was killed.
//  5. The result goes to k.c.Res. Its data of any length is bounded by k.room.
//  6. errtable40_test.go, errtable41_test.go: its valid errors, by the RFCs. The rig checks every
//     status.
//  7. everyerror_test.go and random_test.go: a call of it. test/oracle checks its XDR.
//  8. describe.go: its arguments, if a trace is to show them. once40.go, if version 4.0 has it and
//     it may be executed twice.
//  9. docs/protocols.md: its row; TestDocumented compares the two.
//  10. Package client, if the Go client is to use it: nfs/client/ops4.go.
//
// LISTXATTRS (RFC 8276 section 8.4.3) was added in this way: OpListXattrs, a row with the minor
// version 2 and needsHandle, and listXattrs in xattr.go.
//
// # Memory and locks
//
// The arguments alias the call's receive buffers, and data of a WRITE lies in registered memory.
// They are valid until the handler returns; what stays longer is copied. Memory for data of a READ
// comes from Call.Payload and belongs to the transport from then on: the transport frees it when
// the SEND of the reply has completed (RDMA), or when the reply was written to the socket (TCP).
//
// While a handler calls a store it holds no lock, with these exceptions:
//
//   - the turn of an owner of version 4.0, during an operation with a sequence number of the owner;
//   - the locks of package state (Client.mu) and shard.update of lock.Table, for the store's
//     HostLocker and Pinner.Unpin: LOCK, LOCKU, CLOSE and the end of a client change locks of the
//     host. HostLocker may wait; Unpin must not.
//
// The files in compound.inChange are reservations in package state, not locks.
//
// Lock order:
//
//	Server.background, Server.calling
//	the locks of package state, in the order of its package comment
//	one of journal.mu, offloads.mu, denials.mu, dirNotices.mu, lockWaits.mu
//
// # Example
//
//	s := nfs4.New(nfs4.Config{Config: shared, Identity: id, Boot: boot, Locks: lock.New(0)})
//	srv := rpc.NewServer(rpc.ServerConfig{Programs: s.Programs()})
package nfs4
