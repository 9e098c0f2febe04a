// Package mount has the commands mount, umount and mounts of rstorectl: directories of NFS servers
// as file systems of this host, by FUSE. It knows neither the kernel's protocol (nfs/fusefs has
// that) nor NFS (nfs/client).
//
// One process for each mount serves the kernel. It reports its state at a socket below the
// directory that stateDir returns. Several processes may use that directory at a time. Begin
// reading at command.go. options.go has the options of nfs(5) and mount(8), background.go starts
// the process, mounts.go lists the mounts, umount.go ends them.
//
// A command runs in one goroutine. In the process of a mount, the kernel's requests have goroutines
// of nfs/fusefs; the socket is served beside them.
//
//	root.AddCommand(mount.Commands(g)...)
package mount
