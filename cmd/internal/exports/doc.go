// Package exports serves what is exported. Set holds the exports that are served and their stores,
// and Set.Apply brings them in line with a list: it opens, keeps and closes stores, and tells the
// export table of the NFS servers.
//
// What should be exported is the business of cmd/internal/desired. The package knows nothing of
// ports and clients.
//
// A store is closed behind a gate, which waits for the calls inside it. The number of an export is
// in its file handles, so the state directory remembers it. So it does with the identity of the
// filesystem (filesystems.go). A symbolic link that a client could have made does not decide what
// is exported (links.go).
//
// Begin with set.go.
package exports
