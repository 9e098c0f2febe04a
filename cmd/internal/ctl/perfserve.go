package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/provider"
)

func (t *tool) perfServe() *cobra.Command {
	l := perf.DefaultLimits()
	var port uint16
	var busyPoll bool
	clients := []string{}
	c := &cobra.Command{
		Use:   "serve [[PROVIDER://]ADDRESS|verbs://DEVICE]...",
		Short: "Serve measurements of other hosts until interrupted",
		Long: `Serve measurements of other hosts until interrupted, at the addresses given or at every
address of the host. RoCEv2 has one UDP port, 4791, so an address that rstored serves is
not free: use the perf section of its configuration there. soft:// and verbs:// before an
address choose the provider of its RDMA device, the stack in user space or the kernel. The
default is the kernel where one of its devices has the address.`,
		Example: `  rstorectl perf serve
  rstorectl perf serve 10.0.0.1 --client 10.0.0.0/24
  rstorectl perf serve verbs://mlx5_0`,
		Args: cli.Args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if l.Clients, err = config.ParseNetworks(clients); err != nil {
				return cli.Usagef("--client: %v", err)
			}
			if err := l.Validate(); err != nil {
				return cli.Usagef("%v", err)
			}
			ctx, stop := untilSignal(cmd, 0)
			defer stop()
			return t.servePerf(ctx, l, args, port, busyPoll)
		},
	}
	f := c.Flags()
	f.Uint16VarP(&port, "port", "p", perf.Port, "RDMA `PORT` to listen on")
	busyPollFlag(f, &busyPoll)
	f.StringSliceVar(&clients, "client", []string{config.Everyone},
		"`CIDR` of clients that may measure, * for all; repeatable")
	f.IntVar(&l.MaxSize, "max-size", l.MaxSize, "largest message in bytes")
	f.IntVar(&l.MaxDepth, "max-depth", l.MaxDepth, "messages under way on a queue pair")
	f.IntVar(&l.MaxQPs, "max-qps", l.MaxQPs, "queue pairs of a measurement")
	f.IntVar(&l.MaxConnections, "max-connections", l.MaxConnections, "queue pairs of all measurements")
	f.IntVar(&l.Memory, "max-memory", l.Memory, "bytes of memory for all buffers")
	f.DurationVar(&l.IdleTimeout, "idle-timeout", l.IdleTimeout,
		"end measurements whose client sends nothing for this `DURATION`")
	f.DurationVar(&l.MaxDuration, "max-duration", l.MaxDuration, "end measurements that take longer")
	return c
}

// servePerf serves until ctx ends.
func (t *tool) servePerf(ctx context.Context, l perf.Limits, args []string, port uint16, busyPoll bool) (err error) {
	list, every := make([]config.Listen, 0, len(args)), len(args) == 0
	for _, s := range args {
		l, err := perfListen(s, port)
		if err != nil {
			return cli.Usagef("%v", err)
		}
		list = append(list, l)
	}
	if every {
		addrs, err := config.HostAddresses()
		if err != nil {
			return err
		}
		for _, a := range addrs {
			list = append(list, config.Listen{Addr: a, Port: port})
		}
	}
	level := zapcore.InfoLevel
	if t.g.Quiet {
		level = zapcore.ErrorLevel
	}
	log := telemetry.Console(t.g.Err, level)
	library := telemetry.Slog(log)
	srv, err := perf.NewServer(l, library)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	open := 0
	devices := provider.System()
	for _, l := range list {
		choice, err := devices.Choose(cmp.Or(l.Provider, provider.Auto), l.Addr, l.Device)
		var dev rdma.Device
		if err == nil && busyPoll && choice.Kind == provider.Soft && !every {
			return errNoBusyPoll
		}
		if err == nil {
			dev, err = devices.Open(provider.Config{Choice: choice, BusyPoll: busyPoll, Logger: library})
		}
		if err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%w; if it is rstored, set perf: in its configuration instead", err)
			}
			if !every {
				return err
			}
			log.Warn("not every address is served", zap.Stringer("address", l.Addr), zap.Error(err))
			continue
		}
		defer func() { _ = dev.Close() }()
		pl, err := srv.Listen(dev, port)
		if err != nil {
			return err
		}
		defer func() { _ = pl.Close() }()
		log.Info("waiting for measurements", zap.Stringer("address", pl.Addr()), zap.Stringer("provider", choice.Kind),
			zap.String("because", choice.Why))
		open++
	}
	if open == 0 {
		return errors.New("no address is free")
	}
	<-ctx.Done()
	return nil
}

// perfListen reads an address or a device, with or without its provider.
func perfListen(s string, port uint16) (config.Listen, error) {
	kind, host, ok := strings.Cut(s, "://")
	if !ok {
		kind, host = "", s
	} else {
		kind += "://"
	}
	return config.ParseRDMAListen(kind + net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(int(port))))
}
