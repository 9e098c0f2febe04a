package idmap

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrUnknown says that a user or group does not exist.
var ErrUnknown = errors.New("no such user or group")

// Source is a database of users and groups. ErrUnknown is a definite answer; any other error is
// temporary. Its methods are called from several goroutines.
type Source interface {
	Name(id uint32, group bool) (string, error)
	ID(name string, group bool) (uint32, error)
	// Groups returns the groups of a user, the primary group included.
	Groups(uid uint32) ([]uint32, error)
}

// Config describes a Map.
type Config struct {
	// Domain is the part of names behind "@". Upper and lower case are not distinguished there.
	Domain string
	// Names sends users and groups as names. Otherwise they are sent as numbers. Names of clients are
	// understood in both cases.
	Names  bool
	Source Source
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Entries bounds the entries of each cache; 0 means 4096.
	Entries int
}

const (
	entriesDefault = 4096
	// keepFor is how long a result is cached, missFor how long ErrUnknown is. After another error the
	// source is asked again after failFor.
	keepFor = 10 * time.Minute
	missFor = time.Minute
	failFor = 5 * time.Second
	// nameMax is the longest name that the source is asked for, in bytes.
	nameMax = 256
)

// Map is a mapping with a cache. Its methods may be called from any goroutine.
type Map struct {
	cfg   Config
	names table[idKey, string]
	ids   table[nameKey, uint32]
	// groups has the groups of each user, by number, at most groupsMax.
	groups table[uint32, []uint32]
}

// groupsKeep is how long the groups of a user are cached, missFor how long it is cached that a user
// does not exist. groupsMax is how many groups Linux permits to a process (NGROUPS_MAX).
const (
	groupsKeep = 30 * time.Minute
	groupsMax  = 65536
)

type idKey struct {
	id    uint32
	group bool
}

type nameKey struct {
	name  string
	group bool
}

// New makes a map with nothing in its cache.
func New(cfg Config) *Map {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Entries <= 0 {
		cfg.Entries = entriesDefault
	}
	m := &Map{cfg: cfg}
	m.names.init(cfg.Entries, cfg.Now, keepFor)
	m.ids.init(cfg.Entries, cfg.Now, keepFor)
	m.groups.init(cfg.Entries, cfg.Now, groupsKeep)
	return m
}

// Append appends the name of a user or group: name@domain, or the number if the source has no name.
func (m *Map) Append(b []byte, id uint32, group bool) []byte {
	if m.cfg.Names {
		name, ok := m.names.get(idKey{id, group}, func() (string, error) { return m.cfg.Source.Name(id, group) })
		if ok && name != "" && !strings.Contains(name, "@") {
			return append(append(append(b, name...), '@'), m.cfg.Domain...)
		}
	}
	return strconv.AppendUint(b, uint64(id), 10)
}

// Parse returns the user or group that a client names: a number, or name@domain.
func (m *Map) Parse(who []byte, group bool) (id uint32, ok bool) {
	if id, ok := Number(who); ok {
		return id, true
	}
	if len(who) > nameMax {
		return 0, false
	}
	name, domain, ok := strings.Cut(string(who), "@")
	if !ok || name == "" || !strings.EqualFold(domain, m.cfg.Domain) || strings.ContainsAny(name, ":\n\x00/") {
		return 0, false
	}
	return m.ids.get(nameKey{name, group}, func() (uint32, error) { return m.cfg.Source.ID(name, group) })
}

// User finds a user by the name that it has on this host, without a domain. A number is no name.
func (m *Map) User(name string) (id uint32, ok bool) {
	if _, ok := Number([]byte(name)); ok || name == "" || len(name) > nameMax || strings.ContainsAny(name, "@:\n\x00/") {
		return 0, false
	}
	return m.ids.get(nameKey{name, false}, func() (uint32, error) { return m.cfg.Source.ID(name, false) })
}

// Groups returns the groups of a user. ok is false if the user does not exist, or if the source
// fails. ready is false if the groups are not cached and wait is false: only with wait may Groups
// ask the source. The caller must not change the list.
func (m *Map) Groups(uid uint32, wait bool) (list []uint32, ok, ready bool) {
	if !wait {
		return m.groups.peek(uid)
	}
	list, ok = m.groups.get(uid, func() ([]uint32, error) {
		list, err := m.cfg.Source.Groups(uid)
		return list[:min(len(list), groupsMax)], err
	})
	return list, ok, true
}

// Flush empties all caches.
func (m *Map) Flush() {
	m.names.flush()
	m.ids.flush()
	m.groups.flush()
}

// Number reads a decimal number without a sign and without leading zeros.
func Number(b []byte) (uint32, bool) {
	if len(b) == 0 || len(b) > 10 || len(b) > 1 && b[0] == '0' || b[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b), 10, 32)
	return uint32(n), err == nil
}

// table is a cache of results of the source, for one direction.
type table[K comparable, V any] struct {
	now  func() time.Time
	max  int
	long time.Duration // how long a result is cached

	mu    sync.Mutex
	m     map[K]entry[V]
	asked map[K]*question[V]
}

type entry[V any] struct {
	v     V
	ok    bool
	until time.Time
}

// question is a request to the source under way. Callers that want the same key wait for done, and
// then read the entry.
type question[V any] struct {
	done chan struct{}
	entry[V]
}

func (t *table[K, V]) init(limit int, now func() time.Time, long time.Duration) {
	t.max, t.now, t.long, t.m, t.asked = limit, now, long, make(map[K]entry[V]), make(map[K]*question[V])
}

func (t *table[K, V]) get(k K, ask func() (V, error)) (V, bool) {
	t.mu.Lock()
	if e, ok := t.m[k]; ok && t.now().Before(e.until) {
		t.mu.Unlock()
		return e.v, e.ok
	}
	q := t.asked[k]
	if q != nil {
		t.mu.Unlock()
		<-q.done
		return q.v, q.ok
	}
	q = &question[V]{done: make(chan struct{})}
	t.asked[k] = q
	t.mu.Unlock()

	defer func() {
		t.mu.Lock()
		delete(t.asked, k)
		t.keep(k, q.entry)
		t.mu.Unlock()
		close(q.done)
	}()
	v, err := ask()
	keep := t.long
	switch {
	case errors.Is(err, ErrUnknown):
		keep = missFor
	case err != nil:
		keep = failFor
	default:
		q.v, q.ok = v, true
	}
	q.until = t.now().Add(keep)
	return q.v, q.ok
}

// peek is get without a request to the source. known is false if the cache has no valid entry.
func (t *table[K, V]) peek(k K) (v V, ok, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, known := t.m[k]
	if !known || !t.now().Before(e.until) {
		return v, false, false
	}
	return e.v, e.ok, true
}

func (t *table[K, V]) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.m)
}

// keep enters a result. In a full table it first drops expired entries, then random ones. Call with
// t.mu held.
func (t *table[K, V]) keep(k K, e entry[V]) {
	if _, ok := t.m[k]; !ok && len(t.m) >= t.max {
		now := t.now()
		for old, x := range t.m {
			if !now.Before(x.until) {
				delete(t.m, old)
			}
		}
		for old := range t.m {
			if len(t.m) < t.max {
				break
			}
			delete(t.m, old)
		}
	}
	t.m[k] = e
}
