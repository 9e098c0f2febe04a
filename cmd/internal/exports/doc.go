// Package exports serves what is exported. Set holds the exports that are served and their stores,
// and Set.Apply changes them until they equal a list: it opens, retains and closes stores, and
// updates the export table of the NFS servers.
//
// What should be exported is the business of cmd/internal/desired. The package knows nothing of
// ports and clients.
//
// A store is closed behind a gate, which waits for the calls inside it. The number of an export is
// in its file handles, so the state directory stores it, and also the identity of each filesystem
// (filesystems.go). A symbolic link that a client could have made does not decide what is exported
// (links.go).
//
// optional.go forwards each optional interface of a store. An interface without methods there has
// no effect in the daemon, because every store is behind a gate.
//
// Begin with set.go.
//
// Methods that change a Set must not run at the same time; the daemon calls them with its lock of
// changes. The others may be called from any goroutine, and so may the methods of a store behind
// its gate.
//
//	set := exports.New(exports.Config{State: st, Table: table, Files: files, Log: log})
//	failed, err := set.Apply(state.Exports, desired.HostMounts(), nil)
package exports
