// Command rstorectl controls a running rstored and moves files to and from NFS
// servers over RDMA or TCP.
package main

import (
	"os"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/ctl"
)

func main() {
	cli.PreferRDMA("rstorectl")
	os.Exit(cli.Run(ctl.Root(cli.NewGlobals()), os.Stderr))
}
