package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/top"
)

func (t *tool) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show whether and how the server runs",
		RunE: show(t, (*control.Dialer).Status, func(w io.Writer, s control.Status) {
			fmt.Fprintf(w, "state\t%s\nversion\t%s\npid\t%d\nup\t%s\nconfiguration\t%s\nstate directory\t%s\n",
				s.State, s.Version, s.PID, time.Duration(s.UptimeSeconds)*time.Second, dash(s.Config), s.StateDir)
			fmt.Fprintf(w, "log level\t%s\nexports\t%d\nports\t%d\nclients\t%d\ndevices\t%s\n",
				s.LogLevel, s.Exports, s.Ports, s.Clients, dash(strings.Join(s.Devices, " ")))
			fmt.Fprintf(w, "NFS version 4 state\t%s of at most %s (nfs4_memory)\n", size(s.NFS4Memory.Bytes),
				size(s.NFS4Memory.Limit))
			printMemory(w, &s.Process)
			if l := s.Lease; l != nil {
				fmt.Fprintf(w, "lease	node %q, epoch %d, renewed %v ago, ends %v after that; slowest renewal %v\n", l.Node, l.Epoch,
					l.Renewed.Round(time.Millisecond), l.Term, l.Slowest.Round(time.Microsecond))
			}
			for _, p := range s.Providers {
				fmt.Fprintf(w, "RDMA provider\t%s\n", strings.TrimSuffix(p.Name+": "+p.Error, ": "))
			}
			for _, p := range s.Problems {
				fmt.Fprintf(w, "problem\t%s\n", p)
			}
		}),
	}
}

// size formats a number of bytes.
func size[T int | int64 | uint32 | uint64](n T) string { return top.Size(uint64(max(n, 0))) }

// printMemory says which part of the memory that top and ps show for the server is its own.
func printMemory(w io.Writer, m *control.ProcessMemory) {
	if m.Resident == 0 {
		return // an older server does not report it
	}
	fmt.Fprintf(w, "memory\t%s (RES of top, RSS of ps): %s of its own, %s of page cache that it lends\n",
		size(m.Resident), size(m.Own), size(m.Lent))
	if m.Limit == 0 {
		fmt.Fprintf(w, "page cache lent\tnone (mapped_memory is 0)\n")
		return
	}
	fmt.Fprintf(w, "page cache lent\t%s mapped, at most %s (mapped_memory); the kernel takes it back when it needs "+
		"memory\n", size(m.Mapped), size(m.Limit))
}

func (t *tool) clients() *cobra.Command {
	var failed bool
	all := list(t, (*control.Dialer).Clients,
		"ADDRESS\tTRANSPORT\tXPRTSEC\tLOCAL\tSINCE\tCALLS\tCREDITS\tIN USE\tMEMORY\tNAME",
		func(c *control.Client) []any {
			var credits, used, memory any = "-", "-", "-" // TCP has no credits
			if r := c.RDMA; r != nil {
				credits, used, memory = r.Credits, r.InUse, size(r.Memory)
			}
			return []any{
				c.Address, c.Transport, dash(c.XprtSec), c.Local, c.Since.Local().Format(time.DateTime), c.Calls,
				credits, used, memory, quoted(c.Name),
			}
		})
	postMortems := show(t, (*control.Dialer).PostMortems, printPostMortems)
	c := &cobra.Command{
		Use:     "connections",
		Aliases: []string{"clients"},
		Short:   "List the connections of clients, or RDMA connections that failed",
		Long: `List the connections of clients, of all versions of NFS. 'client list' is about the state that
clients of version 4 have. With --failed, list the RDMA connections that failed and
the refused requests for one, the latest first: the request, the agreed parameters, the
cause, and the remedy. The server keeps the last 64 of them until it ends.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if failed {
				return postMortems(cmd, args)
			}
			return all(cmd, args)
		},
	}
	c.Flags().BoolVar(&failed, "failed", false, "RDMA connections that failed or were refused, and why")
	return c
}

// quoted returns the name in a client's certificate. The client chooses the name, so control
// characters are escaped.
func quoted(s string) string {
	if s == "" {
		return "-"
	}
	return strconv.QuoteToGraphic(s)
}

func (t *tool) stats() *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Show the counters",
		RunE: show(t, (*control.Dialer).Stats, func(w io.Writer, s control.Stats) {
			fmt.Fprintf(w, "up\t%s\nrdma_write_bytes\t%d\nrdma_read_bytes\t%d\n",
				time.Duration(s.UptimeSeconds)*time.Second, s.RDMAWriteBytes, s.RDMAReadBytes)
			fmt.Fprintf(w, "lent_bytes\t%d\ninline_bytes\t%d\ntcp_bytes\t%d\n", s.LentBytes, s.InlineBytes, s.TCPBytes)
			counts(w, "message", s.Messages)
			fmt.Fprintf(w, "memory messages\t%d\nmemory bulk\t%d\nmemory limit\t%d\n",
				s.Memory.Messages, s.Memory.Bulk, s.Memory.Limit)
			fmt.Fprintf(w, "nfs4 memory\t%d\nnfs4 memory limit\t%d\n", s.NFS4Memory.Bytes, s.NFS4Memory.Limit)
			counts(w, "refused", s.Refused)
			counts(w, "event", s.Events)
			counts(w, "error", s.Errors)
			for _, k := range slices.Sorted(maps.Keys(s.Procs)) {
				fmt.Fprintf(w, "calls %s\t%d\n", k, s.Procs[k].Calls)
			}
			for _, d := range slices.Sorted(maps.Keys(s.Devices)) {
				maps.DeleteFunc(s.Devices[d], func(_ string, n uint64) bool { return n == 0 })
				counts(w, "device "+d, s.Devices[d])
			}
		}),
	}
}

func counts(w io.Writer, what string, m map[string]uint64) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(w, "%s %s\t%d\n", what, k, m[k])
	}
}

// lateFile creates or truncates its file at the first Write. If a server refuses a capture it sends
// no byte, and the file stays as it is.
type lateFile struct {
	name string
	f    *os.File
}

// Write implements io.Writer.
func (l *lateFile) Write(p []byte) (int, error) {
	if l.f == nil {
		f, err := os.Create(l.name)
		if err != nil {
			return 0, err
		}
		l.f = f
	}
	return l.f.Write(p)
}

func (l *lateFile) close() error {
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}

func (t *tool) capture() *cobra.Command {
	var file, peer, qpn string
	var spec control.CaptureSpec
	var limit time.Duration
	c := &cobra.Command{
		Use:   "capture",
		Short: "Record the RoCE packets of the server as a pcap file",
		Long: `Record the RoCE packets that the server's devices in user space send and receive, or
one of them with --device, as a pcap file for wireshark and tshark. The server records
the packets, so no privilege is needed beyond access to the control socket. The capture
ends after --for, after --count packets, or at an interrupt. --peer and --qp choose
packets. Packets of the connection manager belong to no queue pair.`,
		Example: `  rstorectl capture -w roce.pcap --for 10s
  rstorectl capture -w roce.pcap --peer 10.0.0.9 --snap 128 --count 10000`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if file == "" {
				return cli.Usagef("name the file to write with -w FILE, or -w - for standard output")
			}
			if peer != "" {
				a, err := netip.ParseAddr(peer)
				if err != nil {
					return cli.Usagef("--peer: %q is not an IP address", peer)
				}
				spec.Peer = a
			}
			if qpn != "" {
				n, err := parseQPN(qpn)
				if err != nil {
					return err
				}
				spec.QPN = n
			}
			if spec.Packets < 0 || spec.Snap < 0 {
				return cli.Usagef("--count and --snap are not negative")
			}
			out := t.g.Out
			if file != "-" {
				f := &lateFile{name: file}
				defer func() { err = errors.Join(err, f.close()) }()
				out = f
			}
			ctx, stop := untilSignal(cmd, limit)
			defer stop()
			n := &counter{w: out}
			err = t.daemon().Capture(ctx, spec, n)
			if !t.g.Quiet && (err == nil || errors.Is(err, context.DeadlineExceeded)) {
				fmt.Fprintf(t.g.Err, "captured %s\n", size(n.n))
			}
			return err
		},
	}
	c.Flags().StringVarP(&file, "write", "w", "", "`FILE` to write, - for standard output")
	c.Flags().StringVar(&peer, "peer", "", "`ADDR` of the host whose packets to take, both ways")
	c.Flags().StringVar(&qpn, "qp", "", "`QPN` of the server's queue pair whose packets to take, both ways")
	c.Flags().IntVarP(&spec.Packets, "count", "c", 0, "end after `N` packets")
	c.Flags().IntVarP(&spec.Snap, "snap", "s", 0, "keep the first `BYTES` of each packet, 0 for all")
	c.Flags().StringVar(&spec.Device, "device", "", "`ADDR` of the server's device, in place of all devices in user space")
	c.Flags().DurationVar(&limit, "for", 0, "`DURATION` to record, 0 until interrupted")
	return c
}

// counter counts the bytes that pass through it.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func (t *tool) idmap() *cobra.Command {
	return group("idmap", "What the server knows of users, groups and hosts", &cobra.Command{
		Use:   "flush",
		Short: "Let the server look up users, groups and names of clients again",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.daemon().FlushIDMap(cmd.Context())
		},
	})
}

func (t *tool) reload() *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Let the server read its configuration again (like SIGHUP)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := t.daemon()
			if err := d.Reload(cmd.Context()); err != nil {
				return err
			}
			x, err := d.Drift(cmd.Context())
			if err != nil {
				return fmt.Errorf("the configuration was read; whether an applied file stands in its place is unknown: %w", err)
			}
			if t.g.Output != cli.FormatTable {
				return nil
			}
			printShadowed(t.g.Out, &x)
			return nil
		},
	}
}

func (t *tool) logLevel() *cobra.Command {
	return &cobra.Command{
		Use:       "log-level LEVEL",
		Short:     "Change the server's log level until its next start or reload",
		Args:      cli.Args(cobra.ExactArgs(1)),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.daemon().SetLogLevel(cmd.Context(), args[0])
		},
	}
}
