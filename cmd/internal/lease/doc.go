// Package lease decides which of several daemons may serve from one state directory on shared
// storage.
//
// The lease is a file in the directory. Its holder renews it, all others read it:
//
//	holder    renews every Term/4. It may serve until Term after the begin of the last renewal that
//	          was written. After that it has lost the lease, for ever: the process ends.
//	others    claim the lease if the holder has released it, or if the file has not changed for
//	          Term and a quarter, by their own clock, since they first read it so. A process claims it
//	          at once if the holder was of its own node and boot, and is known to have ended.
//
// A holder can release the lease to one node. That node claims it at once, and the others wait as
// for a holder that is lost.
//
// A holder is thus past its time when another one claims, however late its writes arrive and
// however long it was stopped, as long as the clocks of the two hosts run at the same rate within
// 10 %. The clocks need not show the same time.
//
// A claim makes the file of the next epoch, which exactly one of several claimants can do. No lock
// of the file system is used: a host that has stopped would hold it. What the storage must have are
// link(2) that fails if the name exists, and files that all hosts see alike: a clustered file system,
// or a disk that one host at a time mounts.
//
// The lease stops replies. It does not stop a write to the storage that a host had under way when
// it was stopped. Where that matters, the storage itself must shut out the other host (fencing).
//
// Engine has the rules. It does no IO and reads no clock. Holder has the file and the clock. Begin
// reading with engine.go.
package lease
