// Package filecmd has the commands of rstorectl that work on files by URL, and the bridge: ls, cat,
// stat, df, quota, mkdir, rm, mv, put, get and cp. The last three are one copy between two trees,
// each of them local or remote. The package uses nfs/client for servers, and knows neither the
// daemon nor its control interface.
//
// Begin reading at Commands, and for copies at copier.go. A side (side.go) is one of the two trees,
// local.go and remote.go implement it. A copy runs several goroutines, which take files from one
// queue (queue.go).
//
//	root.AddCommand(filecmd.Commands(g)...)
package filecmd
