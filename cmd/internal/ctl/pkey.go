package ctl

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// pkey makes the commands for the partitions of the RDMA devices.
func (t *tool) pkey() *cobra.Command {
	const long = `

A partition key has 16 bits: the highest says full member, the others name the partition,
so 0x8001 is full and 0x0001 limited membership in partition 1. Members of one partition
reach each other if one of both is a full member. Every RDMA device of the daemon has
this table; an export with pkey= is for the members of those partitions alone.`
	// change makes a command that sends the partition key on its command line.
	change := func(send func(*control.Dialer, context.Context, string) error, did string) runE {
		return func(cmd *cobra.Command, args []string) error {
			n, err := config.ParsePKey(args[0])
			if err != nil {
				return cli.Usagef("%v", err)
			}
			k := config.PKeyString(n)
			if err := send(t.daemon(), cmd.Context(), k); err != nil {
				return err
			}
			return t.done(map[string]string{"pkey": k}, "%s partition key %s", did, k)
		}
	}
	return group("pkey", "Manage the partitions of the RDMA devices",
		&cobra.Command{
			Use:     "add KEY",
			Short:   "Join a partition, now and after restarts",
			Long:    "Join a partition, now and after restarts." + long,
			Example: "  rstorectl pkey add 0x8001",
			Args:    cli.Args(cobra.ExactArgs(1)),
			RunE:    change((*control.Dialer).AddPKey, "added"),
		},
		&cobra.Command{
			Use:     "remove KEY",
			Aliases: []string{"rm", "delete"},
			Short:   "Leave a partition, now and after restarts",
			Long:    "Leave a partition, now and after restarts. Its connections end." + long,
			Args:    cli.Args(cobra.ExactArgs(1)),
			RunE:    change((*control.Dialer).RemovePKey, "removed"),
		},
		&cobra.Command{
			Use:     "list",
			Aliases: []string{"ls"},
			Short:   "List the partitions",
			RunE: list(t, (*control.Dialer).PKeys, "PKEY\tMEMBERSHIP\tORIGIN", func(k *control.PKey) []any {
				return []any{k.PKey, k.Membership, k.Origin}
			}),
		},
	)
}
