package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
)

// demo is one run of it.
type demo struct {
	bin  string // directory of the two commands
	dir  string // everything that is made is in here
	host string // the server's address
	size int64  // of the large file
	src  string // the tree to copy
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	bin := f.String("bin", "bin", "directory of rstored and rstorectl")
	tmp := f.String("tmp", os.TempDir(), "directory for the copies, about five times the size of the large file")
	size := f.Int64("size", 1<<30, "size of the large file in bytes")
	src := f.String("tree", "", "tree to copy (default: the source of the Go toolchain)")
	if err := f.Parse(args); err != nil {
		return err
	}
	abs, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	d := &demo{bin: abs, size: *size, src: *src}
	if d.src == "" {
		out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("go env GOROOT: %w", err)
		}
		d.src = filepath.Join(strings.TrimSpace(string(out)), "src")
	}
	if d.src, err = filepath.EvalSymlinks(d.src); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp(*tmp, "rstored-demo-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(d.dir) }()
	// An address of loopback that nobody else is likely to use.
	d.host = fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	return d.run(ctx)
}

func (d *demo) run(ctx context.Context) error {
	for _, sub := range []string{"export", "back"} {
		if err := os.Mkdir(d.path(sub), 0o755); err != nil {
			return err
		}
	}
	fmt.Printf("making a file of %s and reading %s\n", amount(d.size), d.src)
	if err := random(d.path("big"), d.size); err != nil {
		return err
	}
	tree, treeBytes, err := scan(ctx, d.src)
	if err != nil {
		return err
	}
	big, _, err := scan(ctx, d.path("big"))
	if err != nil {
		return err
	}
	stop, err := d.serve(ctx)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Printf("rstored serves %s on %s\n\n", d.path("export"), d.host)
	fmt.Printf("%-5s %-30s %10s %9s %12s %9s %s\n", "", "copy", "bytes", "seconds", "MB/s", "by RDMA", "SHA-256")
	items := []item{
		{"tree", fmt.Sprintf("tree of %d names", len(tree)), d.src, tree, treeBytes},
		{"big", "large file", d.path("big"), big, d.size},
	}
	for _, carrier := range []string{"rdma", "tcp"} {
		for _, it := range items {
			if err := d.copy(ctx, carrier, it); err != nil {
				return fmt.Errorf("%s over %s: %w", it.label, carrier, err)
			}
		}
	}
	fmt.Println("\neverything that was copied in and out is the same as before")
	return nil
}

// item is something to copy.
type item struct {
	name, label, src string
	want             content
	bytes            int64
}

// copy copies an item in and out, checks both copies and removes them.
func (d *demo) copy(ctx context.Context, carrier string, it item) error {
	url := fmt.Sprintf("nfs+%s://%s/export/%s", carrier, d.host, it.name)
	back := d.path("back", it.name)
	served := d.path("export", it.name)
	defer func() { _ = os.RemoveAll(served) }()
	defer func() { _ = os.RemoveAll(back) }()
	for _, dir := range []struct {
		label, dst string
		args       []string
	}{
		{"in", served, []string{"put", "-r", it.src, url}},
		{"out", back, []string{"get", "-r", url, back}},
	} {
		before, err := d.stats(ctx)
		if err != nil {
			return err
		}
		begin := time.Now()
		if _, err := d.ctl(ctx, dir.args...); err != nil {
			return err
		}
		took := time.Since(begin).Seconds()
		after, err := d.stats(ctx)
		if err != nil {
			return err
		}
		got, _, err := scan(ctx, dir.dst)
		if err != nil {
			return err
		}
		if err := same(it.want, got); err != nil {
			return err
		}
		share := "-"
		if carrier == "rdma" {
			placed := after.RDMAWriteBytes + after.RDMAReadBytes - before.RDMAWriteBytes - before.RDMAReadBytes
			share = fmt.Sprintf("%.1f %%", 100*min(1, float64(placed)/float64(it.bytes)))
		}
		fmt.Printf("%-5s %-30s %10s %9.2f %12.1f %9s %s\n", carrier, it.label+", "+dir.label, amount(it.bytes), took,
			float64(it.bytes)/1e6/took, share, "equal")
	}
	return nil
}

func (d *demo) path(elem ...string) string { return filepath.Join(append([]string{d.dir}, elem...)...) }

// serve starts the server and returns how to stop it.
func (d *demo) serve(ctx context.Context) (stop func(), err error) {
	var log bytes.Buffer
	c := exec.Command(filepath.Join(d.bin, "rstored"),
		"--config", os.DevNull,
		"--export", d.path("export")+"(rw,no_root_squash)",
		"--rdma-listen", d.host+":20049",
		"--tcp-listen", d.host+":2049",
		"--state-dir", d.path("state"),
		"--control", d.path("control.sock"))
	c.Stderr = &log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := c.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	var why error // valid once ended is closed
	go func() {
		why = c.Wait()
		close(ended)
	}()
	stop = func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		<-ended
	}
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		select {
		case <-ended:
			return nil, fmt.Errorf("rstored ended: %w\n%s", why, log.String())
		case <-ctx.Done():
			stop()
			return nil, ctx.Err()
		default:
		}
		if _, err := d.ctl(ctx, "status"); err == nil {
			return stop, nil
		}
	}
	stop()
	return nil, errors.New("rstored does not answer on its control socket\n" + log.String())
}

// ctl runs rstorectl.
func (d *demo) ctl(ctx context.Context, args ...string) ([]byte, error) {
	var out, errOut bytes.Buffer
	c := exec.CommandContext(ctx, filepath.Join(d.bin, "rstorectl"),
		append([]string{"--quiet", "--control", d.path("control.sock")}, args...)...)
	c.Stdout, c.Stderr = &out, &errOut
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("rstorectl %s: %w\n%s", strings.Join(args, " "), err, errOut.String())
	}
	return out.Bytes(), nil
}

func (d *demo) stats(ctx context.Context) (s control.Stats, err error) {
	out, err := d.ctl(ctx, "stats", "-o", "json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(out, &s)
}

func amount(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d B", n)
}
