package ctl

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
)

// client makes the commands for the clients of version 4 that have state on the server.
func (t *tool) client() *cobra.Command {
	all := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the clients of NFS version 4 and their state",
		Long: `List the clients of NFS version 4 that the server remembers, connected or not, and their
numbers of sessions, open files, lock owners, delegated files and copies under way. A client
that is silent for longer than the lease, 90 seconds, is "expired": it keeps its state until
another client wants it. A client of version 4.0 has no session. Files are delegated to clients
that have answered a callback. The server makes a connection for callbacks of version 4.0.`,
		RunE: list(t, (*control.Dialer).NFS4Clients,
			"ID\tVERSION\tSTATE\tSESSIONS\tOPENS\tLOCKS\tDELEGATIONS\tCALLBACKS\tCOPIES\tHEARD OF\tOWNER",
			func(c *control.NFS4Client) []any {
				state := "active"
				switch {
				case !c.Confirmed:
					state = "unconfirmed"
				case c.Expired:
					state = "expired"
				case c.Reclaims:
					state = "reclaiming"
				}
				return []any{
					c.ID, dash(c.Version), state, c.Sessions, c.Opens, c.Locks, c.Delegations, c.Callbacks, c.Copies,
					c.Renewed.Local().Format(time.DateTime), c.Owner,
				}
			}),
	}
	evict := &cobra.Command{
		Use:   "evict ID",
		Short: "Remove the state of a client",
		Long: `Remove sessions, open files and locks of a client of NFS version 4. 'client list' shows its ID.
A client that still runs makes a new session with its next call and must open its files again.
The kernel's client reports lost locks as input/output errors.`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := t.daemon().EvictClient(cmd.Context(), args[0]); err != nil {
				return err
			}
			return t.done(map[string]string{"id": args[0]}, "evicted client %s", args[0])
		},
	}
	return group("client", "Manage the clients of NFS version 4", all, t.delegations(), evict)
}

func (t *tool) delegations() *cobra.Command {
	return &cobra.Command{
		Use:   "delegations",
		Short: "List the files and directories that are delegated to clients",
		Long: `List the files and directories that are delegated to clients of NFS version 4. Such a client opens and reads a
file, or also writes it, without asking. Somebody else waits for a "recalled" delegation. It is
revoked a lease, 90 seconds, after the recall. FILEID is the inode number.`,
		RunE: list(t, (*control.Dialer).Delegations, "EXPORT\tFILEID\tKIND\tSTATE\tAGE\tCLIENT",
			func(d *control.Delegation) []any {
				state := "held"
				switch {
				case d.Acknowledged:
					state = "recalled"
				case d.Recalled:
					state = "recalled, not acknowledged"
				}
				return []any{
					dash(d.Export), d.FileID, choose(d.Dir, "directory", choose(d.Write, "write", "read")), state,
					time.Since(d.Given).Round(time.Second), d.Client,
				}
			}),
	}
}

func (t *tool) sessions() *cobra.Command {
	return &cobra.Command{
		Use:   "sessions",
		Short: "List the sessions of NFS version 4",
		Long:  "List the sessions of NFS versions 4.1 and 4.2. Clients of version 4.0 have none.",
		RunE: list(t, (*control.Dialer).NFS4Sessions,
			"SESSION\tCLIENT\tVERSION\tSLOTS\tUSED\tBUSY\tREQUEST\tRESPONSE\tCACHED",
			func(s *control.NFS4Session) []any {
				version := fmt.Sprintf("4.%d", s.Minor)
				return []any{
					s.ID, s.Client, version, s.Slots, s.Used, s.Busy, size(s.MaxRequest), size(s.MaxResponse),
					size(s.CachedReplies),
				}
			}),
	}
}

func (t *tool) locks() *cobra.Command {
	return &cobra.Command{
		Use:   "locks",
		Short: "List the byte-range locks of all clients",
		Long: `List the byte-range locks of NFS version 3 (NLM) and of version 4 together, and the
requests that wait for one. FILEID is the inode number.`,
		RunE: list(t, (*control.Dialer).Locks, "EXPORT\tFILEID\tRANGE\tKIND\tSTATE\tCLIENT\tOWNER",
			func(l *control.FileLock) []any {
				last := "end"
				if l.End != math.MaxUint64 {
					last = fmt.Sprint(l.End)
				}
				return []any{
					dash(l.Export), l.FileID, fmt.Sprintf("%d-%s", l.Start, last), choose(l.Exclusive, "exclusive", "shared"),
					choose(l.Waiting, "waiting", "held"), l.Client, l.Owner,
				}
			}),
	}
}

func (t *tool) grace() *cobra.Command {
	const long = `

After a restart clients may reclaim the files and locks that they had, for 90 seconds with
version 4 and 45 with version 3, and nobody gets others meanwhile. It ends by itself when all
have, and at once when nobody had any.`
	state := &cobra.Command{
		Use:   "show",
		Short: "Show whether there is a grace period, and for whom",
		Long:  "Show whether there is a grace period, and for whom." + long,
		RunE: show(t, (*control.Dialer).Grace, func(w io.Writer, g control.Grace) {
			if !g.On {
				fmt.Fprintln(w, "no grace period")
				return
			}
			until := func(version int, end *time.Time) {
				if end != nil {
					fmt.Fprintf(w, "version %d\tuntil %s\n", version, end.Local().Format(time.DateTime))
				}
			}
			until(4, g.NFS4Until)
			until(3, g.NLMUntil)
			for _, c := range g.Waiting {
				fmt.Fprintf(w, "waits for\t%s\n", c)
			}
		}),
	}
	end := &cobra.Command{
		Use:   "end",
		Short: "End the grace period. State that was not reclaimed is lost",
		Long:  "End the grace period. Clients lose the state that they have not reclaimed." + long,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.daemon().EndGrace(cmd.Context()); err != nil {
				return err
			}
			return t.done(map[string]bool{"on": false}, "the grace period is over")
		},
	}
	return group("grace", "Show or end the time in which clients may reclaim", state, end)
}
