package ctl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
)

func (t *tool) perf() *cobra.Command {
	c := group("perf", "Measure bandwidth and latency between two hosts, as perftest does",
		t.perfOp("write", "RDMA WRITE", perf.Write), t.perfOp("read", "RDMA READ", perf.Read),
		t.perfOp("send", "SEND", perf.Send), t.perfOp("atomic", "atomic operations", perf.FetchAdd), t.perfServe())
	c.Long = `Measure the RDMA transport between two hosts, or two processes, without files: with
the options, the units and the columns of perftest (ib_write_bw, ib_write_lat and the
others). The other side is 'rstorectl perf serve', or rstored where its configuration
has a perf section.`
	c.Example = "  rstorectl perf serve                        # on one host, and on the other:\n" +
		"  rstorectl perf write bw server -a\n  rstorectl perf read lat server -s 4096 -n 10000 -o json"
	return c
}

// The defaults of perftest.
const (
	defaultBW         = 65536
	defaultLat        = 2
	defaultIterations = 1000
	writeIterations   = 5000
	defaultTxDepth    = 128
)

// perfFlags are the flags of a measurement.
type perfFlags struct {
	o         perf.Options
	kind      string // bw or lat
	name      string // of the operation
	size      int
	all       bool
	port      uint16
	mtu       uint32
	source    netip.Addr
	provider  provider.Kind
	busyPoll  bool
	icrc      bool
	atomic    string
	durations int
}

func (t *tool) perfOp(name, what string, op perf.Op) *cobra.Command {
	return group(name, "Measure "+what, t.perfTest(name, what, op, false), t.perfTest(name, what, op, true))
}

func (t *tool) perfTest(name, what string, op perf.Op, latency bool) *cobra.Command {
	f := &perfFlags{name: name, kind: "bw", o: perf.Options{Op: op, Latency: latency, Depth: 1, QPs: 1}}
	short := "Measure the bandwidth of " + what
	size := defaultBW
	iterations := defaultIterations
	switch {
	case latency:
		f.kind, size = "lat", defaultLat
		short = "Measure the latency of " + what + ": the whole round trip"
		if op == perf.Write || op == perf.Send {
			short = "Measure the latency of " + what + ": half the round trip"
		}
	case op == perf.Write:
		iterations = writeIterations
	}
	if op.Atomic() {
		size = perf.AtomicSize
	}
	c := &cobra.Command{
		Use:     f.kind + " HOST",
		Short:   short,
		Example: fmt.Sprintf("  rstorectl perf %s %s server", name, f.kind),
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := untilSignal(cmd, 0)
			defer stop()
			err := t.measure(ctx, f, args[0])
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return errors.New("interrupted")
			}
			return err
		},
	}
	fl := c.Flags()
	t.plainQuiet(fl)
	f.size = size
	if op.Atomic() {
		fl.StringVarP(&f.atomic, "atomic-type", "A", atomicTypes[0], "`TYPE` FETCH_AND_ADD or CMP_AND_SWAP")
	} else {
		fl.IntVarP(&f.size, "size", "s", size, "`BYTES` of a message")
		fl.BoolVarP(&f.all, "all", "a", false, "all sizes, 2 bytes to 8 MiB")
	}
	fl.IntVarP(&f.o.Iterations, "iters", "n", iterations, "messages of each size on each queue pair")
	fl.IntVarP(&f.durations, "duration", "D", 0, "measure each size for this many `SECONDS` instead")
	if !latency {
		fl.IntVarP(&f.o.Depth, "tx-depth", "t", defaultTxDepth, "messages under way at once on each queue pair")
		fl.BoolVarP(&f.o.Bidirectional, "bidirectional", "b", false, "both sides post; the columns are the sum")
		fl.IntVarP(&f.o.QPs, "qp", "q", 1, "number of queue pairs")
	}
	fl.Uint32VarP(&f.mtu, "mtu", "m", 0, "path `MTU`, 256 to 4096 (default: the largest that the interface carries)")
	fl.Uint16VarP(&f.port, "port", "p", perf.Port, "RDMA `PORT` of the server")
	f.provider = provider.Auto
	fl.Var(&f.provider, "provider", "provider of the RDMA device: soft, the stack in user space; verbs, the kernel; "+
		"or auto, the kernel where one of its devices has the address")
	busyPollFlag(fl, &f.busyPoll)
	fl.BoolVar(&f.icrc, "icrc", false, "send and check the ICRC even if both ends are on this host (provider soft)")
	fl.TextVar(&f.source, "source", netip.Addr{},
		"local `ADDRESS` (default: as routing says; a free loopback address for a server on this host)")
	return c
}

// busyPollFlag adds the flag --busy-poll, which both sides have.
func busyPollFlag(f *pflag.FlagSet, busy *bool) {
	f.BoolVar(busy, "busy-poll", false, "with the provider verbs: look for completions all the time, "+
		"as perftest does without --events, and do not sleep until one comes")
}

// errNoBusyPoll is the error of --busy-poll with a device that cannot do it.
var errNoBusyPoll = cli.Usagef(
	"--busy-poll needs the provider verbs: the stack in user space sleeps until a packet comes")

// plainQuiet gives --quiet no short form, because perftest uses -q for queue pairs.
func (t *tool) plainQuiet(f *pflag.FlagSet) {
	f.BoolVar(&t.g.Quiet, "quiet", false, "only the columns")
}

var atomicTypes = []string{"FETCH_AND_ADD", "CMP_AND_SWAP"}

// options returns the options of the measurement that the flags describe.
func (f *perfFlags) options() (perf.Options, error) {
	o := f.o
	switch f.atomic {
	case "", atomicTypes[0]:
	case atomicTypes[1]:
		o.Op = perf.CompareSwap
	default:
		return o, cli.Usagef("--atomic-type %s is neither %s nor %s", f.atomic, atomicTypes[0], atomicTypes[1])
	}
	if f.mtu != 0 && rdma.MTU(f.mtu).Code() == 0 {
		return o, cli.Usagef("--mtu %d is not one of 256, 512, 1024, 2048 and 4096", f.mtu)
	}
	o.Sizes = []int{f.size}
	if f.all {
		o.Sizes = nil
		for n := 2; n <= perf.SizeMax; n *= 2 {
			o.Sizes = append(o.Sizes, n)
		}
	}
	o.Duration = time.Duration(f.durations) * time.Second
	if err := o.Validate(); err != nil {
		return o, cli.Usagef("%v", err)
	}
	return o, nil
}

// measure runs a measurement and prints it.
func (t *tool) measure(ctx context.Context, f *perfFlags, host string) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return err
	}
	server := netip.AddrPortFrom(addrs[0].Unmap(), f.port)
	devices := provider.System()
	choice, err := devices.ChooseFor(f.provider, server.Addr(), f.source)
	if err != nil {
		return err
	}
	if choice.Kind == provider.Verbs && f.mtu != 0 {
		return cli.Usagef("--mtu needs the provider soft: the path MTU of %s is that of its network interface", choice.Device)
	}
	if choice.Kind == provider.Soft && f.busyPoll {
		return errNoBusyPoll
	}
	dev, err := devices.Open(provider.Config{
		Choice: choice, BusyPoll: f.busyPoll, Soft: roce.Config{PathMTUMax: rdma.MTU(f.mtu), LocalICRC: f.icrc},
	})
	if err != nil {
		return fmt.Errorf("opening an RDMA device: %w", err)
	}
	defer func() { _ = dev.Close() }()

	r := newPerfReport(f, &o, &choice, dev, server)
	if t.g.Output != cli.FormatTable {
		if err := perf.Run(ctx, dev, server, o, func(x perf.Result) { r.add(&x) }); err != nil {
			return perfHint(err)
		}
		return t.g.Print(r, nil)
	}
	if !t.g.Quiet {
		r.banner(t.g.Out)
	}
	r.header(t.g.Out)
	return perfHint(perf.Run(ctx, dev, server, o, func(x perf.Result) { r.row(t.g.Out, r.add(&x)) }))
}

// perfHint adds advice to an error.
func perfHint(err error) error {
	var c *perf.ConnectError
	switch {
	case !errors.As(err, &c):
		return err
	case cm.Reason(c.Reason) == cm.InvalidServiceID:
		return fmt.Errorf("%w: start 'rstorectl perf serve' there, or set perf: in the configuration of its rstored", err)
	}
	return err
}
