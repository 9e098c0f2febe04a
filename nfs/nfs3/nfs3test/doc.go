// Package nfs3test takes messages of NFS version 3 and MOUNT version 3 apart with the codecs of
// nfs3 and puts them together again, so that tests can compare those with what other
// implementations send. It knows nothing of servers and clients. Begin reading at Args. The
// functions have no state and may be called from any goroutine.
//
//	err := nfs3test.Args(nfs3.Program, nfs3.ProcRead, captured) // an error if a byte differs
package nfs3test
