package idmap

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrUnknown is of a user or group that there is not.
var ErrUnknown = errors.New("no such user or group")

// Source knows users and groups. Errors other than ErrUnknown are those of the moment. Its
// methods are called from several goroutines.
type Source interface {
	Name(id uint32, group bool) (string, error)
	ID(name string, group bool) (uint32, error)
	// Groups are the groups of a user, that of his entry among them.
	Groups(uid uint32) ([]uint32, error)
}

// Config describes a Map.
type Config struct {
	// Domain is what names end with. Upper and lower case are the same there.
	Domain string
	// Names sends users and groups as names. Otherwise they are sent as numbers. Names of clients are
	// understood in both cases.
	Names  bool
	Source Source
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Entries bounds each of the tables; 0 means 4096.
	Entries int
}

const (
	entriesDefault = 4096
	// keepFor is how long what was found counts, missFor what was not. A source that
	// failed is asked again after failFor.
	keepFor = 10 * time.Minute
	missFor = time.Minute
	failFor = 5 * time.Second
	// nameMax is the longest name that is looked for, in bytes.
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

// groupsKeep is how long the groups of a user are valid. For a user that does not exist it is
// missFor. groupsMax is what Linux lets a process have.
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

// Append appends what a user or a group is called: name@domain, or the number where there
// is no name.
func (m *Map) Append(b []byte, id uint32, group bool) []byte {
	if m.cfg.Names {
		name, ok := m.names.get(idKey{id, group}, func() (string, error) { return m.cfg.Source.Name(id, group) })
		if ok && name != "" && !strings.Contains(name, "@") {
			return append(append(append(b, name...), '@'), m.cfg.Domain...)
		}
	}
	return strconv.AppendUint(b, uint64(id), 10)
}

// Parse finds a user or a group by what it is called: a number, or name@domain.
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

// Groups are the groups of a user; ok is false if there is no such user, or nothing can be
// found out of him now. If ready is false that has to be looked up, for which wait gives leave.
// The list is not to be changed.
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

// Flush forgets everything.
func (m *Map) Flush() {
	m.names.flush()
	m.ids.flush()
	m.groups.flush()
}

// Number reads a decimal number without a sign or zeros before it.
func Number(b []byte) (uint32, bool) {
	if len(b) == 0 || len(b) > 10 || len(b) > 1 && b[0] == '0' || b[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b), 10, 32)
	return uint32(n), err == nil
}

// table is a cache of one direction.
type table[K comparable, V any] struct {
	now  func() time.Time
	max  int
	long time.Duration // how long what was found counts

	mu    sync.Mutex
	m     map[K]entry[V]
	asked map[K]*question[V]
}

type entry[V any] struct {
	v     V
	ok    bool
	until time.Time
}

// question is one that the source is being asked.
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

// peek is get for who does not wait; known is false if somebody has to be asked.
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

// keep enters something; the old goes where there is no room. t.mu is held.
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
