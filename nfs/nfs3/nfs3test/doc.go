// Package nfs3test decodes messages of NFS version 3 and MOUNT version 3 with the codecs of nfs3,
// and encodes them again. So tests can compare the codecs with the messages of other
// implementations. It knows nothing of servers and clients. Begin reading at Args. The functions
// have no state and may be called from any goroutine.
//
//	err := nfs3test.Args(nfs3.Program, nfs3.ProcRead, captured) // an error if a byte differs
package nfs3test
