// Command versus compares rstored with the servers that one could use instead, and its
// transport with bare datagrams: side by side on one host, in one run, as ratios.
// docs/performance.md says how to read what it prints.
//
// It builds what it compares, runs it in network, mount and process namespaces of its
// own, and leaves nothing behind. The peers come from Debian's packages (see install)
// and Go modules; a peer that is not there is a row that says so.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	rounds                   int
	took                     time.Duration
	rows                     *regexp.Regexp
	disk                     string
	json, svg, markdown, log string
	entries                  int
	stage                    string
	scale                    *regexp.Regexp // nil compares
}

func main() {
	// The stage is killed with the thread that started it.
	runtime.LockOSThread()
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often everything is measured; ratios are medians of the rounds")
	flag.DurationVar(&o.took, "time", 2*time.Second, "how long each measurement takes, without getting warm")
	rows := flag.String("rows", "", "measure rows alone whose text matches this regular `expression`")
	flag.StringVar(&o.disk, "disk", os.TempDir(), "`directory` of the file system of the rows about a disk")
	flag.IntVar(&o.entries, "entries", 100000, "entries of the directory that is listed")
	flag.StringVar(&o.json, "json", "", "write the results to this `file`")
	flag.StringVar(&o.svg, "svg", "", "draw the ratios in this `file`")
	flag.StringVar(&o.markdown, "markdown", "", "write the table to this `file`")
	flag.StringVar(&o.log, "log", "", "write what the servers say to this `file`")
	scale := flag.String("scale", "", "measure how cost grows instead, parts that match this regular `expression`; -json is read first, and keeps what is there of other parts")
	flag.StringVar(&o.stage, "stage", "", "for its own use")
	flag.Parse()
	var err, bad error
	o.rows, err = regexp.Compile("(?i)" + *rows)
	if *scale != "" {
		o.scale, bad = regexp.Compile(*scale)
	}
	if err = errors.Join(err, bad); err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		if o.stage != "" {
			err = onStage(ctx, &o)
		} else {
			err = run(ctx, &o)
		}
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "versus:", err)
		os.Exit(1)
	}
}

// run builds, has the stage measure, and reports.
func run(ctx context.Context, o *options) error {
	dir, err := os.MkdirTemp(o.disk, "rstored-versus-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tools, err := build(ctx, dir, o.scale != nil)
	if err != nil {
		return err
	}
	stage := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"-stage", dir}, os.Args[1:]...)...)
	stage.Stdout, stage.Stderr = os.Stdout, os.Stderr
	stage.SysProcAttr = namespaces()
	err = stage.Run()
	if o.log != "" {
		err = errors.Join(err, copyFile(o.log, filepath.Join(dir, "log")))
	}
	if err != nil {
		return fmt.Errorf("measuring: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		return err
	}
	if o.scale != nil {
		return writeScaling(ctx, o, tools, b)
	}
	var r report
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	r.Host.versions(ctx, tools)
	return write(o, &r)
}

// results are what is measured, in the forms that it is written in.
type results interface {
	text(io.Writer)
	json(io.Writer) error
	markdown(io.Writer) error
	plot(io.Writer) error
	failed() error
}

// write prints the table and writes the files that are asked for.
func write(o *options, r results) error {
	r.text(os.Stdout)
	for _, f := range []struct {
		name  string
		write func(io.Writer) error
	}{{o.json, r.json}, {o.markdown, r.markdown}, {o.svg, r.plot}} {
		if f.name == "" {
			continue
		}
		if err := writeFile(f.name, f.write); err != nil {
			return err
		}
	}
	return r.failed()
}

func writeFile(name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// writeScaling merges what was measured into what is known, and writes the files that are
// asked for.
func writeScaling(ctx context.Context, o *options, t *tools, measured []byte) error {
	s := make(scaling)
	if err := json.Unmarshal(measured, &s); err != nil {
		return err
	}
	for _, r := range s {
		r.Host.versions(ctx, t)
		r.Host.Versions = map[string]string{"rstored": r.Host.Versions["rstored"]}
	}
	if err := s.merge(o.json); err != nil {
		return err
	}
	return write(o, s)
}

// build makes the programs that are compared, in bin below dir; ours alone makes no
// others.
func build(ctx context.Context, dir string, ours bool) (*tools, error) {
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return nil, err
	}
	const versus = module + "/test/bench/versus/"
	if ours {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", bin+"/", module+"/cmd/rstored", module+"/cmd/rstorectl", versus+"load")
		cmd.Stderr = os.Stderr
		return &tools{}, cmd.Run()
	}
	for _, args := range [][]string{
		{"build", "-o", bin + "/", module + "/cmd/rstored", module + "/cmd/rstorectl", versus + "load", versus + "gonfs", versus + "udp"},
		{"test", "-c", "-o", bin + "/roce.test", module + "/rdma/roce"},
		{"test", "-c", "-o", bin + "/nfs.test", module + "/test/bench"},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("go %s: %w", args[0], err)
		}
	}
	t := &tools{}
	source, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", versus+"load").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	libnfs := filepath.Join(filepath.Dir(string(source)), "libnfs", "load.c")
	// Without the library there is one client less.
	cc := exec.CommandContext(ctx, "gcc", "-O2", "-o", filepath.Join(bin, "load-libnfs"), libnfs, "-lnfs")
	if out, err := cc.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "libnfs is left out: %v: %s\n", err, firstLine(out))
	}
	gonfs, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", "github.com/willscott/go-nfs").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	t.gonfs = firstLine(gonfs)
	return t, nil
}
