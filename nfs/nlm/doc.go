// Package nlm serves byte-range locks to clients of NFS version 3: the Network Lock Manager version
// 4, and the part of the Network Status Monitor that a lock server needs (The Open Group, Protocols
// for Interworking: XNFS, chapters 10 and 11; RFC 1813 appendix II).
//
// The locks themselves are in a lock.Table, which other protocols use, too. The package knows no
// transport and opens no file: Config.Call calls clients, and Config.Remember writes the list of
// clients that get SM_NOTIFY after a restart.
//
// Begin reading at Server.Programs. procs.go has the procedures, grant.go the GRANTED of locks that
// a client has waited for, status.go the status monitor, and snapshot.go the state for the
// successor in an upgrade.
//
// The methods of a Server may be called from any goroutine. Server.mu guards the lists of clients
// and grants. It is not held during a call to a client. Of the lock table only Holds is called with
// it.
//
//	s := nlm.New(nlm.Config{Exports: exports, Codec: codec, Locks: lock.New(0), Call: call})
//	defer s.Close()
//	programs = append(programs, s.Programs()...)
package nlm
