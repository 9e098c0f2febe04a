package ctl

import (
	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
)

// fileCommands are the commands that work on files by URL and the bridge.
func fileCommands(*cli.Globals) []*cobra.Command { return nil }
