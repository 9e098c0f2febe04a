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

// Source resolves names. Its methods may wait, and are called from several goroutines. An empty
// list is no error.
type Source interface {
	// Addrs returns the addresses of a host.
	Addrs(name string) ([]netip.Addr, error)
	// Names returns the names that the resolver has for an address.
	Names(a netip.Addr) ([]string, error)
	// Members returns the hosts of a netgroup.
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
	// Peers bounds the clients whose names are cached; 0 means 4096.
	Peers int
}

const (
	peersDefault = 4096
	// freshFor is how long an answer is used before the source is asked again. After a failure the
	// source is asked again after retryAfter.
	freshFor   = 5 * time.Minute
	retryAfter = 30 * time.Second
	// askers bounds the requests to the source under way. A request beyond it is dropped; the next use
	// of the answer makes it again.
	askers = 16
)

// Hosts caches what the source knows of clients. Its methods may be called from any goroutine.
type Hosts struct {
	cfg Config

	mu       sync.Mutex
	hosts    map[string]*answer[netip.Addr]
	groups   map[string]*answer[string]
	peers    map[netip.Addr]*answer[string]
	asking   int
	answered sync.Cond // broadcast when a request to the source ends
}

// answer is the cached result of a request to the source.
type answer[T comparable] struct {
	list   []T
	known  bool // a request has ended, with a result or with a failure
	failed bool // the last request failed; list is that of an earlier one
	asking bool
	next   time.Time // when the source is asked again
	used   time.Time
}

// New makes a Hosts with an empty cache.
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

// IsGroup returns the netgroup of a name that begins with "@". ok is false for other names.
func IsGroup(name string) (group string, ok bool) { return strings.CutPrefix(name, "@") }

// CheckName reports whether a client can have the name in a rule.
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

// Want sets the names that rules use from now on. It asks the source for their addresses and
// members at once, so that the answers are there before a client needs them. It drops the answers
// of other names.
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

// Flush makes every answer be requested again at its next use. Until the new answer comes, the old
// one is used.
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

// Is reports whether the host at an address has the name, matches the pattern, or is in the
// netgroup. If known is false, the lookup is not complete yet. Is does not wait.
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

// sameHost compares a host's full name with a member of a netgroup. The member may be the first
// label of the name alone.
func sameHost(full, member string) bool {
	member = strings.ToLower(member)
	if full == member {
		return true
	}
	first, _, _ := strings.Cut(full, ".")
	return !strings.Contains(member, ".") && first == member
}

// Wait waits until the first answers about an address, and about all names of rules, are known, or
// until done is closed.
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

// confirmed returns those names of an address whose own lookup leads back to the address. Whoever
// runs the reverse zone of an address can put any name there.
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

// forget drops the client that was used least recently, to make room for a new one.
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

// ask sends a request to the source in the background if the answer is missing or too old, no
// request for it is under way, and askers permits one more. Call with h.mu held.
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
