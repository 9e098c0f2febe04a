package hosts

import (
	"log/slog"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// Source knows names. Its methods may wait, and are called from several goroutines. To know
// of nothing is no error.
type Source interface {
	// Addrs are the addresses of a host.
	Addrs(name string) ([]netip.Addr, error)
	// Names are what the host at an address calls itself.
	Names(a netip.Addr) ([]string, error)
	// Members are the hosts of a netgroup.
	Members(group string) ([]string, error)
}

// Config describes Hosts.
type Config struct {
	Source Source
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Start starts a function in the background; nil means on a goroutine.
	Start  func(func())
	Logger *slog.Logger
	// Peers bounds the clients whose names are kept; 0 means 4096.
	Peers int
}

const (
	peersDefault = 4096
	// freshFor is how long an answer is used without asking again, retryAfter how long
	// after a failure that is.
	freshFor   = 5 * time.Minute
	retryAfter = 30 * time.Second
	// askers bounds the questions under way. Others are asked when they are wanted again.
	askers = 16
)

// Hosts is the knowledge about clients. Its methods may be called from any goroutine.
type Hosts struct {
	cfg Config

	mu       sync.Mutex
	hosts    map[string]*answer[netip.Addr]
	groups   map[string]*answer[string]
	peers    map[netip.Addr]*answer[string]
	asking   int
	answered sync.Cond // an answer came
}

// answer is what a question got.
type answer[T comparable] struct {
	list   []T
	known  bool // it was answered, be it by a failure
	failed bool // the last time
	asking bool
	next   time.Time // when it is asked again
	used   time.Time
}

// New makes one that knows nothing.
func New(cfg Config) *Hosts {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Start == nil {
		cfg.Start = func(f func()) { go f() }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Peers <= 0 {
		cfg.Peers = peersDefault
	}
	h := &Hosts{
		cfg: cfg, hosts: make(map[string]*answer[netip.Addr]),
		groups: make(map[string]*answer[string]), peers: make(map[netip.Addr]*answer[string]),
	}
	h.answered.L = &h.mu
	return h
}

// IsPattern reports whether a name has wildcards.
func IsPattern(name string) bool { return strings.ContainsAny(name, "*?[") }

// IsGroup reports whether a name is that of a netgroup, and which.
func IsGroup(name string) (group string, ok bool) { return strings.CutPrefix(name, "@") }

// CheckName refuses what can be the name of no client.
func CheckName(name string) bool {
	const nameMax = 255
	if name == "" || len(name) > nameMax {
		return false
	}
	if group, ok := IsGroup(name); ok {
		return group != "" && !strings.ContainsAny(group, " \t\n/\x00,()@") && group[0] != '-'
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		case strings.IndexByte("*?[]^", c) >= 0:
		default:
			return false
		}
	}
	_, err := path.Match(name, "")
	return err == nil && name[0] != '-' && name[0] != '.'
}

// Want names the names that will be asked for, so that their answers are there in time. What
// is known of others is forgotten.
func (h *Hosts) Want(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hosts, groups := make(map[string]bool), make(map[string]bool)
	for _, name := range names {
		if group, ok := IsGroup(name); ok {
			groups[group] = true
			h.group(group)
		} else if !IsPattern(name) {
			hosts[strings.ToLower(name)] = true
			h.host(strings.ToLower(name))
		}
	}
	for name := range h.hosts {
		if !hosts[name] {
			delete(h.hosts, name)
		}
	}
	for name := range h.groups {
		if !groups[name] {
			delete(h.groups, name)
		}
	}
}

// Flush has everything asked for again when it is used. Until then it stays as it is.
func (h *Hosts) Flush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.hosts {
		f.next = time.Time{}
	}
	for _, g := range h.groups {
		g.next = time.Time{}
	}
	for _, p := range h.peers {
		p.next = time.Time{}
	}
}

// Is reports whether a name is one of the host at an address. If known is false, the lookup is not
// complete yet. Is does not wait.
func (h *Hosts) Is(a netip.Addr, name string) (is, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if group, ok := IsGroup(name); ok {
		g, p := h.group(group), h.peer(a)
		if !g.known || !p.known {
			return false, false
		}
		return slices.ContainsFunc(g.list, func(m string) bool {
			if at, err := netip.ParseAddr(m); err == nil {
				return at.Unmap() == a
			}
			return slices.ContainsFunc(p.list, func(n string) bool { return sameHost(n, m) })
		}), true
	}
	name = strings.ToLower(name)
	if IsPattern(name) {
		p := h.peer(a)
		return p.known && slices.ContainsFunc(p.list, func(n string) bool {
			ok, err := path.Match(name, n)
			return ok && err == nil
		}), p.known
	}
	f := h.host(name)
	return slices.Contains(f.list, a), f.known
}

// sameHost compares a host's full name with one in a netgroup, which may be its first part.
func sameHost(full, member string) bool {
	member = strings.ToLower(member)
	if full == member {
		return true
	}
	first, _, _ := strings.Cut(full, ".")
	return !strings.Contains(member, ".") && first == member
}

// Wait waits until what was asked about an address, and about names, is known, or done is
// closed.
func (h *Hosts) Wait(a netip.Addr, done <-chan struct{}) {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-done:
			h.mu.Lock()
			h.answered.Broadcast()
			h.mu.Unlock()
		case <-stop:
		}
	}()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.pending(a) {
		select {
		case <-done:
			return
		default:
		}
		h.answered.Wait()
	}
}

func (h *Hosts) pending(a netip.Addr) bool {
	if p := h.peers[a]; p != nil && p.asking && !p.known {
		return true
	}
	for _, f := range h.hosts {
		if f.asking && !f.known {
			return true
		}
	}
	for _, g := range h.groups {
		if g.asking && !g.known {
			return true
		}
	}
	return false
}

func (h *Hosts) host(name string) *answer[netip.Addr] {
	f := h.hosts[name]
	if f == nil {
		f = new(answer[netip.Addr])
		h.hosts[name] = f
	}
	ask(h, f, "the addresses of a client cannot be looked up", name, func() ([]netip.Addr, error) {
		list, err := h.cfg.Source.Addrs(name)
		for i := range list {
			list[i] = list[i].Unmap().WithZone("")
		}
		return list, err
	})
	return f
}

func (h *Hosts) group(name string) *answer[string] {
	g := h.groups[name]
	if g == nil {
		g = new(answer[string])
		h.groups[name] = g
	}
	ask(h, g, "the hosts of a netgroup cannot be looked up", name,
		func() ([]string, error) { return h.cfg.Source.Members(name) })
	return g
}

func (h *Hosts) peer(a netip.Addr) *answer[string] {
	p := h.peers[a]
	if p == nil {
		if len(h.peers) >= h.cfg.Peers {
			h.forget()
		}
		p = new(answer[string])
		h.peers[a] = p
	}
	ask(h, p, "the name of a client cannot be looked up", a.String(), func() ([]string, error) { return h.confirmed(a) })
	return p
}

// confirmed are the names of an address that have it as their own: whoever answers for an
// address can claim any name.
func (h *Hosts) confirmed(a netip.Addr) ([]string, error) {
	names, err := h.cfg.Source.Names(a)
	if err != nil {
		return nil, err
	}
	const namesMax = 16
	var out []string
	for _, n := range names[:min(len(names), namesMax)] {
		n = strings.ToLower(strings.TrimSuffix(n, "."))
		addrs, err := h.cfg.Source.Addrs(n)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(addrs, func(x netip.Addr) bool { return x.Unmap().WithZone("") == a }) {
			out = append(out, n)
		}
	}
	return out, nil
}

// forget makes room for a client: one that has not been seen for long.
func (h *Hosts) forget() {
	var oldest netip.Addr
	var at time.Time
	for a, p := range h.peers {
		if !p.asking && (!oldest.IsValid() || p.used.Before(at)) {
			oldest, at = a, p.used
		}
	}
	delete(h.peers, oldest)
}

// ask asks in the background if it is time. h.mu is held.
func ask[T comparable](h *Hosts, a *answer[T], failure, about string, question func() ([]T, error)) {
	now := h.cfg.Now()
	a.used = now
	if a.asking || a.known && now.Before(a.next) || h.asking >= askers {
		return
	}
	a.asking = true
	h.asking++
	h.cfg.Start(func() {
		list, err := question()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asking--
		a.asking = false
		if err != nil {
			if !a.failed {
				h.cfg.Logger.Warn(failure+"; the earlier result stays in use", "of", about, "error", err.Error())
			}
			a.next = h.cfg.Now().Add(retryAfter)
		} else {
			a.list = list
			a.next = h.cfg.Now().Add(freshFor)
		}
		a.failed, a.known = err != nil, true
		h.answered.Broadcast()
	})
}
