package exports

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/measure"
)

// gate stands in front of a store so that it can be closed while calls are
// still inside: an export may be removed at any moment, but a descriptor must
// not be closed under a read that is using it. Calls that arrive after Close
// find the export gone (ErrStale) and never wait.
//
// It wraps every call rather than each request of a client: copies, leases, locks of the host and
// pins use stores outside of requests, and each call is measured by its operation.
type gate struct {
	fs    blockstore.FS
	meter *measure.Store
	// refs counts the calls inside. Close adds closed, which makes it negative
	// for good.
	refs  atomic.Int64
	empty chan struct{}
	once  sync.Once
}

const closed = math.MinInt64 / 2

// newGate makes the gate of a store, whose calls are measured by m, which may be nil.
func newGate(fs blockstore.FS, m *measure.Store) *gate {
	return &gate{fs: fs, meter: m, empty: make(chan struct{})}
}

func (g *gate) enter() bool {
	if g.refs.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.refs.Add(-1) == closed {
		g.once.Do(func() { close(g.empty) })
	}
}

// left is leave at the end of a call that began then.
func (g *gate) left(op measure.StoreOp, c *blockstore.Cred, began time.Duration) {
	g.meter.End(op, c, began)
	g.leave()
}

// Close turns new calls away, waits for those inside and closes the store. It
// must be called once.
func (g *gate) Close() error {
	if g.refs.Add(closed) == closed {
		g.once.Do(func() { close(g.empty) })
	}
	<-g.empty
	return g.fs.Close()
}

// set passes options of an export on to a store that knows them.
func (g *gate) set(async, direct bool) {
	if x, err := optional[interface{ SetAsync(on bool) }](g); err == nil {
		defer g.leave()
		x.SetAsync(async)
	}
	if x, err := optional[interface{ SetDirect(on bool) }](g); err == nil {
		defer g.leave()
		x.SetDirect(direct)
	}
}

// volume asks the store how full it is. It is not measured as a client's call.
func (g *gate) volume() (blockstore.Stat, error) {
	if !g.enter() {
		return blockstore.Stat{}, blockstore.ErrStale
	}
	defer g.leave()
	h, err := g.fs.Root()
	if err != nil {
		return blockstore.Stat{}, err
	}
	return g.fs.Stat(&blockstore.Cred{}, h)
}

// These methods describe the store. They use nothing that Close releases, so they do not enter the
// gate.

func (g *gate) FSID() uint64              { return g.fs.FSID() }
func (g *gate) Verifier() [8]byte         { return g.fs.Verifier() }
func (g *gate) Limits() blockstore.Limits { return g.fs.Limits() }

func (g *gate) Root() (blockstore.Handle, error) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.ErrStale
	}
	defer g.leave()
	return g.fs.Root()
}

func (g *gate) GetAttr(c *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	if !g.enter() {
		return blockstore.Attr{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreGetAttr, c, g.meter.Begin())
	return g.fs.GetAttr(c, h)
}

func (g *gate) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr,
	guard *time.Time,
) (blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreSetAttr, c, g.meter.Begin())
	return g.fs.SetAttr(c, h, s, guard)
}

func (g *gate) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Handle, blockstore.Attr,
	error,
) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreLookup, c, g.meter.Begin())
	return g.fs.Lookup(c, dir, name)
}

func (g *gate) Access(c *blockstore.Cred, h blockstore.Handle, want uint32) (uint32, blockstore.Attr, error) {
	if !g.enter() {
		return 0, blockstore.Attr{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreAccess, c, g.meter.Begin())
	return g.fs.Access(c, h, want)
}

func (g *gate) ReadLink(c *blockstore.Cred, h blockstore.Handle) (string, error) {
	if !g.enter() {
		return "", blockstore.ErrStale
	}
	defer g.left(measure.StoreReadLink, c, g.meter.Begin())
	return g.fs.ReadLink(c, h)
}

func (g *gate) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool, error) {
	if !g.enter() {
		return 0, false, blockstore.ErrStale
	}
	if nowait { // from memory, or not at all
		defer g.leave()
	} else {
		defer g.left(measure.StoreRead, c, g.meter.Begin())
	}
	return g.fs.ReadAt(c, h, p, off, nowait)
}

func (g *gate) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int,
	blockstore.Stability, blockstore.Wcc, error,
) {
	if !g.enter() {
		return 0, 0, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreWrite, c, g.meter.Begin())
	return g.fs.WriteAt(c, h, p, off, how)
}

func (g *gate) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, n uint32) (blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCommit, c, g.meter.Begin())
	return g.fs.Commit(c, h, off, n)
}

func (g *gate) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode,
	s *blockstore.SetAttr, verf [8]byte,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Create(c, dir, name, mode, s, verf)
}

func (g *gate) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string,
	s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Mkdir(c, dir, name, s)
}

func (g *gate) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string,
	s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Symlink(c, dir, name, target, s)
}

func (g *gate) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, major,
	minor uint32, s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Mknod(c, dir, name, typ, major, minor, s)
}

func (g *gate) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreRemove, c, g.meter.Begin())
	return g.fs.Remove(c, dir, name)
}

func (g *gate) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreRemove, c, g.meter.Begin())
	return g.fs.Rmdir(c, dir, name)
}

func (g *gate) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle,
	toName string,
) (blockstore.Wcc, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Wcc{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreRename, c, g.meter.Begin())
	return g.fs.Rename(c, from, fromName, to, toName)
}

func (g *gate) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (blockstore.Attr, blockstore.Wcc,
	error,
) {
	if !g.enter() {
		return blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Link(c, h, dir, name)
}

func (g *gate) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, verf [8]byte, plus bool,
	emit func(*blockstore.DirEntry) bool,
) ([8]byte, bool, error) {
	if !g.enter() {
		return verf, false, blockstore.ErrStale
	}
	defer g.left(measure.StoreReadDir, c, g.meter.Begin())
	return g.fs.ReadDir(c, dir, cookie, verf, plus, emit)
}

func (g *gate) Stat(c *blockstore.Cred, h blockstore.Handle) (blockstore.Stat, error) {
	if !g.enter() {
		return blockstore.Stat{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreStat, c, g.meter.Begin())
	return g.fs.Stat(c, h)
}
