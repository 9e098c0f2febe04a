// Package lease decides which of several daemons may serve from one state directory on shared
// storage.
//
// The lease is a file in the directory. Its holder renews it. All others read it:
//
//	holder    renews every Term/4. It may serve until Term after the begin of the last renewal that
//	          was written. After that it has lost the lease, for ever: the process ends.
//	others    claim the lease if the holder has released it, or if they have seen the same content
//	          for Term and a quarter by their own clock. A process claims it at once if the holder
//	          had its own node and boot, and is known to have ended.
//
// A process that knows that the holder had its own node and boot, and has ended, can also release
// the lease for it. So the others need not wait.
//
// A holder can release the lease to one node. That node claims it at once. The others wait as they
// would after the loss of a holder.
//
// So when another process claims the lease, the time of the holder is over. This is true however
// late the holder's writes arrive, and however long the holder was stopped, if the clocks of the
// two hosts run at the same rate within 10 %. The clocks need not show the same time.
//
// A claim makes the file of the next epoch. Of several claimants exactly one can do that. The
// package uses no lock of the file system, because a host that has stopped would hold it. The
// storage needs a link(2) that fails if the name exists, and must show all hosts the same files: a
// clustered file system, or a disk that one host at a time mounts.
//
// The lease stops replies. It does not stop a write to the storage that was in progress when the
// host was stopped. If that matters, the storage itself must shut out the other host (fencing).
//
// Engine has the rules. It does no IO and reads no clock. Holder has the file and the clock. Begin
// reading with engine.go.
//
// The package knows nothing of what is served. An Engine belongs to one goroutine. The methods of a
// Holder may be called from any goroutine.
//
//	h, err := lease.Take(ctx, lease.Config{Dir: dir, Node: "a", Term: 10 * time.Second, Lost: end})
//	if h.Serving() {
//		// a reply may be sent
//	}
package lease
