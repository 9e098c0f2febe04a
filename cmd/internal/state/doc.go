// Package state stores what rstored must find again after a restart: the exports and ports that
// were added or removed at run time, the numbers of the exports (they are inside every file
// handle), the files that were applied, and the secret that authenticates handles. One process at a
// time has a state directory. The package does not know what the values mean for the server.
//
// Begin reading at Open and Store.update: state.json is replaced as a whole, by a rename.
// changes.go has the changes at run time, history.go the applied files, journal.go the clients of
// version 4 that may reclaim, memory.go memory that survives a SIGKILL, share.go directories that
// several nodes share.
//
// The methods of a Store may be called from any goroutine. A method that changes something returns
// when the change is on disk.
//
//	s, err := state.Open(ctx, "/var/lib/rstored", nil)
//	defer s.Close()
package state
