// Command rstored-csi is the driver of the Container Storage Interface for rstored: volumes are
// directories below an export. The same program is the plugin of the controller, which makes and
// removes directories by NFS of its own, and of the nodes, which mount them with the kernel's
// client, or with rstorectl by FUSE.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rstored/rstored/deploy/csi/driver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "rstored-csi:", err)
		os.Exit(1)
	}
}

// version is set by the linker; without, it is what the build information says.
var version string

func run(ctx context.Context, args []string, out, logs io.Writer) error {
	flags := pflag.NewFlagSet("rstored-csi", pflag.ContinueOnError)
	flags.SetOutput(out)
	var addresses []string
	cfg := driver.Config{Version: version}
	flags.StringVar(&cfg.Endpoint, "endpoint", "unix:///csi/csi.sock", "Unix socket to listen on")
	flags.StringVar(&cfg.NodeID, "node-id", "", "name of this node; default: that of the host")
	flags.StringSliceVar(&addresses, "address", nil, "`ADDRESS` from which this node mounts; repeatable. Exports of "+
		"single volumes admit it while the node has the volume")
	flags.StringVar(&cfg.Control.Cert, "control-cert", "", "`FILE` with the certificate for the control of servers, for "+
		"classes with the parameter control")
	flags.StringVar(&cfg.Control.Key, "control-key", "", "`FILE` with its key")
	flags.StringVar(&cfg.Control.CA, "control-ca", "", "`FILE` with the authority of the servers' certificates")
	flags.BoolVar(&cfg.Controller, "controller", false, "serve the Controller service: make and remove volumes")
	flags.BoolVar(&cfg.Node, "node", false, "serve the Node service: mount volumes, which needs CAP_SYS_ADMIN")
	flags.StringToStringVar(&cfg.Topology, "topology", driver.DefaultTopology,
		"`KEY=VALUE` of where this node is, for the parameter topology of classes")
	host := driver.Host{}
	flags.StringVar(&host.Rstorectl, "rstorectl", "", "the program rstorectl, for mounts by FUSE; default: beside this "+
		"one")
	flags.StringVar(&host.Dir, "fuse-dir", "/run/rstored-csi", "directory for logs of mounts by FUSE")
	flags.BoolVar(&host.Units, "fuse-units", false, "run each mount by FUSE as a unit of the host's systemd, so that it "+
		"outlives this process; the host has --fuse-dir at the same path")
	flags.DurationVar(&cfg.GiveUp, "give-up", 30*time.Second, "how long calls to a server wait for it")
	level := flags.String("log-level", "info", "debug, info, warn or error")
	show := flags.Bool("version", false, "print the version")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if len(flags.Args()) > 0 {
		return fmt.Errorf("%q: there are no arguments, only flags", flags.Args())
	}
	if cfg.Version == "" {
		cfg.Version = "devel"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
			cfg.Version = info.Main.Version
		}
	}
	if *show {
		fmt.Fprintln(out, "rstored-csi", cfg.Version)
		return nil
	}
	var l zapcore.Level
	if err := l.UnmarshalText([]byte(*level)); err != nil {
		return fmt.Errorf("--log-level %s: use debug, info, warn or error", *level)
	}
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey, enc.EncodeTime, enc.EncodeDuration = "time", zapcore.RFC3339NanoTimeEncoder, zapcore.StringDurationEncoder
	cfg.Log = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(enc), zapcore.Lock(zapcore.AddSync(logs)), l))
	if cfg.NodeID == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		cfg.NodeID = host
	}
	var err error
	if cfg.NodeID, err = driver.NodeID(cfg.NodeID, addresses); err != nil {
		return err
	}
	if host.Rstorectl == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		host.Rstorectl = filepath.Join(filepath.Dir(self), "rstorectl")
	}
	if cfg.Node && host.Units {
		if host.Rstorectl, err = driver.Install(host.Rstorectl, host.Dir); err != nil {
			return fmt.Errorf("--fuse-units: %w", err)
		}
	}
	cfg.Mounter = host
	return driver.Serve(ctx, cfg)
}
