package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Config describes a lease for Take and Adopt.
type Config struct {
	Dir  string        // on the shared storage
	Node string        // the name of this node; no other node may have it
	Term time.Duration // the same on all nodes
	// Alone reports whether no other process of this host uses the directory. So if this node has
	// the lease, the process that took it has ended. Take calls it until it is true; nil means no.
	Alone func() bool
	// Lost is called once, from a goroutine of the Holder, when the lease was lost. The process must
	// end.
	Lost func(error)
	// Waiting is called while Take waits, at each look at the lease.
	Waiting func(Record)
	// May says whether Take may claim a lease that nobody holds; nil means yes. Take does not ask
	// May for a lease that was released to this node, or that an ended process of this node had. But
	// with Abandon, Take releases the lease of such a process if May says no.
	May     func() bool
	Abandon bool
	// Wake makes Take look at the lease at once. It may be nil.
	Wake <-chan struct{}
}

// Holder has the lease, or has lost it. Its methods may be called from any goroutine.
type Holder struct {
	cfg   Config
	file  *os.File
	done  chan struct{}
	ended sync.WaitGroup
	since time.Duration // the claim, on the clock of now

	// until is when the lease ends, on the clock of now; 0 once it was lost.
	until atomic.Int64
	slow  atomic.Int64 // the slowest renewal in nanoseconds
	quiet atomic.Bool  // no more renewals

	// Unclean says that the process which had the lease before may still run, without serving: it
	// did not release the lease, and was on another node or boot. Unclean is set before the Holder
	// is used.
	Unclean bool
	// Before is the record that the claim replaced. It is set before the Holder is used.
	Before Record

	mu sync.Mutex
	e  Engine
}

// now returns the time since the host started, including the time that the host slept.
func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(ts.Nano())
}

// bootID is the kernel's name for this boot of the host.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// Take waits until the lease can be claimed, and claims it. It waits as long as another node renews
// the lease.
func Take(ctx context.Context, cfg Config) (*Holder, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	e := Engine{Node: cfg.Node, Boot: boot, Term: cfg.Term}
	alone := false
	for {
		begun := now()
		r, err := newest(cfg.Dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the lease on the state directory cannot be read: %w", err)
		}
		e.Read(begun, now(), r, err == nil)
		c, ok := e.Claim()
		may := cfg.May == nil || cfg.May()
		ok = ok && (may || r.To == cfg.Node)
		unclean := ok && r.Epoch != 0 && !r.Released
		alone = alone || cfg.Alone != nil && cfg.Alone()
		switch {
		case ok || !alone:
		case may || !cfg.Abandon:
			c, ok = e.Replace()
		default:
			if r, left := e.Abandon(); left {
				if err := rewrite(cfg.Dir, r); err != nil {
					return nil, fmt.Errorf("the lease on the state directory cannot be released: %w", err)
				}
				continue
			}
		}
		if ok {
			begun := now()
			f, err := claim(cfg.Dir, c)
			if err == nil {
				e.Claimed(begun, c)
				h := hold(cfg, e, f, begun)
				h.Unclean, h.Before = unclean, r
				return h, nil
			}
			if !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("the lease on the state directory cannot be claimed: %w", err)
			}
			continue // another node was faster
		}
		if cfg.Waiting != nil {
			cfg.Waiting(r)
		}
		select {
		case <-time.After(e.Pause(now())):
		case <-cfg.Wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Shared is a lease that a process hands over to another process of the same host.
type Shared struct {
	Record Record
	Begun  time.Duration // begin of the last renewal, on the clock of the host
	Since  time.Duration // the claim, on the same clock
}

// Share returns the lease and its file for another process of this host, which takes over. Both
// processes renew the lease until this one ends. The file belongs to the Holder.
func (h *Holder) Share() (Shared, *os.File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Shared{h.e.own, h.e.begun, h.since}, h.file
}

// Adopt continues with a lease that another process of this host has shared. From then on file
// belongs to the Holder.
func Adopt(cfg Config, s Shared, file *os.File) *Holder {
	e := Engine{Node: cfg.Node, Boot: s.Record.Boot, Term: cfg.Term}
	e.Claimed(s.Begun, s.Record)
	if s.Since == 0 { // of a program that did not say it
		s.Since = s.Begun
	}
	return hold(cfg, e, file, s.Since)
}

// hold starts the goroutines of a Holder.
func hold(cfg Config, e Engine, f *os.File, since time.Duration) *Holder {
	h := &Holder{cfg: cfg, e: e, file: f, done: make(chan struct{}), since: since}
	h.until.Store(int64(e.Until()))
	h.ended.Add(2)
	go h.renew()
	go h.watch()
	return h
}

// Serving reports whether this node may serve now. It costs a system call and takes no lock.
func (h *Holder) Serving() bool { return int64(now()) < h.until.Load() }

// renew writes the file until the lease is lost or released.
func (h *Holder) renew() {
	defer h.ended.Done()
	for pause := h.cfg.Term / 4; ; {
		select {
		case <-time.After(pause):
		case <-h.done:
			return
		}
		if h.quiet.Load() {
			<-h.done
			return
		}
		begun := now()
		h.mu.Lock()
		r := h.e.Renewal()
		h.mu.Unlock()
		err := write(h.file, r)
		next, nextErr := read(h.cfg.Dir, r.Epoch+1)
		end := now()
		h.slow.Store(max(h.slow.Load(), int64(end-begun)))
		h.mu.Lock()
		if nextErr == nil {
			h.e.Read(begun, end, next, true)
		}
		pause = h.cfg.Term / 4
		if err == nil && errors.Is(nextErr, fs.ErrNotExist) {
			h.e.Renewed(begun, end)
		} else {
			pause = h.cfg.Term / 16
		}
		if h.e.Serving(end) {
			h.until.Store(int64(h.e.Until()))
		} else {
			h.until.Store(0)
		}
		h.mu.Unlock()
	}
}

// watch notices the end of the lease, even if a renewal does not return.
func (h *Holder) watch() {
	defer h.ended.Done()
	for {
		left := time.Duration(h.until.Load()) - now()
		if left <= 0 {
			h.lost()
			return
		}
		select {
		case <-time.After(left):
		case <-h.done:
			return
		}
	}
}

func (h *Holder) lost() {
	h.mu.Lock()
	_ = h.e.Serving(now())
	seen, epoch := h.e.Seen(), h.e.own.Epoch
	h.until.Store(0)
	h.mu.Unlock()
	err := fmt.Errorf("the lease on the state directory was not renewed for %v: the storage did not answer, or this "+
		"process was stopped", h.cfg.Term)
	if seen.Epoch > epoch {
		err = fmt.Errorf("node %s has taken the lease on the state directory", strconv.QuoteToGraphic(seen.Node))
	}
	h.cfg.Lost(err)
}

// Expire ends the renewals. Until the term is over the lease can still be released. After that it
// is lost, and other nodes claim it.
func (h *Holder) Expire() { h.quiet.Store(true) }

// Release gives the lease up, so that another node can claim it at once. The process must not serve
// any more.
func (h *Holder) Release() error { return h.ReleaseTo("", "") }

// ReleaseTo is Release to one node, with a token that this node knows. The other nodes wait as they
// would after the loss of a holder. After an error nobody knows whether the lease is released.
func (h *Holder) ReleaseTo(node, token string) error {
	close(h.done)
	h.ended.Wait()
	h.mu.Lock()
	r, held := h.e.own, h.e.Serving(now())
	if held {
		r = h.e.Release(node, token)
	}
	h.mu.Unlock()
	h.until.Store(0)
	var err error
	switch {
	case held:
		err = write(h.file, r)
	case node != "":
		err = errors.New("the lease on the state directory was lost")
	}
	return errors.Join(err, h.file.Close())
}

// Status is the state of the lease as a Holder knows it.
type Status struct {
	Node  string
	Epoch uint64
	Term  time.Duration
	// Renewed is how long ago the last renewal began, Slowest how long the slowest one took.
	Renewed, Slowest time.Duration
	Held             time.Duration // since this node claimed it
}

// Status returns the state of the lease.
func (h *Holder) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := now()
	return Status{h.cfg.Node, h.e.own.Epoch, h.cfg.Term, n - h.e.begun, time.Duration(h.slow.Load()), n - h.since}
}
