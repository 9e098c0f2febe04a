// Command verbs compares what measures RDMA on a device of the kernel, in one run and in turns:
//
//	perftest  ib_write_bw and the others, in C on libibverbs
//	verbs     rstorectl perf --provider verbs, in Go on libibverbs
//	soft      rstorectl perf --provider soft, on the stack in user space
//
// The first two once polling for completions, and once sleeping until there is an event, each
// beside its like.
//
// Two guests (see test/guest) are the client and the server. The first two are on
// rdma_rxe, the third on an interface beside it, of the same kind and with the same MTU. Needs
// root and what test/guest/build has made. docs/measuring.md says how to read the table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/rstored/rstored/test/bench/compare"
	"github.com/rstored/rstored/test/guest"
)

// options are the flags.
type options struct {
	rounds int
	rows   *regexp.Regexp
	merge  bool
	keep   string
	compare.Files
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "how often everything is measured; ratios are medians of the rounds")
	rows := flag.String("rows", "", "measure rows alone whose text matches this regular `expression`")
	flag.BoolVar(&o.merge, "merge", false, "keep what is in the results already and is not measured now")
	flag.StringVar(&o.JSON, "json", "", "write the results to this `file`")
	flag.StringVar(&o.Markdown, "markdown", "", "write the table to this `file`")
	flag.StringVar(&o.keep, "keep", filepath.Join("out", "bench-verbs"),
		"`directory` for consoles and logs if a guest fails")
	flag.Parse()
	var err error
	if o.rows, err = regexp.Compile("(?i)" + *rows); err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		err = run(ctx, &o)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "verbs:", err)
		os.Exit(1)
	}
}

// run builds, measures, and reports.
func run(ctx context.Context, o *options) error {
	if os.Getuid() != 0 {
		return errors.New("needs root, for namespaces and taps")
	}
	cache, err := guest.Cache()
	if err != nil {
		return err
	}
	bin, err := os.MkdirTemp("", "rstored-verbs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	build := exec.CommandContext(ctx, "go", "build", "-tags", "rdmacore", "-o", bin, "./cmd/rstorectl")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	r := &report{compare.Report{
		Rounds: o.rounds, Measured: make(map[string]map[compare.Variant]*compare.Taken),
		Client: noClient, Beside: besides,
	}}
	if o.merge {
		if err := r.Recall(o.JSON); err != nil {
			return err
		}
	}
	runner := &guest.Runner{Cache: cache, Bin: bin, Keep: o.keep}
	r.Host.Version()
	if err := measure(ctx, o, runner, r); err != nil {
		return err
	}
	r.Host.Describe(bin)
	r.Host.Versions["guests with Linux"] = strings.TrimPrefix(runner.Kernel(), "Linux version ")
	for _, w := range rows() {
		if all := r.Measured[w.Experiment]; all != nil {
			r.Rows = append(r.Rows, w.Result(all))
		}
	}
	// perftest is in every guest, so that all rows can be measured.
	for _, x := range r.Rows {
		if x.Missing != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", x.Measure, x.Missing))
		}
	}
	return errors.Join(err, o.WriteRuns(&r.Report, page))
}

// report is that of the three side by side.
type report struct{ compare.Report }

func noClient(compare.Variant) string { return "" }
func besides(compare.Variant) string  { return "soft" }

// page writes the table and what it means.
func page(runs compare.Runs, w io.Writer) error {
	runs.Again(rows())
	return runs.Markdown(w, &compare.Page{
		Title: "rstorectl perf beside perftest", By: "make bench-verbs", Explained: "../measuring.md#beside-perftest",
		Client: noClient, Beside: besides, More: fmt.Sprintf(meaning, mtu, pathMTU, depth),
	})
}

// meaning is what the page says below the table.
const meaning = `
The peer is perftest on rdma_rxe; rstored is the provider verbs on rdma_rxe, and beside it the provider soft on an
interface of the same kind. "Polling": both programs look for completions in a loop. "Events": both sleep until there is
one. soft always sleeps.

Bandwidths are in MiB/s, as in perftest; more is better. Latencies are half the round trip, and the whole of it for
READs; less is better. Two guests with one processor each are on one bridge, with interfaces of MTU %d (path MTU %d).
%d requests are under way at once where bandwidth is measured, and one where latency is. A guest is a User-Mode Linux
process on a host of two cores. The rows compare the three with each other; they are not the numbers of a network, of a
card, or of either program on a host of its own.
`
