// Command rstorectl controls a running rstored, moves files to and from NFS servers over RDMA or
// TCP, and mounts them. By the name mount.rstored it is the helper of mount(8).
package main

import (
	"os"
	"path/filepath"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/ctl"
	"github.com/rstored/rstored/cmd/internal/mount"
)

func main() {
	cli.PreferRDMA("rstorectl")
	root := ctl.Root(cli.NewGlobals())
	if filepath.Base(os.Args[0]) == "mount.rstored" { // as mount(8) runs it
		root.SetArgs(mount.HelperArgs(os.Args[1:]))
	}
	os.Exit(cli.Run(root, os.Stderr))
}
