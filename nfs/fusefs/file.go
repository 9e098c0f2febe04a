package fusefs

import (
	"context"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// openDirect is the flag of open(2) for reads and writes that bypass the kernel's cache.
const openDirect = syscall.O_DIRECT

// file is an open file.
type file struct {
	n       *node
	ctx     context.Context // has the identity of the caller of open(2); ends with the mount
	release func() error    // the open at the server
	reader  reader
	drops   uint64 // node.changes before the reply to OPEN, if the kernel drops its cache then
	failed  uint64 // failures of the writer that this file has reported; guarded by node.mu
}

// access returns the access that an open(2) asks for.
func access(flags uint32) uint32 {
	switch flags & syscall.O_ACCMODE {
	case syscall.O_WRONLY:
		return client.ShareWrite
	case syscall.O_RDWR:
		return client.ShareBoth
	}
	return client.ShareRead
}

// used records that the kernel has processed the reply to OPEN, because it uses the file.
func (h *file) used() {
	if h.drops > 0 {
		h.n.droppedAt(h.drops)
	}
}

// opened makes an open file. keep says that what the kernel has cached of the data is valid.
func (f *FS) opened(ctx context.Context, n *node, release func() error, keep bool, out *fuse.OpenOut) {
	h := &file{n: n, ctx: ctx, release: release}
	if keep {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	} else {
		h.drops = n.changes.Load()
	}
	n.mu.Lock()
	n.opens++
	if n.w != nil {
		h.failed, _ = n.w.failure(0)
	}
	n.mu.Unlock()
	out.Fh = f.add(h)
}

// Open implements fuse.RawFileSystem. It finds changes of other clients: see the package comment.
func (f *FS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	identity := f.identity(&in.InHeader)
	o := f.begin(identity, &in.InHeader, opOpen, cancel)
	n := f.nodes.get(in.NodeId)
	release, err := f.c.OpenHandle(o.ctx, n.handle, access(in.Flags))
	if err != nil {
		return o.end(err)
	}
	if !f.cfg.NoCTO {
		err = f.revalidate(o.ctx, n)
	}
	keep := n.kept()
	if err == nil && in.Flags&syscall.O_APPEND != 0 && n.openAgain(in.Pid, !keep) {
		err = nfs.ErrStale
	}
	if err == nil && in.Flags&syscall.O_TRUNC != 0 {
		err = f.truncate(o.ctx, n)
	}
	if err != nil {
		_ = release()
		return o.end(err)
	}
	f.opened(identity, n, release, keep, out)
	return o.end(nil)
}

func (f *FS) truncate(ctx context.Context, n *node) error {
	if err := n.commit(ctx); err != nil {
		return err
	}
	defer n.data.Add(1)
	return f.setAttr(ctx, n, &blockstore.SetAttr{Size: new(uint64)})
}

// openAgain reports whether the answer to an open(2) for appending is ESTALE. The kernel appends at
// the size that it knows, and OPEN returns no attributes. After ESTALE the kernel looks the name
// up, gets the attributes, and opens the file again. That second OPEN of the process succeeds even
// if another client has appended meanwhile: only a lock excludes that.
func (n *node) openAgain(pid uint32, changed bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, second := n.again[pid]
	delete(n.again, pid)
	if !changed || second {
		return false
	}
	if n.again == nil {
		n.again = make(map[uint32]struct{})
	}
	n.again[pid] = struct{}{}
	return true
}

// Create implements fuse.RawFileSystem.
func (f *FS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	identity := f.identity(&in.InHeader)
	o := f.begin(identity, &in.InHeader, opCreate, cancel)
	dir := f.nodes.get(in.NodeId)
	how, set := blockstore.Unchecked, modeOf(in.Mode)
	if in.Flags&syscall.O_EXCL != 0 {
		how = blockstore.Guarded
	}
	if in.Flags&syscall.O_TRUNC != 0 {
		set.Size = new(uint64)
	}
	seq := f.seq.Add(1)
	got, release, err := f.c.CreateOpen(o.ctx, dir.handle, name, how, set, access(in.Flags))
	if err == nil {
		n := f.entry(got, place{dir.id, name}, seq, true, &out.EntryOut)
		f.opened(identity, n, release, false, &out.OpenOut)
	}
	return o.end(err)
}

// Release implements fuse.RawFileSystem.
func (f *FS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	start := time.Now()
	h, _ := f.drop(in.Fh).(*file)
	if h == nil {
		return
	}
	if in.ReleaseFlags&releaseFlock != 0 {
		f.dropLocks(h.n, lockKey{in.LockOwner, true})
	}
	f.closeFile(h)
	f.stats.ops[opRelease].add(time.Since(start), false)
}

// closeFile closes a file at the server. The last close removes a file whose name was removed.
func (f *FS) closeFile(h *file) {
	h.reader.close()
	if err := h.release(); err != nil {
		f.cfg.Log.Warn("closing a file", "error", err)
	}
	h.n.mu.Lock()
	h.n.opens--
	var gone *place
	if h.n.opens == 0 {
		gone, h.n.silly = h.n.silly, nil
	}
	h.n.mu.Unlock()
	if gone == nil {
		return
	}
	dir := f.nodes.get(gone.dir)
	if dir == nil {
		return
	}
	f.discard(h.n)
	f.giveUp(h.ctx, h.n)
	if err := f.c.Remove(h.ctx, dir.handle, gone.name); err != nil && !client.IsStatus(err, nfs.ErrNoEnt) {
		f.cfg.Log.Warn("removing a file that was removed while it was open", "name", gone.name, "error", err)
	}
	f.nodes.removed(*gone)
}

// discard sends the rest of the data of a file before the file is removed.
func (f *FS) discard(n *node) {
	if err := n.flush(f.ctx); err != nil {
		f.cfg.Log.Warn("writing a file that is removed", "error", err)
	}
}

// commit makes stable what was written to a file.
func (n *node) commit(ctx context.Context) error {
	n.mu.Lock()
	w := n.w
	n.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.commit(ctx)
}

// sync is commit. It returns the error of writes that have failed since the last sync of the same
// open file.
func (f *FS) sync(ctx context.Context, h *file) error {
	err := h.n.commit(ctx)
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.n.w != nil {
		var failure error
		if h.failed, failure = h.n.w.failure(h.failed); failure != nil {
			return failure
		}
	}
	return err
}

// Flush implements fuse.RawFileSystem. The kernel calls it at each close(2).
func (f *FS) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h := f.file(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	o := f.begin(h.ctx, &in.InHeader, opFlush, cancel)
	err := f.sync(o.ctx, h)
	if err == nil && h.n.changedHere() {
		// From here on a difference is another client's change. If this call fails, the next open
		// drops too little or too much of the cache; the data is safe.
		_, _, _ = f.getAttr(o.ctx, h.n)
	}
	f.dropLocks(h.n, lockKey{in.LockOwner, false}) // a close ends the process's locks of the file
	return o.end(err)
}

// Fsync implements fuse.RawFileSystem.
func (f *FS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h := f.file(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	o := f.begin(h.ctx, &in.InHeader, opFsync, cancel)
	return o.end(f.sync(o.ctx, h))
}

// Write implements fuse.RawFileSystem. After the return, data belongs to the caller again.
func (f *FS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	h := f.file(in.Fh)
	if h == nil {
		return 0, fuse.EBADF
	}
	o := f.begin(h.ctx, &in.InHeader, opWrite, cancel)
	h.n.data.Add(1)
	defer h.n.change()()
	var n int
	var err error
	if f.cfg.Sync || in.Flags&openDirect != 0 {
		n, err = f.writeNow(o.ctx, h, data, in.Offset)
	} else {
		n, err = f.writerOf(h.n).write(o.ctx, h.ctx, data, in.Offset)
	}
	f.stats.written.Add(uint64(n))
	if n > 0 {
		err = nil // the next write reports it
	}
	return uint32(n), o.end(err)
}

// writeNow writes data stably. Earlier data must not be sent again after it.
func (f *FS) writeNow(ctx context.Context, h *file, data []byte, off uint64) (n int, err error) {
	if err := h.n.commit(ctx); err != nil {
		return 0, err
	}
	ctx = h.n.underLocks(ctx)
	for n < len(data) {
		w, err := f.c.Write(ctx, h.n.handle, data[n:], off+uint64(n), blockstore.FileSync)
		if err != nil {
			return n, err
		}
		f.stats.sent.Add(1)
		n += w.N
		h.n.grown(off + uint64(n))
	}
	return n, nil
}

// Lseek implements fuse.RawFileSystem, for SEEK_DATA and SEEK_HOLE.
func (f *FS) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	const seekData, seekHole = 3, 4
	h := f.file(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	if in.Whence != seekData && in.Whence != seekHole {
		return fuse.EINVAL
	}
	o := f.begin(h.ctx, &in.InHeader, opLseek, cancel)
	err := h.n.flush(o.ctx)
	if err == nil {
		out.Offset, err = f.c.Seek(o.ctx, h.n.handle, in.Offset, in.Whence == seekHole)
	}
	st := o.end(err)
	if st == fuse.Status(syscall.EOPNOTSUPP) {
		return fuse.ENOSYS // the kernel then treats the whole file as data, and does not ask again
	}
	return st
}

// Modes of fallocate(2).
const (
	fallocKeepSize  = 1
	fallocPunchHole = 2
	fallocZeroRange = 16
)

// Fallocate implements fuse.RawFileSystem.
func (f *FS) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	h := f.file(in.Fh)
	if h == nil {
		return fuse.EBADF
	}
	o := f.begin(h.ctx, &in.InHeader, opFallocate, cancel)
	err := h.n.commit(o.ctx)
	if err == nil {
		defer h.n.change()()
		switch in.Mode {
		case 0:
			err = f.c.Allocate(o.ctx, h.n.handle, in.Offset, in.Length)
		case fallocPunchHole | fallocKeepSize:
			err = f.c.Deallocate(o.ctx, h.n.handle, in.Offset, in.Length)
		case fallocZeroRange:
			if err = f.c.Deallocate(o.ctx, h.n.handle, in.Offset, in.Length); err == nil {
				err = f.c.Allocate(o.ctx, h.n.handle, in.Offset, in.Length)
			}
		default:
			err = nfs.ErrNotSupp
		}
		h.n.data.Add(1)
		if err == nil && in.Mode&fallocKeepSize == 0 {
			h.n.grown(in.Offset + in.Length)
		}
	}
	return o.end(err)
}

// copyMost bounds one COPY in bytes, so that a signal need not wait until a slow disk has copied
// all of a large file.
const copyMost = 64 << 20

// CopyFileRange implements fuse.RawFileSystem: the server copies.
func (f *FS) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	from, to := f.file(in.FhIn), f.file(in.FhOut)
	if from == nil || to == nil {
		return 0, fuse.EBADF
	}
	o := f.begin(to.ctx, &in.InHeader, opCopy, cancel)
	err := from.n.flush(o.ctx)
	if err == nil {
		err = to.n.commit(o.ctx)
	}
	var n uint64
	if err == nil {
		defer to.n.change()()
		n, err = f.c.CopyRange(o.ctx, client.Range{Handle: from.n.handle, Off: in.OffIn},
			client.Range{Handle: to.n.handle, Off: in.OffOut}, min(in.Len, copyMost))
		to.n.data.Add(1)
		if n > 0 {
			to.n.grown(in.OffOut + n)
		}
	}
	return uint32(n), o.end(err)
}
