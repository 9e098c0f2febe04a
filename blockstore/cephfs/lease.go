//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
import "C"

import (
	"sync"

	"github.com/rstored/rstored/blockstore"
)

// A lease is a delegation of libcephfs: the right to cache a file, which the MDS takes back when
// another client of the cluster opens or asks for the file in a way that conflicts. That client waits
// until the delegation is returned. libcephfs ends the whole mount if that takes longer than the
// time of ceph_set_deleg_timeout.

// lease is the delegation of the open file of an object. It has one or more users.
type lease struct {
	f     *FS
	o     *object
	id    uintptr
	write bool
	// closes is FS.closes of when the lease was taken.
	closes int
	// Guarded by leases.mu.
	users    int
	broken   func()
	notified bool
}

// leases are the leases of all mounts: libcephfs names one by a number.
var leases struct {
	mu   sync.Mutex
	last uintptr
	all  map[uintptr]*lease
}

// notify tells the users once. leases.mu is held.
func (l *lease) notify() {
	if !l.notified {
		l.notified = true
		go l.broken()
	}
}

// Lease implements blockstore.Leaser. Without a delegation of CephFS there must be none of NFS, so
// every failure is ErrJukebox.
func (f *FS) Lease(h blockstore.Handle, write bool, broken func()) (release func(), err error) {
	if !f.delegations {
		return nil, blockstore.ErrJukebox
	}
	o, err := f.objs.acquire(h)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	l := f.lease(o, write, broken)
	o.mu.Unlock()
	if l == nil {
		f.objs.release(o)
		return nil, blockstore.ErrJukebox
	}
	return sync.OnceFunc(func() {
		leases.mu.Lock()
		defer leases.mu.Unlock()
		if l.users--; l.users == 0 {
			l.end()
		}
		if l.closes == f.closes { // Close frees the objects
			f.leaving.Go(func() { f.objs.release(o) }) // it can wait for the MDS
		}
	}), nil
}

// lease takes a delegation, or adds a user to the one that exists. o.mu is held for writing. It
// returns nil if the delegation is not to be had.
func (f *FS) lease(o *object, write bool, broken func()) *lease {
	leases.mu.Lock()
	l := o.lease
	shared := l != nil && !l.write && !write && !l.notified
	if shared {
		l.users++
	}
	leases.mu.Unlock()
	if l != nil {
		if !shared {
			return nil
		}
		return l
	}
	if !write && o.write {
		if f.hasLocks(o) {
			return nil
		}
		C.rc_close(f.m, o.fh)
		o.fh, o.write = nil, false
	}
	if f.reopen(o, write) != nil {
		return nil
	}
	// libcephfs asks for no capabilities for a delegation. Attributes come with those that a change of
	// names or attributes took away.
	if _, err := f.attrs(o); err != nil {
		return nil
	}
	cmd := C.uint(C.CEPH_DELEGATION_RD)
	if write {
		cmd = C.CEPH_DELEGATION_WR
	}
	leases.mu.Lock()
	defer leases.mu.Unlock()
	leases.last++
	l = &lease{f: f, o: o, id: leases.last, write: write, closes: f.closes, users: 1, broken: broken}
	if C.rc_delegation(f.m, o.fh, cmd, C.uintptr_t(l.id)) < 0 {
		return nil
	}
	if leases.all == nil {
		leases.all = make(map[uintptr]*lease)
	}
	leases.all[l.id], o.lease = l, l
	return l
}

// end returns the delegation, if the object still has it. leases.mu is held.
func (l *lease) end() {
	if l.o.lease != l {
		return
	}
	l.o.lease = nil
	delete(leases.all, l.id)
	C.rc_delegation(l.f.m, l.o.fh, C.CEPH_DELEGATION_NONE, 0)
}

// endLease ends the lease of an object before a call of the store for which libcephfs would wait
// until it is returned. The users are told, as from now on others can change the file.
func (f *FS) endLease(o *object) {
	leases.mu.Lock()
	defer leases.mu.Unlock()
	if l := o.lease; l != nil {
		l.end()
		l.notify()
	}
}
