// Package handover moves the state of a running server to the process that replaces it: named parts
// with data and open files, over a pair of connected Unix sockets. It does not know what the parts
// mean, because each component encodes its own. The messages by which the two processes control the
// handover are parts, too. Begin reading at Part and Conn. cmd/internal/upgrade has the order of
// the parts. One goroutine at a time sends on a Conn, and one receives.
//
//	old, end, err := handover.Pair() // end goes to the new process, which calls Inherited
//	err = old.Send(&handover.Part{Name: "locks", Version: 1, Data: data})
package handover
