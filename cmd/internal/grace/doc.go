// Package grace has the rules of the grace period that all servers of a cluster share, after the
// design of Ganesha's rados_cluster (ganesha-rados-cluster-design(8)).
//
// The servers, here nodes, share one State, which changes by compare and write. Each node writes
// records of its clients, each for an epoch. When a node comes up or is lost, an epoch ends: the
// clients that have records of it may reclaim, at any node, and new records are of the next epoch.
//
//	epoch            5                          6
//	          ----------------+--------------------------------+-----------------
//	grace                     begin      all enforce    lift
//	node A    killed ......   comes up   releases, reclaims    serves
//	node B    serves          enforces                         serves
//	records of 5              may be reclaimed                 void
//	records of 6              written by all                   written by all
//
// The order makes it safe without a clock:
//
//  1. A node that begins a grace period changes the state, and waits.
//  2. Every other node stops granting opens and locks, copies its records to the new epoch, and
//     says so in the state (Node.Epoch).
//  3. When all nodes that live have done so, the locks in the file system that a lost process had are
//     released (Node.Stale), and its clients reclaim.
//  4. Each node that recovers clients says when it is done (Node.Need). When all are done, the
//     period is over, and the records of the old epoch are void in the same moment.
//
// A clock only decides when a node counts as lost (Watch), and that a node which cannot show that it
// lives grants nothing new. A node that was declared lost by mistake is shut out of the file system
// in step 3, before others get what its clients had.
//
// Begin reading at State.Next: what a node has to do now. The package does no IO and reads no clock.
// It knows nothing of NFS, of Ceph, or of where the state is.
//
// A State is a value: its methods return a new one, and may be called from any goroutine. A Watch
// belongs to one goroutine.
//
//	step := state.Next(&grace.Self{Node: "a", Boot: boot, Epoch: epoch})
//	if step.Action == grace.Copy {
//		// grant nothing, write all records for state.Current, then step.State over state
//	}
package grace
