// Reconnect connects to a server and disconnects, again and again, several at once: with what a
// connection takes, and gives back, multiplied until it shows.
//
//	reconnect -to 10.99.0.3:20049 -count 2000 -at-once 8 call
//
// What is done on each connection:
//
//	call       one call of the null procedure
//	files      an NFS client that reads the directory -path, by version 3 and 4.2 in turn
//	device     the same by a dialer of its own, which opens the RDMA device and closes it again
//	abandoned  nothing: it is given up after a time of chance, most often while it is being made
//	refused    nothing: the server is expected to refuse it, as nobody listens on the port
//	full       nothing: as many as the server takes are kept, and -count more are expected to be refused
//
// The process may hold no more descriptors and not much more memory at the end than after the first
// tenth. With -count 0 it goes on until it is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// patience bounds what is done with a connection.
const patience = time.Minute

// settings are those of the command line.
type settings struct {
	to     netip.AddrPort
	kind   provider.Kind
	path   string
	count  int
	atOnce int
	grows  int // bytes
	ready  string
}

func main() {
	s := settings{kind: provider.Verbs}
	to := flag.String("to", "", "`address` and port of the server")
	flag.TextVar(&providerFlag{&s.kind}, "provider", &providerFlag{&s.kind}, "auto, soft or `verbs`")
	flag.StringVar(&s.path, "path", "/e", "a `directory` of the server")
	flag.IntVar(&s.count, "count", 100, "connections; 0 goes on for ever")
	flag.IntVar(&s.atOnce, "at-once", 4, "how many at the same time")
	flag.IntVar(&s.grows, "grows", 16<<20, "`bytes` by which the process may grow")
	flag.StringVar(&s.ready, "ready", "", "make this `file` when the first connection was made")
	flag.Parse()
	var err error
	if s.to, err = netip.ParseAddrPort(*to); err == nil {
		err = s.run(flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reconnect:", err)
		os.Exit(1)
	}
}

// providerFlag is a provider.Kind as flags have it.
type providerFlag struct{ k *provider.Kind }

func (p *providerFlag) MarshalText() ([]byte, error) { return []byte(*p.k), nil }
func (p *providerFlag) UnmarshalText(b []byte) error { return p.k.Set(string(b)) }

// worker makes connections. over is how many were given up or refused.
type worker struct {
	s    settings
	dev  rdma.Device
	over atomic.Int64
	mean atomic.Int64 // how long the last connection took to be made, in nanoseconds
}

func (s settings) run(what string) error {
	w := &worker{s: s}
	once := map[string]func(context.Context, int) error{
		"call": w.call, "files": w.files, "device": w.device, "abandoned": w.abandon, "refused": w.refused, "full": w.refused,
	}[what]
	if once == nil {
		return fmt.Errorf("%q is nothing that is done", what)
	}
	if what != "device" {
		dev, err := open(s)
		if err != nil {
			return err
		}
		defer func() { _ = dev.Close() }()
		w.dev = dev
	}
	if what == "full" {
		kept, err := w.fill()
		defer func() {
			for _, c := range kept {
				_ = c.Close()
			}
		}()
		if err != nil {
			return err
		}
		fmt.Printf("%d connections are as many as the server takes\n", len(kept))
	}
	first := max(s.count/10, 1)
	if err := w.many(first, once); err != nil {
		return err
	}
	if s.ready != "" {
		if err := os.WriteFile(s.ready, nil, 0o644); err != nil {
			return err
		}
	}
	time.Sleep(200 * time.Millisecond)
	before, err := holdings()
	if err != nil {
		return err
	}
	begin := time.Now()
	n := s.count - first
	if s.count == 0 {
		n = 1 << 62
	}
	if err := w.many(n, once); err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := settled(before, s.grows)
	if err != nil {
		return err
	}
	fmt.Printf("%d times %s in %.1f s, %.1f ms each; %d were not made; at first %v, at the end %v\n",
		n, what, took.Seconds(), took.Seconds()*1000/float64(max(n, 1)), w.over.Load(), before, after)
	if what == "abandoned" && w.over.Load() < int64(n/4) {
		return fmt.Errorf("%d of %d connections only were given up", w.over.Load(), n)
	}
	return after.beyond(before, s.grows)
}

// open opens the device by which the server is reached.
func open(s settings) (rdma.Device, error) {
	host := provider.System()
	choice, err := host.ChooseFor(s.kind, s.to.Addr(), netip.Addr{})
	if err != nil {
		return nil, err
	}
	return host.Open(provider.Config{Choice: choice})
}

// many does something n times, some at once.
func (w *worker) many(n int, once func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range w.s.atOnce {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1))
				if i > n {
					return
				}
				one, done := context.WithTimeout(ctx, patience)
				if err := once(one, i); err != nil && ctx.Err() == nil {
					cancel(fmt.Errorf("connection %d: %w", i, err))
				}
				done()
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// connect makes a connection.
func (w *worker) connect(ctx context.Context) (*rpcrdma.Client, error) {
	begin := time.Now()
	c, err := rpcrdma.Dial(ctx, w.dev, w.s.to, rpcrdma.ClientConfig{})
	if err == nil {
		w.mean.Store(int64(time.Since(begin)))
	}
	return c, err
}

// call calls the null procedure.
func (w *worker) call(ctx context.Context, _ int) error {
	c, err := w.connect(ctx)
	if err != nil {
		return err
	}
	err = c.Call(ctx, &rpc.Request{Prog: nfs3.Program, Vers: nfs3.Version})
	return errors.Join(err, c.Close())
}

// files reads a directory.
func (w *worker) files(ctx context.Context, i int) error {
	c := client.New(client.Config{
		Peer: w.s.to.String(), Cred: dial.Self(), Version: version(i),
		Dial: func(ctx context.Context) (rpc.Client, error) { return w.connect(ctx) },
	})
	return errors.Join(w.list(ctx, c), c.Close())
}

func (w *worker) list(ctx context.Context, c *client.Client) error {
	fsys, err := c.FS(ctx, w.s.path)
	if err != nil {
		return err
	}
	_, err = fs.ReadDir(fsys, ".")
	return err
}

// version is that of connection i.
func version(i int) client.Version {
	if i%2 == 0 {
		return client.Version3
	}
	return client.Version42
}

// device does the same on a device of its own.
func (w *worker) device(ctx context.Context, i int) error {
	d := &dial.Dialer{Provider: w.s.kind, Version: version(i)}
	u, err := client.ParseURL("nfs+rdma://" + w.s.to.String() + w.s.path)
	if err == nil {
		err = w.list(ctx, d.Client(u))
	}
	return errors.Join(err, d.Close())
}

// abandon gives a connection up.
func (w *worker) abandon(ctx context.Context, i int) error {
	if i%8 == 1 {
		return w.call(ctx, i) // how long it takes is learned
	}
	short, cancel := context.WithTimeout(ctx, time.Duration(rand.Int64N(max(w.mean.Load(), 1))*5/4))
	defer cancel()
	c, err := w.connect(short)
	if err == nil {
		return c.Close()
	}
	if short.Err() == nil {
		return err
	}
	w.over.Add(1)
	return nil
}

// refused is refused.
func (w *worker) refused(ctx context.Context, _ int) error {
	c, err := w.connect(ctx)
	switch {
	case err == nil:
		return errors.Join(errors.New("it was not refused"), c.Close())
	case strings.Contains(err.Error(), "reject"):
		w.over.Add(1)
		return nil
	}
	return err
}

// fill makes connections until one is refused.
func (w *worker) fill() (kept []*rpcrdma.Client, err error) {
	for range 1 << 16 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		c, err := w.connect(ctx)
		cancel()
		switch {
		case err == nil:
			kept = append(kept, c)
		case len(kept) > 0 && strings.Contains(err.Error(), "reject"):
			return kept, nil
		default:
			return kept, err
		}
	}
	return kept, errors.New("the server takes any number")
}

// held is what this process has.
type held struct{ files, bytes int }

func (h held) String() string { return fmt.Sprintf("%d descriptors and %d KiB", h.files, h.bytes>>10) }

// holdings looks at this process, without what is garbage.
func holdings() (h held, err error) {
	debug.FreeOSMemory()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return h, err
	}
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return h, err
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return h, fmt.Errorf("/proc/self/statm: %q", b)
	}
	pages, err := strconv.Atoi(fields[1])
	return held{len(fds), pages * os.Getpagesize()}, err
}

// settled is what it has at last: what a connection had that was not made is given back a moment
// after its caller has heard of it.
func settled(before held, grows int) (h held, err error) {
	for range 50 {
		if h, err = holdings(); err != nil || h.beyond(before, grows) == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return h, err
}

// beyond says what is more than it was.
func (h held) beyond(before held, grows int) error {
	if h.files > before.files || h.bytes > before.bytes+grows {
		return fmt.Errorf("it has %v, and had %v", h, before)
	}
	return nil
}
