package ctl

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
)

func (t *tool) upgrade() *cobra.Command {
	return UpgradeCommand(t.g, func(*cobra.Command) (*control.Dialer, error) { return t.daemon(), nil })
}

// UpgradeCommand is the command that replaces a running daemon by another executable. dial finds
// the daemon.
func UpgradeCommand(g *cli.Globals, dial func(*cobra.Command) (*control.Dialer, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade [EXECUTABLE]",
		Short: "Let the program on disk take over from the running server, without ending connections",
		Long: `upgrade lets the running server start EXECUTABLE, or the program at its own path, and hand
everything over to it: sockets, connections, replies and the state of files. Clients notice only
a pause. The new process reads the configuration again.

EXECUTABLE, and every directory on its path, must belong to root and be writable by nobody else. A server
without privileges also accepts files of its own user. It cannot be named from another host.

If the new process cannot take over, the old one continues unchanged. The command prints the reason
and ends with 1.`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := dial(cmd)
			if err != nil {
				return err
			}
			path := ""
			if len(args) > 0 {
				if path, err = filepath.Abs(args[0]); err != nil {
					return err
				}
			}
			u, err := d.Upgrade(cmd.Context(), path)
			if err != nil {
				return err
			}
			return g.Print(u, func(w io.Writer) {
				fmt.Fprintf(w, "from\t%s, process %d\n", u.OldVersion, u.OldPID)
				fmt.Fprintf(w, "to\t%s, process %d\n", u.NewVersion, u.PID)
				fmt.Fprintf(w, "executable\t%s\n", u.Executable)
				fmt.Fprintf(w, "pause\t%.1f ms, after %.0f ms of preparation\n", u.PauseMillis, u.PrepareMillis)
				fmt.Fprintf(w, "connections\t%d over RDMA, %d over TCP\n", u.RDMA, u.TCP)
				if u.Dropped > 0 {
					fmt.Fprintf(w, "ended\t%d connections whose clients did not answer\n", u.Dropped)
				}
			})
		},
	}
}
