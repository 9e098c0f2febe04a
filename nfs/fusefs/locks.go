package fusefs

import (
	"context"
	"maps"
	"math"
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/nfs/client"
)

// Flags of FUSE that go-fuse does not name: RELEASE ends the flock of the file.
const releaseFlock = 1 << 1

// lockKey is an owner of locks: a process, or with flock(2) an open file.
type lockKey struct {
	owner uint64
	flock bool
}

func keyOf(in *fuse.LkIn) lockKey { return lockKey{in.Owner, in.LkFlags&fuse.LK_FLOCK != 0} }

// locker returns the File of the client that has the locks of an owner. With create it makes a
// missing one.
func (f *FS) locker(h *file, key lockKey, create bool) *client.File {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	l := h.n.locks[key]
	if l == nil && create {
		l = f.c.FileOf(h.ctx, &client.Node{Handle: h.n.handle, Attr: h.n.attr}, "the file")
		if h.n.locks == nil {
			h.n.locks = make(map[lockKey]*client.File)
		}
		h.n.locks[key] = l
	}
	return l
}

// underLocks returns a context for READs and WRITEs of a file. They fail if the server has given up
// locks that programs of this mount have on the file: another client may have changed the data. The
// kernel does not say which program has written a page. So programs without a lock get the error
// too.
func (n *node) underLocks(ctx context.Context) context.Context {
	n.mu.Lock()
	files := slices.Collect(maps.Values(n.locks))
	n.mu.Unlock()
	for _, l := range files {
		ctx = l.UnderLocks(ctx)
	}
	return ctx
}

// dropLocks ends all locks of an owner.
func (f *FS) dropLocks(n *node, key lockKey) {
	n.mu.Lock()
	l := n.locks[key]
	delete(n.locks, key)
	n.mu.Unlock()
	if l != nil {
		if err := l.Close(); err != nil {
			f.cfg.Log.Warn("unlocking a file", "error", err)
		}
	}
}

// lockRange returns a range of the kernel as offset and length. A length of 0 means up to the end.
func lockRange(l *fuse.FileLock) (off, n uint64) {
	if l.End >= math.MaxInt64 {
		return l.Start, 0
	}
	return l.Start, l.End - l.Start + 1
}

// noLocks reports whether the server has no locks. With LocalLocks the kernel locks by itself and
// does not call.
func (f *FS) noLocks() bool { return f.c.Version() == client.Version3 }

// GetLk implements fuse.RawFileSystem.
func (f *FS) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	h := f.file(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	if f.noLocks() {
		return fuse.Status(syscall.ENOLCK)
	}
	o := f.begin(h.ctx, &in.InHeader, opLock, cancel)
	off, n := lockRange(&in.Lk)
	l := f.locker(h, keyOf(in), false)
	if l == nil {
		l = f.c.FileOf(o.ctx, &client.Node{Handle: h.n.handle, Attr: h.n.attr}, "the file")
		defer func() { _ = l.Close() }()
	}
	holder, err := l.TestLock(off, n, in.Lk.Typ == syscall.F_WRLCK)
	out.Lk = fuse.FileLock{Typ: syscall.F_UNLCK}
	if err == nil && holder != nil {
		out.Lk = fuse.FileLock{Start: holder.Offset, End: math.MaxInt64, Typ: syscall.F_RDLCK}
		if holder.Exclusive {
			out.Lk.Typ = syscall.F_WRLCK
		}
		if holder.Length > 0 {
			out.Lk.End = holder.Offset + holder.Length - 1
		}
	}
	return o.end(err)
}

// SetLk implements fuse.RawFileSystem.
func (f *FS) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	h := f.file(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	o := f.begin(h.ctx, &in.InHeader, opLock, cancel)
	return o.end(f.setLock(o.ctx, h, in, false))
}

// SetLkw implements fuse.RawFileSystem. It waits for the lock; a signal ends the wait.
func (f *FS) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	h := f.file(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	o := f.beginWait(h.ctx, opLock, cancel)
	return o.end(f.setLock(o.ctx, h, in, true))
}

// setLock locks or unlocks a range. Before an unlock it makes the data stable that was written
// under the lock. After a lock it makes visible what others have written under theirs.
func (f *FS) setLock(ctx context.Context, h *file, in *fuse.LkIn, wait bool) error {
	off, n := lockRange(&in.Lk)
	if f.noLocks() && in.Lk.Typ != syscall.F_UNLCK {
		return syscall.ENOLCK
	}
	if in.Lk.Typ == syscall.F_UNLCK {
		l := f.locker(h, keyOf(in), false)
		if l == nil {
			return nil
		}
		if err := f.settle(ctx, h.n); err != nil {
			return err
		}
		return l.Unlock(off, n)
	}
	l := f.locker(h, keyOf(in), true)
	exclusive := in.Lk.Typ == syscall.F_WRLCK
	var err error
	if wait {
		err = l.Lock(ctx, off, n, exclusive)
	} else {
		err = l.TryLock(off, n, exclusive)
	}
	if err != nil {
		return err
	}
	if f.revalidate(ctx, h.n) == nil && !h.n.kept() {
		f.dropData(h.n)
		f.tellSize(ctx, h)
	}
	return nil // the lock is there, whatever the attributes are
}

// settle makes stable what was written to a file, so that the data is not sent again over what
// others write. Then it reads the attributes. From then on a difference from these attributes is
// another client's change.
func (f *FS) settle(ctx context.Context, n *node) error {
	if err := n.commit(ctx); err != nil {
		return err
	}
	if n.changedHere() {
		_, _, _ = f.getAttr(ctx, n) // after an error this mount's own changes count as another client's
	}
	return nil
}

// tellSize tells the kernel that a file has grown: a program that has the lock may append with an
// open file. The kernel takes the size from the data that it gets, so tellSize gives it the last
// byte.
func (f *FS) tellSize(ctx context.Context, h *file) {
	h.n.mu.Lock()
	size := h.n.attr.Size
	h.n.mu.Unlock()
	var last [1]byte
	if size == 0 {
		return
	}
	if n, err := f.readFull(ctx, h, last[:], size-1); err == nil && n == 1 {
		f.server.InodeNotifyStoreCache(h.n.id, int64(size-1), last[:])
	}
}
