package exports

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/measure"
)

// optional enters the gate of a store that has an optional interface.
func optional[T any](g *gate) (x T, err error) {
	x, ok := g.fs.(T)
	if !ok {
		return x, blockstore.ErrNotSupp
	}
	if !g.enter() {
		return x, blockstore.ErrStale
	}
	return x, nil
}

// within runs fn on the optional interface I of the store, inside of the gate.
func within[I, R any](g *gate, fn func(I) (R, error)) (r R, err error) {
	x, err := optional[I](g)
	if err != nil {
		return r, err
	}
	defer g.leave()
	return fn(x)
}

// measured is within for a call that is measured as op of the user c.
func measured[I, R any](g *gate, op measure.StoreOp, c *blockstore.Cred, fn func(I) (R, error)) (R, error) {
	return within(g, func(x I) (R, error) {
		defer g.meter.End(op, c, g.meter.Begin())
		return fn(x)
	})
}

// change is measured for the calls that change the extents of a file, and return an error alone.
func (g *gate) change(c *blockstore.Cred, fn func(blockstore.Extents) error) error {
	_, err := measured(g, measure.StoreSpace, c, func(x blockstore.Extents) (struct{}, error) { return struct{}{}, fn(x) })
	return err
}

func (g *gate) Seek(c *blockstore.Cred, h blockstore.Handle, off uint64, hole bool) (uint64, error) {
	return measured(g, measure.StoreSpace, c, func(x blockstore.Extents) (uint64, error) {
		return x.Seek(c, h, off, hole)
	})
}

func (g *gate) Allocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	return g.change(c, func(x blockstore.Extents) error { return x.Allocate(c, h, off, n) })
}

func (g *gate) Deallocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	return g.change(c, func(x blockstore.Extents) error { return x.Deallocate(c, h, off, n) })
}

func (g *gate) Clone(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) error {
	return g.change(c, func(x blockstore.Extents) error { return x.Clone(c, from, fromOff, to, toOff, n) })
}

func (g *gate) Copy(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) (uint64, error) {
	return measured(g, measure.StoreSpace, c, func(x blockstore.Extents) (uint64, error) {
		return x.Copy(c, from, fromOff, to, toOff, n)
	})
}

// CopyFrom implements blockstore.Siblings. It passes both gates.
func (g *gate) CopyFrom(c *blockstore.Cred, other blockstore.FS, reader *blockstore.Cred, from blockstore.Handle,
	fromOff uint64, to blockstore.Handle, toOff, n uint64,
) (uint64, error) {
	o, ok := other.(*gate)
	if !ok {
		return 0, blockstore.ErrXDev
	}
	x, err := optional[blockstore.Siblings](g)
	if err != nil {
		return 0, err
	}
	defer g.left(measure.StoreSpace, c, g.meter.Begin())
	if !o.enter() {
		return 0, blockstore.ErrStale
	}
	defer o.leave()
	return x.CopyFrom(c, o.fs, reader, from, fromOff, to, toOff, n)
}

func (g *gate) GetXattr(c *blockstore.Cred, h blockstore.Handle, name string) ([]byte, error) {
	return measured(g, measure.StoreXattr, c, func(x blockstore.Xattrs) ([]byte, error) {
		return x.GetXattr(c, h, name)
	})
}

func (g *gate) SetXattr(c *blockstore.Cred, h blockstore.Handle, name string, value []byte,
	mode blockstore.SetXattrMode,
) (blockstore.Wcc, error) {
	return measured(g, measure.StoreXattr, c, func(x blockstore.Xattrs) (blockstore.Wcc, error) {
		return x.SetXattr(c, h, name, value, mode)
	})
}

func (g *gate) ListXattrs(c *blockstore.Cred, h blockstore.Handle) ([]string, error) {
	return measured(g, measure.StoreXattr, c, func(x blockstore.Xattrs) ([]string, error) {
		return x.ListXattrs(c, h)
	})
}

func (g *gate) RemoveXattr(c *blockstore.Cred, h blockstore.Handle, name string) (blockstore.Wcc, error) {
	return measured(g, measure.StoreXattr, c, func(x blockstore.Xattrs) (blockstore.Wcc, error) {
		return x.RemoveXattr(c, h, name)
	})
}

func (g *gate) GetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind) (blockstore.ACL, error) {
	return measured(g, measure.StoreXattr, c, func(x blockstore.ACLs) (blockstore.ACL, error) {
		return x.GetACL(c, h, kind)
	})
}

func (g *gate) SetACL(c *blockstore.Cred, h blockstore.Handle, kind blockstore.ACLKind,
	l blockstore.ACL,
) (blockstore.Wcc, error) {
	return measured(g, measure.StoreXattr, c, func(x blockstore.ACLs) (blockstore.Wcc, error) {
		return x.SetACL(c, h, kind, l)
	})
}

func (g *gate) GetLabel(c *blockstore.Cred, h blockstore.Handle) ([]byte, error) {
	return measured(g, measure.StoreXattr, c, func(x blockstore.Labels) ([]byte, error) {
		return x.GetLabel(c, h)
	})
}

func (g *gate) SetLabel(c *blockstore.Cred, h blockstore.Handle, label []byte) (blockstore.Wcc, error) {
	return measured(g, measure.StoreXattr, c, func(x blockstore.Labels) (blockstore.Wcc, error) {
		return x.SetLabel(c, h, label)
	})
}

func (g *gate) WillNeed(c *blockstore.Cred, h blockstore.Handle, off, n uint64) (bool, error) {
	return measured(g, measure.StoreSpace, c, func(x blockstore.Advises) (bool, error) {
		return x.WillNeed(c, h, off, n)
	})
}

func (g *gate) DontNeed(c *blockstore.Cred, h blockstore.Handle, off, n uint64) (bool, error) {
	x, err := optional[blockstore.Advises](g)
	if err != nil {
		return false, err
	}
	defer g.left(measure.StoreSpace, c, g.meter.Begin())
	return x.DontNeed(c, h, off, n)
}

func (g *gate) Birth(c *blockstore.Cred, h blockstore.Handle) (time.Time, error) {
	return measured(g, measure.StoreGetAttr, c, func(x blockstore.Births) (time.Time, error) {
		return x.Birth(c, h)
	})
}

func (g *gate) Quota(c *blockstore.Cred, h blockstore.Handle) (blockstore.Quota, error) {
	return within(g, func(x blockstore.Quotas) (blockstore.Quota, error) { return x.Quota(c, h) })
}

func (g *gate) ProjectQuota(dir blockstore.Handle) (blockstore.Quota, error) {
	return within(g, func(x blockstore.ProjectQuotas) (blockstore.Quota, error) { return x.ProjectQuota(dir) })
}

func (g *gate) LockHost(h blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	return within(g, func(x blockstore.HostLocker) (*blockstore.HostLock, error) {
		return x.LockHost(h, start, end, exclusive)
	})
}

func (g *gate) UnlockHost(h blockstore.Handle, start, end uint64) {
	if x, err := optional[blockstore.HostLocker](g); err == nil {
		defer g.leave()
		x.UnlockHost(h, start, end)
	}
}

func (g *gate) ReleaseHost(h blockstore.Handle) {
	if x, err := optional[blockstore.HostLocker](g); err == nil {
		defer g.leave()
		x.ReleaseHost(h)
	}
}

func (g *gate) TestHost(h blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	return within(g, func(x blockstore.HostLocker) (*blockstore.HostLock, error) {
		return x.TestHost(h, start, end, exclusive)
	})
}

// Lease implements blockstore.Leaser. Nobody else can reach the files of a store that has no
// leases.
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

// WatchDir implements blockstore.DirWatcher. Nobody else can change the directories of a store that
// cannot watch them.
func (g *gate) WatchDir(h blockstore.Handle, changed func()) (func(), error) {
	x, ok := g.fs.(blockstore.DirWatcher)
	if !ok {
		return nil, nil
	}
	if !g.enter() {
		return nil, blockstore.ErrStale
	}
	defer g.leave()
	return x.WatchDir(h, changed)
}

// Pin implements blockstore.Pinner.
func (g *gate) Pin(h blockstore.Handle) error {
	x, err := optional[blockstore.Pinner](g)
	if err != nil {
		return err
	}
	defer g.leave()
	return x.Pin(h)
}

// Unpin implements blockstore.Pinner. Close ends all pins.
func (g *gate) Unpin(h blockstore.Handle) {
	if x, err := optional[blockstore.Pinner](g); err == nil {
		defer g.leave()
		x.Unpin(h)
	}
}

// Map implements blockstore.Mapper. What is lent may outlive the store.
func (g *gate) Map(c *blockstore.Cred, h blockstore.Handle, off uint64, n int) (blockstore.Window, bool) {
	x, err := optional[blockstore.Mapper](g)
	if err != nil {
		return nil, false
	}
	defer g.leave()
	return x.Map(c, h, off, n)
}

// WriteNowait implements blockstore.NowaitWriter.
func (g *gate) WriteNowait(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64,
	how blockstore.Stability,
) (int, blockstore.Stability, blockstore.Wcc, error) {
	x, err := optional[blockstore.NowaitWriter](g)
	if err != nil {
		return 0, how, blockstore.Wcc{}, blockstore.ErrWouldBlock
	}
	defer g.leave()
	return x.WriteNowait(c, h, p, off, how)
}

// LookupNowait implements blockstore.NowaitLookup.
func (g *gate) LookupNowait(c *blockstore.Cred, dir blockstore.Handle, name string) (
	h blockstore.Handle, a, dirAttr blockstore.Attr, err error,
) {
	x, err := optional[blockstore.NowaitLookup](g)
	if err != nil {
		return h, a, dirAttr, blockstore.ErrWouldBlock
	}
	began := g.meter.Begin()
	if h, a, dirAttr, err = x.LookupNowait(c, dir, name); err != nil {
		g.leave()
		return h, a, dirAttr, err
	}
	g.left(measure.StoreLookup, c, began)
	return h, a, dirAttr, nil
}

// GetAttrNowait implements blockstore.NowaitAttr.
func (g *gate) GetAttrNowait(c *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	x, err := optional[blockstore.NowaitAttr](g)
	if err != nil {
		return blockstore.Attr{}, blockstore.ErrWouldBlock
	}
	began := g.meter.Begin()
	a, err := x.GetAttrNowait(c, h)
	if err != nil {
		g.leave()
		return a, err
	}
	g.left(measure.StoreGetAttr, c, began)
	return a, nil
}
