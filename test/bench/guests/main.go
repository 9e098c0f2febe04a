// Command guests compares rstored with the Linux kernel's own server for the client that
// counts: the kernel's, over RDMA. Guests (see test/guest) are the client and the server:
//
//	knfsd   the kernel's server over rdma_rxe in the second guest
//	guest   rstored over its software RC in the same guest, beside it
//	host    rstored on the host, where it is one process among others
//
// fio in the first guest reads and writes past the page cache of the client what the server
// has in its own. docs/measuring.md says how to read what it prints.
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
	"time"

	"github.com/rstored/rstored/test/bench/compare"
	"github.com/rstored/rstored/test/guest"
)

// options are the flags.
type options struct {
	rounds int
	took   time.Duration
	rows   *regexp.Regexp
	merge  bool
	keep   string
	compare.Files
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "how often everything is measured; ratios are medians of the rounds")
	flag.DurationVar(&o.took, "time", 2*time.Second,
		"how long each measurement takes, without starting fio; whole seconds")
	rows := flag.String("rows", "", "measure rows alone whose text matches this regular `expression`")
	flag.BoolVar(&o.merge, "merge", false, "keep what is in the results already and is not measured now")
	flag.StringVar(&o.JSON, "json", "", "write the results to this `file`")
	flag.StringVar(&o.SVG, "svg", "", "draw the ratios in this `file`")
	flag.StringVar(&o.Markdown, "markdown", "", "write the table to this `file`")
	flag.StringVar(&o.keep, "keep", filepath.Join("out", "bench-guest"),
		"`directory` for consoles and logs if a guest fails")
	flag.Parse()
	var err error
	if o.rows, err = regexp.Compile("(?i)" + *rows); err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		err = run(ctx, &o)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guests:", err)
		os.Exit(1)
	}
}

// run builds, measures, and reports.
func run(ctx context.Context, o *options) error {
	if o.took < time.Second || o.took%time.Second != 0 {
		return fmt.Errorf("fio counts in seconds, not in %v", o.took)
	}
	if os.Getuid() != 0 {
		return errors.New("needs root, for namespaces and taps")
	}
	cache, err := guest.Cache()
	if err != nil {
		return err
	}
	r := newReport(o)
	if o.merge {
		if err := r.Recall(o.JSON); err != nil {
			return err
		}
	}
	bin, err := os.MkdirTemp("", "rstored-guests-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/rstored", "./cmd/rstorectl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // the guest's libraries are others
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	runner := &guest.Runner{Cache: cache, Bin: bin, Keep: o.keep}
	if err := measure(ctx, o, runner, r); err != nil {
		return err
	}
	r.Host.Describe(bin)
	r.Host.Version()
	r.Host.Versions["guests with Linux"] = strings.TrimPrefix(runner.Kernel(), "Linux version ")
	r.compare()
	return o.WriteRuns(&r.Report, page)
}

// page writes the table of all processors.
func page(runs compare.Runs, w io.Writer) error {
	runs.Again(rows())
	return runs.Markdown(w, &compare.Page{
		Title: "The kernel's client in a guest", By: "make bench-guest",
		Explained: "../measuring.md#the-kernels-client-in-guests", Picture: "guest.svg", Client: noClient, Beside: onTheHost,
	})
}

func noClient(compare.Variant) string  { return "" }
func onTheHost(compare.Variant) string { return "on the host" }

// report is that of the guests.
type report struct{ compare.Report }

func newReport(o *options) *report {
	return &report{compare.Report{
		Rounds: o.rounds, Seconds: o.took.Seconds(), Measured: make(map[string]map[compare.Variant]*compare.Taken),
		Client: noClient, Beside: onTheHost, DrawBeside: true,
	}}
}

// compare makes the rows of what was measured, now and before.
func (r *report) compare() {
	for _, w := range rows() {
		if all := r.Measured[w.Experiment]; all != nil {
			r.Rows = append(r.Rows, w.Result(all))
		}
	}
}
