// Package desired computes what the daemon has to serve. Sources holds everything that says so: the
// configuration with its export table, the file that was applied last, the changes made at run
// time, the mounts of the host and its snapshots of exports. Sources.State merges them into one
// list of exports and ports, each with its origin. The merge is a function of its sources, and
// everything else is a view of it:
//
//	start, reload    reconcile what runs with State
//	plan, rollback   Diff(what runs, Sources.With(file).State)
//	apply            the same, written to the history, then reconciled
//	drift            Diff(Sources.Written().State, what runs)
//
// The package opens nothing and serves nothing. Only Read, WatchMounts and Sources.Subvolumes,
// which State calls, look at the host. Begin with sources.go; merge.go has the rules.
//
// The package knows nothing of stores, devices, transports and protocols. A State is a value, and
// Diff and Sources.State may be called from any goroutine. A MountWatcher has a goroutine, which
// calls changed.
//
//	src := desired.Read(cfg, st)
//	next := src.With(document).State()
//	changes := desired.Diff(&running, &next)
package desired
