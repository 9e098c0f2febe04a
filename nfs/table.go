package nfs

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
)

// Errors of a Table.
var (
	ErrExportExists  = errors.New("nfs: something is exported by that name already")
	ErrExportUnknown = errors.New("nfs: nothing is exported by that name")
)

// Table is the list of exports. A call reads one snapshot of the list and never waits. A change
// comes from any goroutine, and takes effect with the next call that is served. A store may be
// exported under several names. These entries have the same ID, and the rules of the first entry
// apply under every name.
type Table struct {
	hosts Hosts      // nil: no rule has a Name
	mu    sync.Mutex // serializes changes
	cur   atomic.Pointer[snapshot]
}

type snapshot struct {
	list   []*Export // in the order given
	byID   map[uint32]*Export
	byName map[string]*Export
	places map[Place]*Export
	// limited: an export, or a rule of an export, has a limit.
	limited bool
}

// Limited reports whether any export, or any rule, has a limit.
func (t *Table) Limited() bool { return t.load().limited }

// NewTable makes an empty table. h resolves the names in rules; nil: no rule may have one.
func NewTable(h Hosts) *Table {
	t := &Table{hosts: h}
	t.cur.Store(&snapshot{})
	return t
}

// Add adds an export.
func (t *Table) Add(x *Export) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.set(append(slices.Clone(t.load().list), x))
}

// Remove removes the export with a pseudo path. Its handles become stale, unless the same export
// still has another name.
func (t *Table) Remove(pseudo string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.load().list
	i := slices.IndexFunc(list, func(x *Export) bool { return x.Pseudo == pseudo })
	if i < 0 {
		return fmt.Errorf("%w: %s", ErrExportUnknown, pseudo)
	}
	return t.set(slices.Delete(slices.Clone(list), i, i+1))
}

// Replace sets the whole table in one step. After an error nothing has changed.
func (t *Table) Replace(list []*Export) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.set(list)
}

// set checks a list and makes it current. It copies the exports, so that the caller may reuse them,
// and sorts the rules of the copies for Export.Rule.
func (t *Table) set(list []*Export) error {
	s := &snapshot{
		byID: make(map[uint32]*Export, len(list)), byName: make(map[string]*Export, len(list)),
		places: make(map[Place]*Export),
	}
	old := t.load()
	var names []string
	for _, in := range list {
		x := new(Export)
		*x = *in
		if x.FS == nil {
			return fmt.Errorf("nfs: export %s has no store", x.Pseudo)
		}
		if !path.IsAbs(x.Pseudo) || path.Clean(x.Pseudo) != x.Pseudo || len(x.Pseudo) > PathMax {
			return fmt.Errorf("nfs: export name %q is not a clean absolute path of at most %d bytes", x.Pseudo, PathMax)
		}
		if s.byName[x.Pseudo] != nil {
			return fmt.Errorf("%w: %s", ErrExportExists, x.Pseudo)
		}
		if o := s.byID[x.ID]; o != nil && o.FS != x.FS {
			return fmt.Errorf("nfs: exports %s and %s are different stores with the same number %d", o.Pseudo, x.Pseudo, x.ID)
		}
		x.fsid = x.FS.FSID()
		if x.Ident != 0 {
			x.fsid = x.Ident
		}
		if o := old.byID[x.ID]; o != nil {
			x.meter = o.meter
		} else {
			x.meter = new(meter)
		}
		s.limited = s.limited || !x.Limit.none() ||
			slices.ContainsFunc(x.Clients, func(r ClientRule) bool { return !r.Limit.none() })
		wants, err := x.arrange(t.hosts)
		if err != nil {
			return err
		}
		names = append(names, wants...)
		s.list = append(s.list, x)
		s.byName[x.Pseudo] = x
		if s.byID[x.ID] == nil {
			s.byID[x.ID] = x
			if x.Place != nil && s.places[*x.Place] == nil {
				s.places[*x.Place] = x
			}
		} else {
			x.meter = s.byID[x.ID].meter
		}
	}
	for _, x := range s.list {
		for p := range s.places {
			x.covers = x.covers || p.Export == x.ID
		}
	}
	if t.hosts != nil {
		t.hosts.Want(names)
	}
	t.cur.Store(s)
	return nil
}

// arrange sorts a copy of the rules for Export.Rule, and returns the names in them.
func (x *Export) arrange(h Hosts) (names []string, err error) {
	x.hosts, x.Clients = h, slices.Clone(x.Clients)
	if len(x.Clients) == 0 {
		x.Clients = slices.Clone(everyone)
	}
	for i := range x.Clients {
		r := &x.Clients[i]
		if !r.CIDR.IsValid() {
			if r.Name == "" || h == nil {
				return nil, fmt.Errorf("nfs: export %s: rule %d has no valid prefix", x.Pseudo, i)
			}
			names = append(names, r.Name)
			continue
		}
		if a := r.CIDR.Addr(); a.Is4In6() && r.CIDR.Bits() >= v4InV6 {
			r.CIDR = netip.PrefixFrom(a.Unmap(), r.CIDR.Bits()-v4InV6)
		}
	}
	slices.SortStableFunc(x.Clients, func(a, b ClientRule) int {
		if c := a.kind() - b.kind(); c != 0 || x.FirstMatch || a.kind() != kindNetwork {
			return c
		}
		return b.CIDR.Bits() - a.CIDR.Bits()
	})
	return names, nil
}

// Prospect returns a copy of an export by which the caller can find out what clients the export
// would admit. The copy is in no table and needs no store. h resolves the names in rules. The names
// are requested at the first use, and dropped at the next change of a table.
func (x *Export) Prospect(h Hosts) (*Export, error) {
	p := new(Export)
	*p = *x
	_, err := p.arrange(h)
	return p, err
}

// Kinds of rules, in the order of their precedence.
const (
	kindHost = iota
	kindNetwork
	kindPattern
	kindGroup
	kindEveryone
)

func (r *ClientRule) kind() int {
	switch {
	case r.CIDR.IsValid() && r.CIDR.IsSingleIP():
		return kindHost
	case r.CIDR.IsValid() && r.CIDR.Bits() == 0:
		return kindEveryone
	case r.CIDR.IsValid():
		return kindNetwork
	case strings.HasPrefix(r.Name, "@"):
		return kindGroup
	case strings.ContainsAny(r.Name, "*?["):
		return kindPattern
	}
	return kindHost
}

// v4InV6 is how many bits precede the IPv4 address in an IPv4-mapped one.
const v4InV6 = 96

func (t *Table) load() *snapshot { return t.cur.Load() }

// AdmitsHost reports whether any export admits a host, by any transport. A host whose name is being
// resolved is not admitted.
func (t *Table) AdmitsHost(a netip.Addr) bool {
	return slices.ContainsFunc(t.load().list, func(x *Export) bool {
		_, st := x.Rule(a)
		return st == OK
	})
}

// ByID returns the export of a number, or nil.
func (t *Table) ByID(id uint32) *Export { return t.load().byID[id] }

// Below returns the export that covers a name of a directory of another export, or nil.
func (t *Table) Below(x *Export, dir *blockstore.Handle, name string) *Export {
	if !x.covers {
		return nil
	}
	return t.load().places[Place{x.ID, *dir, name}]
}

// Hosts returns the Hosts of NewTable.
func (t *Table) Hosts() Hosts { return t.hosts }

// HostLocker implements lock.Hosts.
func (t *Table) HostLocker(id uint32) (h blockstore.HostLocker, take bool) {
	x := t.ByID(id)
	if x == nil {
		return nil, false
	}
	h, _ = x.FS.(blockstore.HostLocker)
	return h, x.HostLocks
}

// Fenced returns Export.Fenced of an export, for lock.Table.ReclaimOver.
func (t *Table) Fenced(id uint32) bool {
	x := t.ByID(id)
	return x != nil && x.Fenced
}

// Exports returns all exports in their order. The caller must not change the slice.
func (t *Table) Exports() []*Export { return t.load().list }

// PathMax is the longest path of a MNT (MNTPATHLEN).
const PathMax = 1024

// ByPath finds the export for a path of MNT: the one with the longest name that is a prefix of the
// path. rest is the path below the export, without a slash at either end; it is empty for the
// export itself. ".." is resolved in the text, before any lookup.
func (t *Table) ByPath(p string) (x *Export, rest string) {
	s := t.load()
	p = path.Clean("/" + p)
	for at := p; ; at = path.Dir(at) {
		if x := s.byName[at]; x != nil {
			return x, strings.Trim(p[len(at):], "/")
		}
		if at == "/" {
			return nil, ""
		}
	}
}
