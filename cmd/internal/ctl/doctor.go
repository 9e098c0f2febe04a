package ctl

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/doctor"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// errFindings ends the command with ExitFailed. It adds nothing to the findings.
type errFindings struct{}

func (errFindings) Error() string { return "" }

func (t *tool) doctor() *cobra.Command {
	var fix bool
	var sec *dial.Secure
	c := &cobra.Command{
		Use:   "doctor [URL]",
		Short: "Find what prevents NFS over RDMA from working, on the server or on a client",
		Long: `Without a URL, check the server of this host: whether it runs, its exports, interfaces
and MTUs, the owner of UDP port 4791, buffers, and the RDMA connections that failed
lately. With --server, show what the server of another host reports. With the URL of an
export, check this host as a client: kernel modules, RDMA link and MTU. Then connect to
the server and make the calls of a mount, over RDMA and over TCP.

Each line is a finding: OK, WARN or FAIL, and a command where there is a remedy. The exit
code is 1 if there is a FAIL. Nothing is changed without --fix.

With --fix it asks for each remedy that it can carry out itself whether it shall, step by
step, then looks again: starting and restarting the service, receive buffers, MTUs, kernel
modules and RDMA links. It exports nothing, admits nobody and opens no port. Most remedies
need root.`,
		Example: `  rstorectl doctor
  rstorectl doctor nfs+rdma://server/data
  rstorectl doctor --sec krb5p nfs+tcp://server.example.org/data
  rstorectl doctor --fix`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			look := func(ctx context.Context) doctor.Report { return doctor.Server(ctx, doctor.This(), t.daemon()) }
			switch {
			case fix && (t.g.Server != "" || t.g.Output != cli.FormatTable):
				return cli.Usagef("--fix is for a terminal on the host itself")
			case len(args) == 0 && t.g.Server != "":
				look = func(ctx context.Context) doctor.Report { return doctor.Remote(ctx, t.daemon()) }
			case len(args) > 0:
				u, err := client.ParseURL(args[0])
				if err != nil {
					return cli.Usagef("%v", err)
				}
				look = func(ctx context.Context) doctor.Report { return doctor.Client(ctx, doctor.This(), u, sec) }
			}
			r := look(cmd.Context())
			if fix && r.Fixable() {
				x := &doctor.Fixer{In: cmd.InOrStdin(), Out: t.g.Out, Run: t.runStep}
				done, err := x.Fix(cmd.Context(), r)
				if done > 0 {
					t.sayf(t.g.Out, "looking again")
					r = look(cmd.Context())
				}
				if err != nil {
					r.Print(t.g.Out)
					return err
				}
			}
			var err error
			if t.g.Output == cli.FormatTable {
				r.Print(t.g.Out) // the lines have no columns
			} else {
				err = t.g.Print(r, nil)
			}
			if err == nil && r.Failed() {
				return errFindings{}
			}
			return err
		},
	}
	c.Flags().Func("sec", "with a URL: make the calls with `krb5`, krb5i or krb5p, with the tickets that kinit got",
		func(s string) error {
			service, ok := gss.ParseService(s)
			if !ok {
				return fmt.Errorf("%q is not krb5, krb5i or krb5p", s)
			}
			sec = &dial.Secure{Service: service, Initiate: initiate}
			return nil
		})
	c.Flags().BoolVar(&fix, "fix", false, "ask for each remedy whether to carry it out, and do so")
	return c
}

// initiate begins a security context with the tickets of this user.
func initiate(ctx context.Context, host string, _ uint32) (rpc.Initiation, error) {
	c, err := creds.FromCache("")
	if err != nil {
		return rpc.Initiation{}, err
	}
	return c.Initiate(ctx, host)
}

// runStep runs a command of a remedy. A command of this program gets the same control socket.
func (t *tool) runStep(ctx context.Context, s doctor.Step) error {
	name, args := s[0], s[1:]
	if name == "rstorectl" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		name, args = self, append([]string{"--control", t.g.Control}, args...)
	}
	c := exec.CommandContext(ctx, name, args...)
	c.Stdout, c.Stderr = t.g.Out, t.g.Err
	return c.Run()
}
