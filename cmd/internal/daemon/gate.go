package daemon

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

// setAsync changes whether a store answers before changes are on disk, if it can.
func (g *gate) setAsync(on bool) {
	if s, ok := g.fs.(interface{ SetAsync(on bool) }); ok && g.enter() {
		defer g.leave()
		s.SetAsync(on)
	}
}

// These say what a store is and touch nothing that Close releases.

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

func (g *gate) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) (blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreSetAttr, c, g.meter.Begin())
	return g.fs.SetAttr(c, h, s, guard)
}

func (g *gate) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Handle, blockstore.Attr, error) {
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

func (g *gate) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int, blockstore.Stability, blockstore.Wcc, error) {
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

func (g *gate) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode, s *blockstore.SetAttr, verf [8]byte) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Create(c, dir, name, mode, s, verf)
}

func (g *gate) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Mkdir(c, dir, name, s)
}

func (g *gate) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Symlink(c, dir, name, target, s)
}

func (g *gate) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, major, minor uint32, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
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

func (g *gate) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle, toName string) (blockstore.Wcc, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Wcc{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreRename, c, g.meter.Begin())
	return g.fs.Rename(c, from, fromName, to, toName)
}

func (g *gate) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (blockstore.Attr, blockstore.Wcc, error) {
	if !g.enter() {
		return blockstore.Attr{}, blockstore.Wcc{}, blockstore.ErrStale
	}
	defer g.left(measure.StoreCreate, c, g.meter.Begin())
	return g.fs.Link(c, h, dir, name)
}

func (g *gate) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, verf [8]byte, plus bool, emit func(*blockstore.DirEntry) bool) ([8]byte, bool, error) {
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

// The gate has Extents where the store has.

func (g *gate) extents() (blockstore.Extents, error) {
	x, ok := g.fs.(blockstore.Extents)
	if !ok {
		return nil, blockstore.ErrNotSupp
	}
	if !g.enter() {
		return nil, blockstore.ErrStale
	}
	return x, nil
}

func (g *gate) Seek(c *blockstore.Cred, h blockstore.Handle, off uint64, hole bool) (uint64, error) {
	x, err := g.extents()
	if err != nil {
		return 0, err
	}
	defer g.left(measure.StoreSpace, c, g.meter.Begin())
	return x.Seek(c, h, off, hole)
}

func (g *gate) Allocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	x, err := g.extents()
	if err != nil {
		return err
	}
	defer g.left(measure.StoreSpace, c, g.meter.Begin())
	return x.Allocate(c, h, off, n)
}

func (g *gate) Deallocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	x, err := g.extents()
	if err != nil {
		return err
	}
	defer g.left(measure.StoreSpace, c, g.meter.Begin())
	return x.Deallocate(c, h, off, n)
}

func (g *gate) Clone(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff, n uint64) error {
	x, err := g.extents()
	if err != nil {
		return err
	}
	defer g.left(measure.StoreSpace, c, g.meter.Begin())
	return x.Clone(c, from, fromOff, to, toOff, n)
}

func (g *gate) Copy(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff, n uint64) (uint64, error) {
	x, err := g.extents()
	if err != nil {
		return 0, err
	}
	defer g.left(measure.StoreSpace, c, g.meter.Begin())
	return x.Copy(c, from, fromOff, to, toOff, n)
}

// And it has Xattrs where the store has.

func (g *gate) xattrs() (blockstore.Xattrs, error) {
	x, ok := g.fs.(blockstore.Xattrs)
	if !ok {
		return nil, blockstore.ErrNotSupp
	}
	if !g.enter() {
		return nil, blockstore.ErrStale
	}
	return x, nil
}

func (g *gate) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) ([]byte, error) {
	x, err := g.xattrs()
	if err != nil {
		return nil, err
	}
	defer g.left(measure.StoreXattr, c, g.meter.Begin())
	return x.GetXattr(c, h, name)
}

func (g *gate) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte, mode blockstore.SetXattrMode) (blockstore.Wcc, error) {
	x, err := g.xattrs()
	if err != nil {
		return blockstore.Wcc{}, err
	}
	defer g.left(measure.StoreXattr, c, g.meter.Begin())
	return x.SetXattr(c, h, name, value, mode)
}

func (g *gate) ListXattrs(c *blockstore.Cred, h blockstore.Handle) ([]string, error) {
	x, err := g.xattrs()
	if err != nil {
		return nil, err
	}
	defer g.left(measure.StoreXattr, c, g.meter.Begin())
	return x.ListXattrs(c, h)
}

func (g *gate) RemoveXattr(c *blockstore.Cred, h blockstore.Handle, name string) (blockstore.Wcc, error) {
	x, err := g.xattrs()
	if err != nil {
		return blockstore.Wcc{}, err
	}
	defer g.left(measure.StoreXattr, c, g.meter.Begin())
	return x.RemoveXattr(c, h, name)
}

// And ACLs.

func (g *gate) acls() (blockstore.ACLs, error) {
	x, ok := g.fs.(blockstore.ACLs)
	if !ok {
		return nil, blockstore.ErrNotSupp
	}
	if !g.enter() {
		return nil, blockstore.ErrStale
	}
	return x, nil
}

func (g *gate) GetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind) (blockstore.ACL, error) {
	x, err := g.acls()
	if err != nil {
		return nil, err
	}
	defer g.left(measure.StoreXattr, c, g.meter.Begin())
	return x.GetACL(c, h, kind)
}

func (g *gate) SetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind, l blockstore.ACL) (blockstore.Wcc, error) {
	x, err := g.acls()
	if err != nil {
		return blockstore.Wcc{}, err
	}
	defer g.left(measure.StoreXattr, c, g.meter.Begin())
	return x.SetACL(c, h, kind, l)
}

// And quotas.

func (g *gate) Quota(c *blockstore.Cred, h blockstore.Handle) (blockstore.Quota, error) {
	x, ok := g.fs.(blockstore.Quotas)
	if !ok {
		return blockstore.Quota{}, blockstore.ErrNotSupp
	}
	if !g.enter() {
		return blockstore.Quota{}, blockstore.ErrStale
	}
	defer g.leave()
	return x.Quota(c, h)
}

// And locks of the host.

func (g *gate) hostLocker() (blockstore.HostLocker, error) {
	x, ok := g.fs.(blockstore.HostLocker)
	if !ok {
		return nil, blockstore.ErrNotSupp
	}
	if !g.enter() {
		return nil, blockstore.ErrStale
	}
	return x, nil
}

func (g *gate) LockHost(h blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	x, err := g.hostLocker()
	if err != nil {
		return nil, err
	}
	defer g.leave()
	return x.LockHost(h, start, end, exclusive)
}

func (g *gate) UnlockHost(h blockstore.Handle, start, end uint64) {
	if x, err := g.hostLocker(); err == nil {
		defer g.leave()
		x.UnlockHost(h, start, end)
	}
}

func (g *gate) ReleaseHost(h blockstore.Handle) {
	if x, err := g.hostLocker(); err == nil {
		defer g.leave()
		x.ReleaseHost(h)
	}
}

func (g *gate) TestHost(h blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	x, err := g.hostLocker()
	if err != nil {
		return nil, err
	}
	defer g.leave()
	return x.TestHost(h, start, end, exclusive)
}

// And leases: at the files of a store that has none nobody else can get.

// Lease implements blockstore.Leaser.
func (g *gate) Lease(h blockstore.Handle, write bool, broken func()) (func(), error) {
	x, ok := g.fs.(blockstore.Leaser)
	if !ok {
		return nil, nil
	}
	if !g.enter() {
		return nil, blockstore.ErrStale
	}
	defer g.leave()
	return x.Lease(h, write, broken)
}

// Pin implements blockstore.Pinner.
func (g *gate) Pin(h blockstore.Handle) error {
	x, ok := g.fs.(blockstore.Pinner)
	if !ok {
		return blockstore.ErrNotSupp
	}
	if !g.enter() {
		return blockstore.ErrStale
	}
	defer g.leave()
	return x.Pin(h)
}

// Unpin implements blockstore.Pinner. Close ends all pins.
func (g *gate) Unpin(h blockstore.Handle) {
	if x, ok := g.fs.(blockstore.Pinner); ok && g.enter() {
		defer g.leave()
		x.Unpin(h)
	}
}

// Map implements blockstore.Mapper. What is lent may outlive the store.
func (g *gate) Map(c *blockstore.Cred, h blockstore.Handle, off uint64, n int) (blockstore.Window, bool) {
	x, ok := g.fs.(blockstore.Mapper)
	if !ok || !g.enter() {
		return nil, false
	}
	defer g.leave()
	return x.Map(c, h, off, n)
}

// WriteNowait implements blockstore.NowaitWriter.
func (g *gate) WriteNowait(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int, blockstore.Stability, blockstore.Wcc, error) {
	x, ok := g.fs.(blockstore.NowaitWriter)
	if !ok || !g.enter() {
		return 0, how, blockstore.Wcc{}, blockstore.ErrWouldBlock
	}
	defer g.leave()
	return x.WriteNowait(c, h, p, off, how)
}

// setDirect passes an export's option on to a store that knows it.
func (g *gate) setDirect(on bool) {
	x, ok := g.fs.(interface{ SetDirect(on bool) })
	if !ok || !g.enter() {
		return
	}
	defer g.leave()
	x.SetDirect(on)
}
