package ctl

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/filecmd"
	"github.com/rstored/rstored/cmd/internal/mount"
)

// Root makes the command tree. Parsing the command line sets g.
func Root(g *cli.Globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "rstorectl",
		Short: "Control rstored, and move files over RDMA or TCP",
		Long: `rstorectl controls a running rstored through its control socket, or one of another host by
TLS with --server (export, port, status, top, connections, qp, stats, doctor, capture, reload,
log-level). It measures the network between two hosts (perf). It works on the files of any NFS
server by URL (ls, cat, cp, put, get, ...), and mounts it (mount, umount, mounts):

  nfs+rdma://host[:20049]/export/path
  nfs+tcp://host[:2049]/export/path`,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			socket, server := cmd.Flag("control"), cmd.Flag("server")
			switch {
			case socket != nil && server != nil && socket.Changed && server.Changed:
				return cli.Usagef("--control is this host's server, --server that of another: only one of them")
			case socket != nil && socket.Changed:
				g.Server = "" // of the environment
			}
			return g.Check()
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unknown command %q; see 'rstorectl --help'", args[0])
			}
			return cmd.Help()
		},
		Args:    cobra.ArbitraryArgs,
		Version: cli.ReadBuild().String(),
	}
	cli.Prepare(root)
	f := root.PersistentFlags()
	socket := os.Getenv("RSTORED_CONTROL")
	if socket == "" {
		socket = config.FindControl()
	}
	f.StringVar(&g.Control, "control", socket, "control `SOCKET` of rstored")
	for _, v := range []struct {
		to               *string
		flag, env, usage string
	}{
		{&g.Server, "server", envServer, "control rstored of another host, at `HOST:PORT` of its control_tls"},
		{&g.Cert, "cert", envCert, "`FILE` with the certificate for --server, PEM"},
		{&g.Key, "key", envKey, "`FILE` with the key of --cert, PEM"},
		{&g.CA, "ca", envCA, "`FILE` with the authority of the certificate of --server, PEM (the system's authorities)"},
	} {
		f.StringVar(v.to, v.flag, "", v.usage)
		*v.to = os.Getenv(v.env)
	}
	f.StringVarP(&g.Output, "output", "o", cli.FormatTable, "output `FORMAT`: table, json or yaml")
	f.BoolVarP(&g.Quiet, "quiet", "q", false, "no progress and no confirmations")
	completeFlag(root, "output", cli.FormatTable, cli.FormatJSON, cli.FormatYAML)
	root.SetOut(g.Out)
	root.SetErr(g.Err)

	t := &tool{g: g}
	root.AddGroup(
		&cobra.Group{ID: groupServer, Title: "Server commands:"},
		&cobra.Group{ID: groupFiles, Title: "File commands:"},
	)
	for _, c := range []*cobra.Command{
		t.export(), t.exportfs(), t.snapshot(), t.port(), t.pkey(), t.device(), t.plan(), t.applyFile(), t.rollback(),
		t.history(), t.drift(), t.status(), t.clients(), t.client(), t.sessions(), t.locks(), t.grace(), t.ha(), t.failover(),
		t.cluster(),
		t.qp(), t.stats(), t.top(), t.slow(), t.trace(), t.ops(), t.doctor(), t.supportBundle(), t.perf(), t.capture(),
		t.reload(), t.upgrade(), t.idmap(), t.importFiles(), t.logLevel(),
	} {
		c.GroupID = groupServer
		root.AddCommand(c)
	}
	for _, c := range append(filecmd.Commands(g), mount.Commands(g)...) {
		c.GroupID = groupFiles
		root.AddCommand(c)
	}
	root.AddCommand(cli.VersionCommand(g, "rstorectl"))
	return root
}

const (
	groupServer = "server"
	groupFiles  = "files"
)

// tool passes the global flags to the commands.
type tool struct{ g *cli.Globals }

// The environment variables that replace --server, --cert, --key and --ca.
const (
	envServer = "RSTORECTL_SERVER"
	envCert   = "RSTORECTL_CERT"
	envKey    = "RSTORECTL_KEY"
	envCA     = "RSTORECTL_CA"
)

func (t *tool) daemon() *control.Dialer {
	if g := t.g; g.Server != "" {
		return control.DialRemote(g.Server, certs.Files{Cert: g.Cert, Key: g.Key, CA: g.CA})
	}
	return control.Dial(t.g.Control)
}
