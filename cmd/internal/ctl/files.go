package ctl

import (
	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/filecmd"
)

// fileCommands are the commands that work on files by URL, and the bridge.
func fileCommands(g *cli.Globals) []*cobra.Command { return filecmd.Commands(g) }
