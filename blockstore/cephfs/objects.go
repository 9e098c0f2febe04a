//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
import "C"

import (
	"container/list"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
)

const (
	// handleLen is the length of a handle: fsid, inode number, snapshot.
	handleLen = 24
	// noSnap is CEPH_NOSNAP: the live tree and no snapshot.
	noSnap = ^uint64(1)
	// idleMost is how many objects stay known without being used.
	idleMost = 4096
)

// object is an inode that libcephfs knows. While it is known, there is one object for a handle.
type object struct {
	h  blockstore.Handle
	in *C.struct_Inode

	refs int           // guarded by objects.mu
	idle *list.Element // in objects.idle, if refs is 0
	pins int           // Pin less Unpin; each has a reference

	// mu is held for reading while the open file is used, and for writing when another takes its place.
	mu     sync.RWMutex
	fh     *C.Fh // open once data was used, and closed when nobody uses the object
	write  bool  // fh is open for writing, too
	locked bool  // fh has locks, and a reference to the object

	lease *lease // guarded by leases.mu

	access atomic.Pointer[accessACL]
}

// objects are the objects that are known.
type objects struct {
	f    *FS
	mu   sync.Mutex
	all  map[blockstore.Handle]*object
	idle *list.List // least recently used first

	opening map[blockstore.Handle]struct{} // opens of FS.ready
	ended   []*lease                       // by close, whose users do not know; guarded by leases.mu
}

func (s *objects) init(f *FS) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.f, s.all, s.idle = f, make(map[blockstore.Handle]*object), list.New()
	s.opening = make(map[blockstore.Handle]struct{})
}

func (f *FS) handle(ino, snap uint64) blockstore.Handle {
	h := blockstore.Handle{Len: handleLen}
	binary.BigEndian.PutUint64(h.B[0:], f.fsid)
	binary.BigEndian.PutUint64(h.B[8:], ino)
	binary.BigEndian.PutUint64(h.B[16:], snap)
	return h
}

// parse returns the inode number and the snapshot of a handle.
func (f *FS) parse(h *blockstore.Handle) (ino, snap uint64, err error) {
	if h.Len != handleLen {
		return 0, 0, blockstore.ErrBadHandle
	}
	if binary.BigEndian.Uint64(h.B[0:]) != f.fsid {
		return 0, 0, blockstore.ErrStale
	}
	return binary.BigEndian.Uint64(h.B[8:]), snapOf(h), nil
}

func snapOf(h *blockstore.Handle) uint64 { return binary.BigEndian.Uint64(h.B[16:]) }

// acquire returns the object of a handle, which release gives back. An unknown one is asked for at
// the MDS: it may have been found by another gateway, or before a restart. Without a mount there is
// none, see Release.
func (s *objects) acquire(h blockstore.Handle) (*object, error) {
	ino, snap, err := s.f.parse(&h)
	if err != nil {
		return nil, err
	}
	if o := s.known(h); o != nil {
		return o, nil
	}
	if !s.mounted() {
		return nil, blockstore.ErrJukebox
	}
	var in *C.struct_Inode
	if err := failed(C.rc_lookup_vino(s.f.m, C.uint64_t(ino), C.uint64_t(snap), &in)); err != nil {
		if err == blockstore.ErrNotExist || err == blockstore.ErrInval {
			err = blockstore.ErrStale
		}
		return nil, err
	}
	if snap != noSnap && snap != snapDir {
		found, err := s.f.resolve(h, in)
		if err != nil {
			C.rc_put(s.f.m, in)
			return nil, err
		}
		in = found
	}
	return s.adopt(h, in), nil
}

func (s *objects) mounted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all != nil
}

// known returns an object that is known already, or nil.
func (s *objects) known(h blockstore.Handle) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.all[h]
	if o != nil {
		s.use(o)
	}
	return o
}

// use counts a user. s.mu is held.
func (s *objects) use(o *object) {
	if o.refs++; o.idle != nil {
		s.idle.Remove(o.idle)
		o.idle = nil
	}
}

// adopt returns the object of an inode, and takes over its reference.
func (s *objects) adopt(h blockstore.Handle, in *C.struct_Inode) *object {
	s.mu.Lock()
	o := s.all[h]
	if o == nil {
		o = &object{h: h, in: in}
		s.all[h], in = o, nil
	}
	s.use(o)
	s.mu.Unlock()
	if in != nil {
		C.rc_put(s.f.m, in)
	}
	return o
}

// release ends a use of an object. Nobody has a file open that nobody uses: the MDS would have to
// take the capabilities of an open file back for each access by another gateway. Objects that are
// not used for long are forgotten.
func (s *objects) release(o *object) {
	var old *object
	var fh *C.Fh
	s.mu.Lock()
	if o.refs--; o.refs == 0 {
		fh, o.fh, o.write = o.fh, nil, false
		o.idle = s.idle.PushBack(o)
		if s.idle.Len() > idleMost {
			old = s.idle.Front().Value.(*object)
			s.remove(old)
		}
	}
	s.mu.Unlock()
	if fh != nil {
		C.rc_close(s.f.m, fh)
	}
	if old != nil {
		s.free(old)
	}
}

// remove takes an idle object out of the table. s.mu is held.
func (s *objects) remove(o *object) {
	s.idle.Remove(o.idle)
	delete(s.all, o.h)
}

// forget gives an object back as soon as nobody uses it, so that the space of a removed file is
// freed.
func (s *objects) forget(h blockstore.Handle) {
	s.mu.Lock()
	o := s.all[h]
	if o != nil && o.idle != nil {
		s.remove(o)
	} else {
		o = nil
	}
	s.mu.Unlock()
	if o != nil {
		s.free(o)
	}
}

// free gives an object back to libcephfs. Nobody else knows it.
func (s *objects) free(o *object) {
	if o.fh != nil {
		C.rc_close(s.f.m, o.fh)
	}
	C.rc_put(s.f.m, o.in)
}

// close frees all objects. No call is under way. Leases end.
func (s *objects) close() {
	leases.mu.Lock()
	for _, o := range s.all {
		if l := o.lease; l != nil {
			l.end()
			s.ended = append(s.ended, l)
		}
	}
	leases.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.all {
		s.free(o)
	}
	s.all = nil
}

// tellEnded tells the users of leases that close has ended.
func (s *objects) tellEnded() {
	leases.mu.Lock()
	defer leases.mu.Unlock()
	for _, l := range s.ended {
		l.notify()
	}
	s.ended = nil
}

// open returns the open file of an object, with o.mu held for reading. It is open as root: permission
// was checked by the caller. There is one open file, for reading alone as long as nobody writes: a
// delegation for reading is only to be had without an open file for writing.
func (f *FS) open(o *object, write bool) (*C.Fh, error) {
	for {
		o.mu.RLock()
		if o.fh != nil && (o.write || !write) {
			return o.fh, nil
		}
		o.mu.RUnlock()
		o.mu.Lock()
		err := f.reopen(o, write)
		o.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// reopen opens the file of an object, or opens it again for writing. o.mu is held for writing.
func (f *FS) reopen(o *object, write bool) error {
	if o.fh != nil && (o.write || !write) {
		return nil
	}
	f.endLease(o)
	flags := C.int(C.O_RDONLY)
	if write {
		flags = C.O_RDWR
	}
	var fh *C.Fh
	if err := failed(C.rc_open(f.m, o.in, flags, &fh, f.root)); err != nil {
		return err
	}
	if o.fh != nil {
		C.rc_close(f.m, o.fh)
	}
	o.fh, o.write = fh, write
	return nil
}

// sync waits until what was changed of an object is in the cluster for good.
func (f *FS) sync(o *object) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return f.synced(o)
}

// synced is sync for callers with o.mu held for reading. libcephfs counts a delegation to write as
// unwritten data if it has no cache, so that a sync of the inode would wait until it is returned.
// Data is written by then, and size and times are with the other changes of the mount.
func (f *FS) synced(o *object) error {
	leases.mu.Lock()
	all := o.lease != nil && o.lease.write && !f.opts.Cache
	leases.mu.Unlock()
	if all {
		return failed(C.rc_sync_fs(f.m))
	}
	return failed(C.rc_sync_inode(f.m, o.in))
}

// Pin implements blockstore.Pinner: the open file retains the inode.
func (f *FS) Pin(h blockstore.Handle) error {
	o, err := f.objs.acquire(h)
	if err != nil {
		return err
	}
	a, err := f.attr(o)
	if err == nil && a.Type != blockstore.TypeReg {
		err = blockstore.ErrInval
	}
	if err == nil {
		if _, err = f.open(o, false); err == nil {
			o.mu.RUnlock()
		}
	}
	if err != nil {
		f.objs.release(o)
		return err
	}
	f.objs.mu.Lock()
	o.pins++
	f.objs.mu.Unlock()
	return nil
}

// Unpin implements blockstore.Pinner.
func (f *FS) Unpin(h blockstore.Handle) {
	o := f.objs.known(h)
	if o == nil {
		return
	}
	f.objs.mu.Lock()
	pinned := o.pins > 0
	if pinned {
		o.pins--
	}
	f.objs.mu.Unlock()
	f.objs.release(o)
	if !pinned {
		return
	}
	f.leaving.Go(func() { // Unpin does not wait
		a, err := f.attrs(o)
		f.objs.release(o)
		if err == nil && a.NLink == 0 {
			f.objs.forget(h)
		}
	})
}
