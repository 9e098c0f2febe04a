package exports

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/nfs"
	"go.uber.org/zap"
)

// Export is an export and its store.
type Export struct {
	control.Export
	store *gate // nil if it could not be opened
}

// Open reports whether the store of the export could be opened.
func (e *Export) Open() bool { return e.store != nil }

// Store is the store of an open export. The gate does not count calls to it, so the export must not
// be removed meanwhile.
func (e *Export) Store() blockstore.FS { return e.store.fs }

// Volume asks the store of an open export how full it is.
func (e *Export) Volume() (blockstore.Stat, error) { return e.store.volume() }

// Guard puts a store behind a gate, as those of a Set are.
func Guard(fs blockstore.FS) blockstore.FS { return newGate(fs, nil) }

// Config is what a Set works with.
type Config struct {
	State    *state.Store
	Table    *nfs.Table
	Recorder *measure.Recorder
	Files    *posixfs.Files
	NoUmask  bool // see posixfs.Options
	Log      *telemetry.Log
	// XprtSec is for rules that do not say how a connection has to be protected.
	XprtSec func() []string
	// From is the old process of an upgrade, whose stores continue here, or nil.
	From *upgrade.Predecessor
	// Session names the session of an export at the MDS of a CephFS. It is called before each mount.
	Session func(filesystem string, export uint32) (string, error)
	// Lease is how long a client of version 4 may be silent.
	Lease time.Duration
	// Lost is called when a store can do nothing any more, because its cluster has ended it.
	Lost func(error)
	// Removed is called with the number of each export that is not served any more, after the table
	// has forgotten it and before its store is closed for good.
	Removed func(id uint32)
}

// Set are the exports that are served. Methods that change it must not run at the same time; the
// others may be called from any goroutine.
type Set struct {
	Config
	list        atomic.Pointer[[]*Export]
	filesystems map[uint32]filesystem // of exports that are served, by number
	lost        error                 // of stores that could not be restored
	closing     sync.Map              // of retire: a chan struct{} by the export's number
}

// New makes an empty set.
func New(cfg Config) *Set {
	s := &Set{Config: cfg, filesystems: make(map[uint32]filesystem)}
	s.list.Store(new([]*Export))
	return s
}

// All returns the exports, in their order. The slice and its exports do not change: a change of the
// set makes new ones.
func (s *Set) All() []*Export { return *s.list.Load() }

// Find is the export of that name.
func (s *Set) Find(name string) (*Export, error) {
	for _, e := range s.All() {
		if e.Pseudo == name {
			return e, nil
		}
	}
	for _, e := range s.All() {
		if e.Named(name) {
			return e, nil
		}
	}
	return nil, fmt.Errorf("export %q: %w", name, control.ErrNotFound)
}

// Same returns the export whose store can serve another one, or nil. A change to it keeps its store
// open.
func (s *Set) Same(e *config.Export) *Export {
	i := slices.IndexFunc(s.All(), func(o *Export) bool { return o.store != nil && SameStore(&o.Export.Export, e) })
	if i < 0 {
		return nil
	}
	return s.All()[i]
}

// SameStore reports whether the store can stay open over a change.
func SameStore(a, b *config.Export) bool {
	return a.Type == b.Type && a.Path == b.Path && a.Pseudo == b.Pseudo && (a.Type != config.TypePosix || sameFSID(a, b))
}

// sameFSID reports whether two exports have one fsid, in whatever way it is written.
func sameFSID(a, b *config.Export) bool {
	x, _ := config.ParseFSID(a.FSID)
	y, _ := config.ParseFSID(b.FSID)
	return x == y
}

// Apply brings what is served in line with what is desired. Stores that are still wanted stay open,
// new ones come from ready or are opened. The others are closed, once the table has forgotten them
// and the calls inside have ended. An export that cannot be opened has its error in the set, and
// does not stop the others: failed has those errors.
func (s *Set) Apply(want []control.Export, mounts []desired.Mount, ready *Ready) (failed []error, err error) {
	next := make([]*Export, 0, len(want))
	kept := make(map[*Export]bool)
	for _, w := range want {
		e := &Export{Export: w}
		if err := s.open(e, want, mounts, ready, kept); err != nil {
			e.Error = err.Error()
			failed = append(failed, fmt.Errorf("export %s: %w", w.Pseudo, err))
			if !slices.ContainsFunc(s.All(), func(o *Export) bool { return o.Pseudo == w.Pseudo && o.Error == e.Error }) {
				s.Log.Error("an export cannot be served", zap.String("export", w.Pseudo), zap.Error(err))
			}
		} else if f, ok := s.filesystems[e.ID]; ok && e.FSID == "" {
			e.Identity = f.dependsOn()
		}
		next = append(next, e)
	}
	if err := s.publish(next); err != nil {
		return failed, err
	}
	for _, old := range s.All() {
		if old.store == nil || kept[old] {
			continue
		}
		gone := s.removedSnapshot(old, next)
		if gone {
			if err := s.State.ForgetExport(&old.Export.Export, old.ID); err != nil {
				return failed, err
			}
		}
		s.retire(old, gone)
		if !slices.ContainsFunc(next, func(e *Export) bool { return e.ID == old.ID }) {
			s.Removed(old.ID)
		}
	}
	s.list.Store(&next)
	maps.DeleteFunc(s.filesystems, func(id uint32, _ filesystem) bool {
		return !slices.ContainsFunc(next, func(e *Export) bool { return e.ID == id && e.store != nil })
	})
	names := make(map[uint32]string)
	for _, e := range next {
		if e.store != nil {
			names[e.ID] = e.Pseudo
		}
	}
	s.Recorder.SetExports(names)
	return failed, nil
}

// open gives an export its store.
func (s *Set) open(
	e *Export, want []control.Export, mounts []desired.Mount, ready *Ready, kept map[*Export]bool,
) error {
	id, err := s.State.ExportID(&e.Export.Export)
	if err != nil {
		return err
	}
	if err := desired.MountedAt(&e.Export.Export, mounts); err != nil {
		return err
	}
	e.ID = id
	if old := s.Same(&e.Export.Export); old != nil {
		e.store, kept[old] = old.store, true
		if err := setQuota(old, &e.Export.Export); err != nil {
			s.Log.Error("the quota of an export cannot be set", zap.String("export", e.Pseudo), zap.Error(err))
		}
	} else {
		if e.store = ready.take(&e.Export.Export); e.store == nil {
			if e.store, err = s.openGate(&e.Export.Export, id, want); err != nil {
				return err
			}
		}
		s.Log.Info("exporting", zap.String("path", e.Path), zap.String("as", e.Pseudo), zap.Strings("and_as", e.Aliases),
			zap.String("type", e.Type))
	}
	e.store.set(e.Async, e.Direct)
	return nil
}

// Ready are stores that were opened for a change that is not made yet.
type Ready struct{ list []*Export }

// Prepare opens the stores that a change needs beside those that are open.
func (s *Set) Prepare(want []control.Export, mounts []desired.Mount) (_ *Ready, err error) {
	r := new(Ready)
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	for i := range want {
		e := &Export{Export: want[i]}
		if desired.MountedAt(&e.Export.Export, mounts) != nil {
			continue
		}
		if s.Same(&e.Export.Export) != nil {
			if err := s.SetQuota(&e.Export.Export); err != nil {
				return nil, fmt.Errorf("export %s: %w", e.Pseudo, err)
			}
			continue
		}
		if e.ID, err = s.State.ExportID(&e.Export.Export); err != nil {
			return nil, err
		}
		if e.store, err = s.openGate(&e.Export.Export, e.ID, want); err != nil {
			return nil, fmt.Errorf("export %s: %w", e.Pseudo, err)
		}
		r.list = append(r.list, e)
	}
	return r, nil
}

// take is the store for an export, if there is one. A nil Ready has none.
func (r *Ready) take(e *config.Export) *gate {
	if r == nil {
		return nil
	}
	for _, o := range r.list {
		if o.store != nil && SameStore(&o.Export.Export, e) {
			g := o.store
			o.store = nil
			return g
		}
	}
	return nil
}

// Close closes the stores that no export has taken.
func (r *Ready) Close() {
	for _, e := range r.list {
		if e.store != nil {
			_ = e.store.Close()
		}
	}
	r.list = nil
}

// Try opens the store of an export and closes it again.
func (s *Set) Try(e *config.Export) error {
	id, err := s.State.ExportID(e)
	if err != nil {
		return err
	}
	all := make([]control.Export, 0, len(s.All()))
	for _, o := range s.All() {
		all = append(all, o.Export)
	}
	g, err := s.openGate(e, id, all)
	if err != nil {
		return err
	}
	return g.Close()
}

// openGate opens the store of an export, which is one of list.
func (s *Set) openGate(e *config.Export, id uint32, list []control.Export) (*gate, error) {
	fs, err := s.openStore(e, id)
	if err != nil {
		return nil, err
	}
	if err := checkLinks(e, fs, list); err != nil {
		return nil, errors.Join(err, fs.Close())
	}
	if err := s.restore(e.Pseudo, fs); err != nil {
		return nil, err
	}
	g := newGate(fs, s.Recorder.Store(id))
	if n := e.QuotaBytes(); n > 0 {
		if err := g.setQuota(n); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g, nil
}

// Close closes all stores. The set is empty then.
func (s *Set) Close() error {
	var errs []error
	for _, e := range *s.list.Swap(new([]*Export)) {
		if e.store != nil {
			errs = append(errs, e.store.Close())
		}
	}
	return errors.Join(errs...)
}

// publish makes a list of exports the one that calls are served by. Names come
// before aliases: of exports with one number the first one's rules count.
func (s *Set) publish(list []*Export) error {
	var out []*nfs.Export
	xprtsec := s.XprtSec()
	for _, e := range list {
		if e.store != nil {
			x := e.NFS(e.Pseudo, xprtsec)
			x.Place = place(e, list)
			out = append(out, x)
		}
	}
	for _, e := range list {
		if e.store != nil {
			for _, a := range e.Aliases {
				out = append(out, e.NFS(a, xprtsec))
			}
		}
	}
	return s.Table.Replace(out)
}

// removedSnapshot reports whether an export is a snapshot that is gone for good: the export that it
// was made of is still served.
func (s *Set) removedSnapshot(e *Export, next []*Export) bool {
	return e.Origin == control.OriginSnapshot && slices.ContainsFunc(next, func(o *Export) bool {
		_, in := desired.Within(o.Path, e.Path)
		return in && o.store != nil && !o.Derived()
	})
}

// NFS returns the export for the protocol layer. Rules without xprtsec get the one that is passed.
func (e *Export) NFS(pseudo string, xprtsec []string) *nfs.Export {
	x := &nfs.Export{ID: e.ID, Path: e.Path, Pseudo: pseudo, ReadOnly: e.ReadOnly, FS: e.store}
	x.HostLocks = e.Type == config.TypeCeph || e.Type == config.TypePosix && (e.HostLocks == nil || *e.HostLocks)
	x.Fenced = e.Type == config.TypeCeph
	for _, p := range e.PKeys {
		k, _ := config.ParsePKey(p) // it was normalized
		x.PKeys = append(x.PKeys, k)
	}
	x.Locations, x.Moved, _ = e.Locations() // they were normalized
	x.Labels = e.SecurityLabel
	x.CrossMnt, x.FirstMatch, x.Limit = e.CrossMnt, e.FirstMatch, e.Limit()
	x.Ident, _ = config.ParseFSID(e.FSID)
	clients := e.Rules()
	for i := range clients {
		c := &clients[i]
		rule := c.NFS()
		if rule.Securities == 0 && len(xprtsec) < 3 {
			def := config.Client{XprtSec: xprtsec}
			if rule.Securities = def.NFS().Securities; rule.Transports == 0 {
				rule.Transports = nfs.ByTCP | nfs.ByRDMA // the setting is about TCP alone
			}
		}
		if c.Host != "" {
			rule.Name = c.Host
			x.Clients = append(x.Clients, rule)
			continue
		}
		for _, p := range c.Prefixes() {
			rule.CIDR = p
			x.Clients = append(x.Clients, rule)
		}
	}
	return x
}
