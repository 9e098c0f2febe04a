// Command load makes one kind of NFS call on one connection, as many at a time as it
// is told. It is the Go client's side of a comparison; ../libnfs/load.c is the same by
// libnfs.
//
//	load URL OP SIZE DEPTH SECONDS FILESIZE
//	load idle ADDR PATH CONNECTIONS
//
// Below URL there are a file of FILESIZE bytes; names, a directory with name-000000 to
// name-000999; and for readdir large, a directory of any size. load prints begin when it
// begins to measure, after a quarter of SECONDS, end when it is done, and what it
// measured as JSON.
//
// idle opens connections over RDMA, looks PATH up on each, prints begin, and keeps them
// until its input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// names is how many files there are to look up.
const names = 1000

// result is what one run got.
type result struct {
	Ops     uint64  `json:"ops"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"` // seconds of this process
	P50     float64 `json:"p50"` // seconds
	P99     float64 `json:"p99"`
	Allocs  float64 `json:"allocs"` // of this process, per operation
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 4 && args[0] == "idle" {
		return idle(ctx, args[1], args[2], int(number(args[3])))
	}
	if len(args) != 6 {
		return fmt.Errorf("usage: load URL OP SIZE DEPTH SECONDS FILESIZE, or load idle ADDR PATH CONNECTIONS")
	}
	seconds, err := strconv.ParseFloat(args[4], 64)
	if err != nil {
		return err
	}
	l, err := newLoad(ctx, args[0], args[1], int(number(args[2])), int(number(args[3])), number(args[5]))
	if err != nil {
		return err
	}
	r, err := l.measure(ctx, time.Duration(seconds*float64(time.Second)))
	if err != nil {
		return fmt.Errorf("%s at %s: %w", args[1], args[0], err)
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 0, 63)
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(2)
	}
	return n
}

// connect makes a client as root, of version 3.
func connect(url string, depth int) (*client.Client, client.URL, error) {
	u, err := client.ParseURL(url)
	if err != nil {
		return nil, u, err
	}
	d := &dial.Dialer{Version: client.Version3, Depth: depth, Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "load"}}
	if p := os.Getenv("MOUNTPORT"); p != "" {
		d.MountPort = uint16(number(p))
	}
	return d.Client(u), u, nil
}

// load is one kind of call.
type load struct {
	c         *client.Client
	file, dir client.Handle
	size      int
	depth     int
	blocks    uint64
	next      atomic.Uint64
	do        func(ctx context.Context, w *worker) error
	transfers bool

	phase atomic.Int32 // 0 to get warm, 1 measured, 2 over
	ops   atomic.Uint64
}

// done counts an operation that is done while it is measured.
func (l *load) done() {
	if l.phase.Load() == 1 {
		l.ops.Add(1)
	}
}

// worker makes one call after the other.
type worker struct {
	buf  []byte
	rnd  *rand.Rand
	name []byte
	took []time.Duration
}

func newLoad(ctx context.Context, url, op string, size, depth int, fileSize uint64) (*load, error) {
	c, u, err := connect(url, depth)
	if err != nil {
		return nil, err
	}
	l := &load{c: c, size: size, depth: depth, blocks: max(1, fileSize/uint64(max(size, 1)))}
	dir := "names"
	switch op {
	case "read", "random-read":
		l.do, l.transfers = l.read(op != "read"), true
	case "write", "random-write":
		l.do, l.transfers = l.write(op != "write"), true
	case "getattr":
		l.do = func(ctx context.Context, _ *worker) error {
			_, err := c.GetAttr(ctx, l.file)
			l.done()
			return err
		}
	case "lookup":
		l.do = func(ctx context.Context, w *worker) error {
			w.name = fmt.Appendf(w.name[:0], "name-%06d", w.rnd.IntN(names))
			_, err := c.Lookup(ctx, l.dir, string(w.name))
			l.done()
			return err
		}
	case "create":
		l.do = l.create
	case "readdir":
		dir = "large"
		l.do = func(ctx context.Context, _ *worker) error { // an entry is an operation
			return c.ReadDir(ctx, l.dir, func(*client.Entry) error { l.done(); return nil })
		}
	default:
		return nil, fmt.Errorf("there is no operation %q", op)
	}
	// Not by the whole path: go-nfs lets one mount what is not there, and gives its root.
	root, err := c.Resolve(ctx, u.Path)
	if err != nil {
		return nil, err
	}
	f, err := c.Lookup(ctx, root.Handle, "file")
	if err != nil {
		return nil, err
	}
	d, err := c.Lookup(ctx, root.Handle, dir)
	if err != nil {
		return nil, err
	}
	l.file, l.dir = f.Handle, d.Handle
	return l, nil
}

// offset of the next transfer.
func (l *load) offset(w *worker, random bool) (n, off uint64) {
	n = l.next.Add(1) - 1
	if random {
		return n, w.rnd.Uint64N(l.blocks) * uint64(l.size)
	}
	return n, n % l.blocks * uint64(l.size)
}

func (l *load) read(random bool) func(context.Context, *worker) error {
	return func(ctx context.Context, w *worker) error {
		_, off := l.offset(w, random)
		n, _, err := l.c.Read(ctx, l.file, w.buf, off)
		if err == nil && n != l.size {
			err = fmt.Errorf("%d bytes at %d", n, off)
		}
		l.done()
		return err
	}
}

// write ends each pass over the file with a COMMIT.
func (l *load) write(random bool) func(context.Context, *worker) error {
	return func(ctx context.Context, w *worker) error {
		n, off := l.offset(w, random)
		res, err := l.c.Write(ctx, l.file, w.buf, off, blockstore.Unstable)
		if err == nil && res.N != l.size {
			err = fmt.Errorf("%d bytes at %d", res.N, off)
		}
		if err == nil && (n+1)%l.blocks == 0 {
			_, err = l.c.Commit(ctx, l.file, 0, 0)
		}
		l.done()
		return err
	}
}

// create makes a file and removes it.
func (l *load) create(ctx context.Context, _ *worker) error {
	name := fmt.Sprintf("new-%d-%08d", os.Getpid(), l.next.Add(1))
	mode := uint32(0o644)
	if _, err := l.c.Create(ctx, l.dir, name, blockstore.Unchecked, &blockstore.SetAttr{Mode: &mode}, [nfs3.VerifierLen]byte{}); err != nil {
		return err
	}
	err := l.c.Remove(ctx, l.dir, name)
	l.done()
	return err
}

// measure runs for a quarter of d to get warm and for d to be measured.
func (l *load) measure(ctx context.Context, d time.Duration) (r result, err error) {
	defer func() { _ = l.c.Close() }()
	workers := make([]*worker, l.depth)
	errs := make(chan error, l.depth)
	var wg sync.WaitGroup
	arena := make([]byte, l.depth*l.size)
	if l.transfers {
		m, err := l.c.Register(arena)
		if err != nil {
			return r, err
		}
		defer m.Close()
	}
	for i := range workers {
		w := &worker{buf: arena[i*l.size : (i+1)*l.size], rnd: rand.New(rand.NewPCG(1, uint64(i))), took: make([]time.Duration, 0, 1<<16)}
		workers[i] = w
		wg.Go(func() {
			for {
				p := l.phase.Load()
				if p == 2 {
					return
				}
				began := time.Now()
				if err := l.do(ctx, w); err != nil {
					errs <- err
					l.phase.Store(2)
					return
				}
				if p == 1 {
					w.took = append(w.took, time.Since(began))
				}
			}
		})
	}
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case err = <-errs:
		}
	}
	wait(d / 4)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fmt.Println("begin")
	cpu0, began := cpu(), time.Now()
	if err == nil {
		l.phase.CompareAndSwap(0, 1)
		wait(d)
	}
	r.Ops, r.Seconds, r.CPU = l.ops.Load(), time.Since(began).Seconds(), cpu()-cpu0
	fmt.Println("end")
	runtime.ReadMemStats(&after)
	l.phase.Store(2)
	wg.Wait()
	if err != nil {
		return r, err
	}
	if l.transfers {
		r.Bytes = r.Ops * uint64(l.size)
	}
	r.Allocs = float64(after.Mallocs-before.Mallocs) / float64(max(r.Ops, 1))
	var all []time.Duration
	for _, w := range workers {
		all = append(all, w.took...)
	}
	if slices.Sort(all); len(all) > 0 {
		r.P50, r.P99 = all[len(all)/2].Seconds(), all[len(all)*99/100].Seconds()
	}
	return r, nil
}

// cpu is the processor time that this process has used, in seconds.
func cpu() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
