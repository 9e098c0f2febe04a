// Package nfs has what the versions of NFS share: the table of exports with its rules for clients,
// file handles, the identity that a call runs with, limits, and the statuses. It knows no version,
// no transport, and no kind of store.
//
// Begin reading at Export and ClientRule, then at Table. Codec makes and checks file handles,
// limit.go has the rates, once.go the journal of calls that must not run twice.
//
// The methods of Table, Codec and Denials may be called from any goroutine. A change replaces the
// whole list of a Table, so a call sees one state of the list and takes no lock.
//
//	t := nfs.NewTable(nil)
//	err := t.Add(&nfs.Export{ID: 1, Pseudo: "/data", FS: store})
package nfs
