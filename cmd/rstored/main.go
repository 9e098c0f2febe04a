// Command rstored serves directories by NFS version 3 over RDMA and over TCP.
package main

import (
	"os"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/daemon"
)

func main() {
	cli.PreferRDMA("rstored")
	os.Exit(cli.Run(daemon.Root(cli.NewGlobals()), os.Stderr))
}
