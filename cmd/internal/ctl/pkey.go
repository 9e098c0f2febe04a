package ctl

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
)

// pkey is the commands for the partitions of the RDMA devices.
func (t *tool) pkey() *cobra.Command {
	const long = `

A partition key has 16 bits: the highest says full member, the others name the partition,
so 0x8001 is full and 0x0001 limited membership in partition 1. Members of one partition
reach each other if one of both is a full member. Every RDMA device of the daemon has
this table; an export with pkey= is for the members of those partitions alone.`
	one := func(args []string) (string, error) {
		k, err := config.ParsePKey(args[0])
		if err != nil {
			return "", cli.Usagef("%v", err)
		}
		return config.PKeyString(k), nil
	}
	add := &cobra.Command{
		Use:     "add KEY",
		Short:   "Join a partition, now and after restarts",
		Long:    "Join a partition, now and after restarts." + long,
		Example: "  rstorectl pkey add 0x8001",
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := one(args)
			if err != nil {
				return err
			}
			if err := t.daemon().AddPKey(cmd.Context(), k); err != nil {
				return err
			}
			return t.g.Print(map[string]string{"pkey": k}, func(w io.Writer) { t.sayf(w, "added partition key %s", k) })
		},
	}
	remove := &cobra.Command{
		Use:     "remove KEY",
		Aliases: []string{"rm", "delete"},
		Short:   "Leave a partition, now and after restarts",
		Long:    "Leave a partition, now and after restarts. Its connections end." + long,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := one(args)
			if err != nil {
				return err
			}
			if err := t.daemon().RemovePKey(cmd.Context(), k); err != nil {
				return err
			}
			return t.g.Print(map[string]string{"pkey": k}, func(w io.Writer) { t.sayf(w, "removed partition key %s", k) })
		},
	}
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the partitions",
		Args:    cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := t.daemon().PKeys(cmd.Context())
			if err != nil {
				return err
			}
			return t.g.Print(keys, func(w io.Writer) {
				fmt.Fprintln(w, "PKEY\tMEMBERSHIP\tORIGIN")
				for _, k := range keys {
					fmt.Fprintf(w, "%s\t%s\t%s\n", k.PKey, k.Membership, k.Origin)
				}
			})
		},
	}
	return group("pkey", "Manage the partitions of the RDMA devices", add, remove, list)
}
