package ctl

import (
	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/doctor"
	"github.com/rstored/rstored/nfs/client"
)

// errFindings ends the command with ExitFailed. The findings have said it all.
type errFindings struct{}

func (errFindings) Error() string { return "" }

func (t *tool) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor [URL]",
		Short: "Find what prevents NFS over RDMA from working, on the server or on a client",
		Long: `Without a URL, check the server of this host: whether it runs, its exports, interfaces
and MTUs, the owner of UDP port 4791, buffers, and the RDMA connections that failed
lately. With --server, show what the server of another host reports. With the URL of an
export, check this host as a client: kernel modules, RDMA link and MTU. Then connect to
the server and make the calls of a mount, over RDMA and over TCP.

Each line is a finding: OK, WARN or FAIL, and a command where there is a remedy. The exit
code is 1 if there is a FAIL. Nothing is changed.`,
		Example: "  rstorectl doctor\n  rstorectl doctor nfs+rdma://server/data",
		Args:    cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r doctor.Report
			switch {
			case len(args) == 0 && t.g.Server != "":
				r = doctor.Remote(cmd.Context(), t.daemon())
			case len(args) == 0:
				r = doctor.Server(cmd.Context(), doctor.This(), t.daemon())
			default:
				u, err := client.ParseURL(args[0])
				if err != nil {
					return cli.Usagef("%v", err)
				}
				r = doctor.Client(cmd.Context(), doctor.This(), u)
			}
			var err error
			if t.g.Output == cli.FormatTable {
				r.Print(t.g.Out) // lines are for reading as they are, without columns
			} else {
				err = t.g.Print(r, nil)
			}
			if err == nil && r.Failed() {
				return errFindings{}
			}
			return err
		},
	}
}
