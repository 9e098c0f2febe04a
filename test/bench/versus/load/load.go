package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// load is one kind of call.
type load struct {
	op        string
	clients   []*client.Client
	file, dir client.Handle
	names     int // in dir
	size      int
	depth     int // of each client
	blocks    uint64
	next      atomic.Uint64
	do        func(ctx context.Context, w *worker) error
	transfers bool

	phase atomic.Int32 // 0 to get warm, 1 measured, 2 over
}

// done counts an operation that is done while it is measured.
func (l *load) done(w *worker) {
	if l.phase.Load() == 1 {
		w.ops.Add(1)
	}
}

// worker makes one call after the other.
type worker struct {
	c    *client.Client
	ops  atomic.Uint64
	buf  []byte
	rnd  *rand.Rand
	name []byte
	took []time.Duration
}

// newLoad finds what op works on below path; the first of the clients looks for it.
func newLoad(ctx context.Context, clients []*client.Client, path, op string, size, depth int, fileSize uint64) (*load,
	error,
) {
	l := &load{
		op: op, clients: clients, names: names, size: size, depth: depth,
		blocks: max(1, fileSize/uint64(max(size, 1))),
	}
	op, dir, _ := strings.Cut(op, ":")
	dir, n, given := strings.Cut(dir, ":")
	if given {
		l.names = int(number(n))
	}
	switch {
	case dir != "":
	case op == "readdir":
		dir = "large"
	default:
		dir = "names"
	}
	switch op {
	case "read", "random-read":
		l.do, l.transfers = l.read(op != "read"), true
	case "write", "random-write":
		l.do, l.transfers = l.write(op != "write"), true
	case "getattr":
		l.do = func(ctx context.Context, w *worker) error {
			_, err := w.c.GetAttr(ctx, l.file)
			l.done(w)
			return err
		}
	case "lookup":
		l.do = func(ctx context.Context, w *worker) error {
			w.name = fmt.Appendf(w.name[:0], "name-%06d", w.rnd.IntN(l.names))
			_, err := w.c.Lookup(ctx, l.dir, string(w.name))
			l.done(w)
			return err
		}
	case "create":
		l.do = l.create
	case "readdir":
		l.do = func(ctx context.Context, w *worker) error { // an entry is an operation
			return w.c.ReadDir(ctx, l.dir, func(*client.Entry) error {
				if l.done(w); l.phase.Load() == 2 {
					return errOver
				}
				return nil
			})
		}
	default:
		return nil, fmt.Errorf("there is no operation %q", op)
	}
	// Not by the whole path: go-nfs lets one mount what is not there, and gives its root.
	c := clients[0]
	root, err := c.Resolve(ctx, path)
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
		for p := w.buf; len(p) > 0; {
			part := p[:min(len(p), client.TransferMax)]
			n, _, err := w.c.Read(ctx, l.file, part, off)
			if err == nil && n != len(part) {
				err = fmt.Errorf("%d bytes at %d", n, off)
			}
			if err != nil {
				return err
			}
			p, off = p[n:], off+uint64(n)
		}
		l.done(w)
		return nil
	}
}

// write ends each pass over the file with a COMMIT.
func (l *load) write(random bool) func(context.Context, *worker) error {
	return func(ctx context.Context, w *worker) error {
		n, off := l.offset(w, random)
		for p := w.buf; len(p) > 0; {
			part := p[:min(len(p), client.TransferMax)]
			res, err := w.c.Write(ctx, l.file, part, off, blockstore.Unstable)
			if err == nil && res.N != len(part) {
				err = fmt.Errorf("%d bytes at %d", res.N, off)
			}
			if err != nil {
				return err
			}
			p, off = p[res.N:], off+uint64(res.N)
		}
		if (n+1)%l.blocks == 0 {
			if _, err := w.c.Commit(ctx, l.file, 0, 0); err != nil {
				return err
			}
		}
		l.done(w)
		return nil
	}
}

// create makes a file and removes it.
func (l *load) create(ctx context.Context, w *worker) error {
	name := fmt.Sprintf("new-%d-%08d", os.Getpid(), l.next.Add(1))
	mode := uint32(0o644)
	if _, err := w.c.Create(ctx, l.dir, name, blockstore.Unchecked, &blockstore.SetAttr{Mode: &mode},
		[nfs3.VerifierLen]byte{}); err != nil {
		return err
	}
	err := w.c.Remove(ctx, l.dir, name)
	l.done(w)
	return err
}

// measure runs for a quarter of d to get warm and for d to be measured.
func (l *load) measure(ctx context.Context, d time.Duration) (r result, err error) {
	defer func() {
		for _, c := range l.clients {
			_ = c.Close()
		}
	}()
	workers := make([]*worker, l.depth*len(l.clients)) // those of a client follow each other
	errs := make(chan error, len(workers))
	var wg sync.WaitGroup
	arena := make([]byte, len(workers)*l.size)
	for i, c := range l.clients {
		if !l.transfers {
			break
		}
		m, err := c.Register(arena[i*l.depth*l.size : (i+1)*l.depth*l.size])
		if err != nil {
			return r, err
		}
		defer m.Close()
	}
	for i := range workers {
		w := &worker{
			c: l.clients[i/l.depth], buf: arena[i*l.size : (i+1)*l.size], rnd: rand.New(rand.NewPCG(1, uint64(i))),
			took: make([]time.Duration, 0, max(64, (1<<20)/len(workers))),
		}
		workers[i] = w
		wg.Go(func() {
			for {
				p := l.phase.Load()
				if p == 2 {
					return
				}
				began := time.Now()
				if err := l.do(ctx, w); err != nil {
					if !errors.Is(err, errOver) {
						errs <- err
					}
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
	r.Seconds, r.CPU = time.Since(began).Seconds(), cpu()-cpu0
	shares := make([]float64, len(l.clients))
	for i, w := range workers {
		n := w.ops.Load()
		r.Ops += n
		shares[i/l.depth] += float64(n)
	}
	r.Jain = jain(shares)
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
