package measure

import (
	"maps"
	"slices"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// StoreOp is a call of a store.
type StoreOp uint8

// Calls of a store. Similar ones are counted together.
const (
	StoreRead StoreOp = iota
	StoreWrite
	StoreCommit
	StoreGetAttr
	StoreSetAttr
	StoreLookup
	StoreAccess
	StoreReadDir
	StoreReadLink
	StoreCreate // and everything else that makes a name
	StoreRemove
	StoreRename
	StoreStat
	StoreSpace // holes, space set aside, copies
	StoreXattr // and ACLs
	storeOps
)

var storeOpNames = [storeOps]string{
	"read", "write", "commit", "getattr", "setattr", "lookup", "access", "readdir", "readlink", "create", "remove",
	"rename", "statfs", "space", "xattr",
}

func (o StoreOp) String() string { return storeOpNames[o] }

// Store records the calls of a store. nil records nothing. Its methods may be called from any
// goroutine.
type Store struct{ ops points }

// epoch is the zero of Begin's clock.
var epoch = time.Now()

// Begin returns the time at the beginning of a call.
func (*Store) Begin() time.Duration { return time.Since(epoch) }

// End records a call that began at a time of Begin, and adds its duration to c, which may be nil.
func (s *Store) End(op StoreOp, c *blockstore.Cred, began time.Duration) {
	d := time.Since(epoch) - began
	if c != nil {
		c.Spent += int64(d)
	}
	if s != nil {
		s.ops[here()][op].add(d)
	}
}

// exportMax bounds the numbers of exports that are recorded.
const exportMax = 1 << 16

type export struct {
	name  string
	calls points // by kind and transport
	store *Store

	troubles []trouble // as Config.Troubles
}

// SetExports sets the exports by number. The records of exports that stay are kept, the others are
// removed.
func (r *Recorder) SetExports(names map[uint32]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.exports.Load()
	var next []*export
	for id, name := range names {
		if id == 0 || id >= exportMax {
			continue
		}
		if n := int(id) + 1; n > len(next) {
			next = slices.Grow(next, n-len(next))[:n]
		}
		next[id] = &export{
			name: name, calls: newPoints(int(kinds) * len(transports)), store: r.store(id),
			troubles: make([]trouble, len(r.cfg.Troubles)),
		}
		if int(id) < len(old) && old[id] != nil {
			next[id].calls = old[id].calls
		}
	}
	maps.DeleteFunc(r.stores, func(id uint32, _ *Store) bool { return names[id] == "" })
	r.exports.Store(&next)
	r.users.keep(func(x *user) bool { return names[x.export] != "" })
}

// Store returns the recorder for the store of an export. The store may open before SetExports names
// the export.
func (r *Recorder) Store(id uint32) *Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.store(id)
}

// store is Store. The caller holds mu.
func (r *Recorder) store(id uint32) *Store {
	s := r.stores[id]
	if s == nil {
		s = &Store{newPoints(int(storeOps))}
		r.stores[id] = s
	}
	return s
}

// ExportCalls has the records of the calls about an export.
type ExportCalls struct {
	Export    string
	Kind      Kind
	Transport rpc.Transport
	Sums
}

// Exports lists the records by export, kind and transport.
func (r *Recorder) Exports() []ExportCalls {
	var out []ExportCalls
	for _, x := range *r.exports.Load() {
		if x == nil {
			continue
		}
		for i := range int(kinds) * len(transports) {
			if s := x.calls.sums(i); s.Count() > 0 {
				out = append(out, ExportCalls{x.name, Kind(i / len(transports)), transports[i%len(transports)], s})
			}
		}
	}
	return out
}

// StoreCalls has the records of the calls of a store.
type StoreCalls struct {
	Export string
	Op     StoreOp
	Sums
}

// Stores lists the records by export and call.
func (r *Recorder) Stores() []StoreCalls {
	var out []StoreCalls
	for _, x := range *r.exports.Load() {
		if x == nil {
			continue
		}
		for op := range storeOps {
			if s := x.store.ops.sums(int(op)); s.Count() > 0 {
				out = append(out, StoreCalls{x.name, op, s})
			}
		}
	}
	return out
}

// exportName is the name of an export by its number; empty if there is none.
func (r *Recorder) exportName(id uint32) string {
	if list := *r.exports.Load(); int64(id) < int64(len(list)) && list[id] != nil {
		return list[id].name
	}
	return ""
}
