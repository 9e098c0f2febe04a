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
	"slices"
	"strconv"
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

	rounds int
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	bin := f.String("bin", "bin", "directory of rstored and rstorectl")
	tmp := f.String("tmp", os.TempDir(), "directory for the copies, about five times the size of the large file")
	size := f.Int64("size", 1<<30, "size of the large file in bytes")
	src := f.String("tree", "", "tree to copy (default: the source of the Go toolchain)")
	rounds := f.Int("rounds", 3, "how often each copy is made, over RDMA and TCP in turns; times are medians")
	if err := f.Parse(args); err != nil {
		return err
	}
	abs, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	d := &demo{bin: abs, size: *size, src: *src, rounds: max(*rounds, 1)}
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
	fmt.Printf("%-28s %10s %18s %18s %8s %9s %s\n", "median of "+strconv.Itoa(d.rounds)+" copies", "bytes", "RDMA",
		"TCP", "RDMA/TCP", "by RDMA", "SHA-256")
	items := []item{
		{"tree", fmt.Sprintf("tree of %d names", len(tree)), d.src, tree, treeBytes},
		{"big", "large file", d.path("big"), big, d.size},
	}
	for _, it := range items {
		if err := d.compare(ctx, it); err != nil {
			return err
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

// taken is what the copies of an item have taken in one direction over one transport.
type taken struct {
	seconds []float64
	placed  uint64 // bytes by RDMA READ and WRITE in the last copy
}

// median returns the median of the times in seconds. There is at least one.
func (t *taken) median() float64 {
	slices.Sort(t.seconds)
	return t.seconds[len(t.seconds)/2]
}

func (t *taken) String(bytes int64) string {
	return fmt.Sprintf("%.2f s %5.0f MB/s", t.median(), float64(bytes)/1e6/t.median())
}

// compare copies an item in and out over RDMA and TCP. The transports take turns, because the first
// copy pays for files that are not in memory yet.
func (d *demo) compare(ctx context.Context, it item) error {
	var by [2][2]taken // of RDMA and of TCP, in and out
	for round := range 2 * d.rounds {
		n := (round + round/2) % 2 // RDMA TCP, TCP RDMA, RDMA TCP
		transport := [...]string{"rdma", "tcp"}[n]
		if err := d.copy(ctx, transport, it, &by[n]); err != nil {
			return fmt.Errorf("%s over %s: %w", it.label, transport, err)
		}
	}
	for way, label := range [...]string{"in", "out"} {
		rdma, tcp := &by[0][way], &by[1][way]
		share := 100 * min(1, float64(rdma.placed)/float64(it.bytes))
		fmt.Printf("%-28s %10s %18s %18s %8.2f %7.1f %% %s\n", it.label+", "+label, amount(it.bytes),
			rdma.String(it.bytes), tcp.String(it.bytes), tcp.median()/rdma.median(), share, "equal")
	}
	return nil
}

// copy copies an item in and out, checks both copies and removes them.
func (d *demo) copy(ctx context.Context, transport string, it item, by *[2]taken) error {
	url := fmt.Sprintf("nfs+%s://%s/export/%s", transport, d.host, it.name)
	back := d.path("back", it.name)
	served := d.path("export", it.name)
	defer func() { _ = os.RemoveAll(served) }()
	defer func() { _ = os.RemoveAll(back) }()
	for way, dir := range [...]struct {
		dst  string
		args []string
	}{
		{served, []string{"put", "-r", it.src, url}},
		{back, []string{"get", "-r", url, back}},
	} {
		before, err := d.stats(ctx)
		if err != nil {
			return err
		}
		syscall.Sync() // what was made and copied before
		begin := time.Now()
		if _, err := d.ctl(ctx, dir.args...); err != nil {
			return err
		}
		by[way].seconds = append(by[way].seconds, time.Since(begin).Seconds())
		after, err := d.stats(ctx)
		if err != nil {
			return err
		}
		by[way].placed = after.RDMAWriteBytes + after.RDMAReadBytes - before.RDMAWriteBytes - before.RDMAReadBytes
		got, _, err := scan(ctx, dir.dst)
		if err != nil {
			return err
		}
		if err := same(it.want, got); err != nil {
			return err
		}
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
