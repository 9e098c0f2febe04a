// Package snapshot makes, lists and removes snapshots of exported directories, and keeps as many as
// a schedule says. It works on the host of the server, as root. The server finds the snapshots in
// desired.SnapshotDir of the export by itself, and serves them read-only. So this package knows
// nothing of the server. Begin reading at Volume. A kind is one way to make snapshots: btrfs, ZFS,
// or a thin volume of LVM.
//
//	v, err := snapshot.Open("/srv/data", desired.HostMounts())
//	err = v.Create("before-upgrade")
//
// The package has no state: all is on the host. One goroutine runs a command.
package snapshot
