// Package cli has what the subcommands of rstorectl and rstored share: global flags, output
// formats, exit codes, the version, and the choice between the static program and the one with
// rdma-core (PreferRDMA). It knows no command.
//
// Begin reading at Globals.Print and Code. One goroutine runs a command.
//
//	func main() {
//		g := cli.NewGlobals()
//		os.Exit(cli.Run(ctl.Root(g), os.Stderr))
//	}
package cli
