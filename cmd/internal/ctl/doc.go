// Package ctl is the command tree of rstorectl. A command calls the daemon through package control
// and prints the answer. It has no logic of the server, and knows nothing of NFS and RDMA. The
// commands on files are in package filecmd, the commands on mounts in package mount.
//
// Begin reading at Root, and then at command.go: show and list make most commands. One goroutine
// runs a command.
//
//	g := cli.NewGlobals()
//	os.Exit(cli.Run(ctl.Root(g), os.Stderr))
package ctl
