// Command versus compares rstored with the servers that one could use instead, and its
// transport with bare datagrams: side by side on one host, in one run, as ratios.
// docs/measuring.md says how to read what it prints.
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
	"strings"
	"syscall"
	"time"

	"github.com/rstored/rstored/test/bench/compare"
)

// options are the flags.
type options struct {
	rounds int
	took   time.Duration
	rows   *regexp.Regexp
	disk   string
	compare.Files
	log     string
	entries int
	files   int
	stage   string
	scale   *regexp.Regexp // nil compares
	ceph    bool
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
	flag.IntVar(&o.files, "files", 12800, "files of the tree that is copied")
	flag.StringVar(&o.JSON, "json", "", "write the results to this `file`")
	flag.StringVar(&o.SVG, "svg", "", "draw the ratios in this `file`")
	flag.StringVar(&o.Markdown, "markdown", "", "write the table to this `file`")
	flag.StringVar(&o.log, "log", "", "write what the servers say to this `file`")
	scale := flag.String("scale", "",
		"measure how cost grows instead, parts that match this regular `expression`; -json is read first, and keeps what "+
			"is there of other parts")
	flag.BoolVar(&o.ceph, "ceph", false, "compare in front of CephFS, inside of test/ceph/run")
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
	tools, err := build(ctx, dir, o)
	if err != nil {
		return err
	}
	stage := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"-stage", dir}, os.Args[1:]...)...)
	stage.Stdout, stage.Stderr = os.Stdout, os.Stderr
	stage.SysProcAttr = namespaces(o.ceph)
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
		return writeScaling(o, b)
	}
	var r compare.Report
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	versions(ctx, &r.Host, tools)
	r.Client, r.Beside = client, beside
	return o.WriteRuns(&r, o.page)
}

// page writes the page of the table.
func (o *options) page(runs compare.Runs, w io.Writer) error {
	if o.ceph {
		runs.Again(cephRows())
		return runs.Markdown(w, &compare.Page{
			Title: "In front of CephFS", By: "make bench-ceph", Explained: "../measuring.md#compared",
			More:   fmt.Sprintf("\nnfs-ganesha's configuration:\n\n```\n%s```\n", ganeshaCeph("PLUGINS", "CONF")),
			Client: client, Beside: beside,
		})
	}
	runs.Again(rows())
	return runs.Markdown(w, &compare.Page{
		Title: "Compared", By: "make bench", Explained: "../measuring.md#compared", Picture: "results.svg",
		More: fmt.Sprintf("\nnfs-ganesha's configuration:\n\n```\n%s```\n", ganeshaConfig("EXPORT")), Client: client,
		Beside: beside,
	})
}

// client is the client of a peer of NFS.
func client(v compare.Variant) string {
	server, _, client := v.Split()
	switch {
	case server == "udp":
		return ""
	case client == "go":
		return "Go client"
	case goClient(client):
		return "Go client, " + client
	}
	return client
}

// beside is the carrier of what is measured beside a row.
func beside(v compare.Variant) string {
	_, carrier, _ := v.Split()
	return "over " + strings.ToUpper(carrier)
}

// tools are the versions that the build knows.
type tools struct{ gonfs string }

// versions fills in those of the peers.
func versions(ctx context.Context, h *compare.Host, t *tools) {
	h.Versions = make(map[string]string)
	if t.gonfs != "" {
		h.Versions["go-nfs"] = t.gonfs
	}
	for _, p := range []string{"nfs-ganesha", "libnfs-dev"} {
		h.Versions[p] = "not installed"
		if out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version}", p).Output(); err == nil &&
			len(out) > 0 {
			h.Versions[p] = compare.FirstLine(out)
		}
	}
	h.Version()
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
func writeScaling(o *options, measured []byte) error {
	s := make(scaling)
	if err := json.Unmarshal(measured, &s); err != nil {
		return err
	}
	for _, r := range s {
		r.Host.Version()
	}
	if err := s.merge(o.JSON); err != nil {
		return err
	}
	return o.Write(s, s.markdown)
}

// build makes the programs that are compared, in bin below dir; if costs are to be measured, ours
// alone.
func build(ctx context.Context, dir string, o *options) (*tools, error) {
	ours := o.scale != nil
	bin, err := filepath.Abs(filepath.Join(dir, "bin"))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		return nil, err
	}
	if o.ceph {
		return &tools{}, buildCeph(ctx, bin)
	}
	const versus = "./bench/versus/"
	commands := [][]string{
		{"build", "-o", bin + "/", "./cmd/rstored", "./cmd/rstorectl"},
		{"build", "-C", tests, "-o", bin + "/", versus + "load"},
	}
	if !ours {
		commands = append(commands,
			[]string{"build", "-C", tests, "-o", bin + "/", versus + "gonfs", versus + "udp"},
			[]string{"test", "-c", "-o", bin + "/roce.test", "./rdma/roce"},
			[]string{"test", "-C", tests, "-c", "-o", bin + "/nfs.test", "./bench"})
	}
	for _, args := range commands {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("go %s: %w", args[0], err)
		}
	}
	t := &tools{}
	if ours {
		return t, nil
	}
	libnfs := filepath.Join(tests, versus, "libnfs", "load.c")
	// Without the library there is one client less.
	cc := exec.CommandContext(ctx, "gcc", "-O2", "-o", filepath.Join(bin, "load-libnfs"), libnfs, "-lnfs")
	if out, err := cc.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "libnfs is left out: %v: %s\n", err, compare.FirstLine(out))
	}
	gonfs, err := exec.CommandContext(ctx, "go", "list", "-C", tests, "-m", "-f", "{{.Version}}",
		"github.com/willscott/go-nfs").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	t.gonfs = compare.FirstLine(gonfs)
	return t, nil
}
