//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"unsafe"

	"github.com/rstored/rstored/blockstore"
)

// Snapshots are directories below .snap, which each directory has and no listing shows. They are
// read-only here. An object of a snapshot has the inode number of the live one:
//
//	/d           inode, noSnap
//	/d/.snap     inode of /d, snapDir
//	/d/.snap/s   inode of /d, s
//	/d/.snap/s/f inode of /d/f, s

// snapDir is CEPH_SNAPDIR.
const snapDir = ^uint64(0)

// snap returns the snapshot of an object.
func (o *object) snap() uint64 { return snapOf(&o.h) }

// frozen reports whether an object is in a snapshot, or is the directory of snapshots.
func (o *object) frozen() bool { return o.snap() != noSnap }

// fileID returns the number of an object for clients: the inode number, or for snapshots a number
// that is another one for each snapshot. Otherwise programs took a snapshot for the directory
// itself, and find(1) reported a loop.
func fileID(ino, snap uint64) uint64 {
	if snap == noSnap {
		return ino
	}
	const odd, high = 0x9e3779b97f4a7c15, 1 << 63
	x := (snap + 1) * odd
	x ^= x >> 29
	return ino ^ x | high
}

// up returns the parent of a directory other than the root.
func (f *FS) up(d *object) (*object, blockstore.Attr, error) {
	ino, snap, _ := f.parse(&d.h)
	if top, _, _ := f.parse(&f.top); ino == top && snap != noSnap && snap != snapDir {
		// A snapshot of a directory above has parents of the root as well, which are not exported.
		return f.use(f.handle(ino, snapDir))
	}
	switch snap {
	case noSnap:
		return f.find(d, "..")
	case snapDir:
		return f.use(f.handle(ino, noSnap))
	}
	// libcephfs knows live parents only.
	live, _, err := f.use(f.handle(ino, noSnap))
	if err != nil {
		return nil, blockstore.Attr{}, err
	}
	p, _, err := f.find(live, "..")
	f.objs.release(live)
	if err != nil {
		return nil, blockstore.Attr{}, err
	}
	f.objs.release(p)
	parent, _, _ := f.parse(&p.h)
	o, a, err := f.use(f.handle(parent, snap))
	if err == blockstore.ErrStale { // the snapshot is of d
		return f.use(f.handle(ino, snapDir))
	}
	return o, a, err
}

// resolve returns a directory of a snapshot that was found by its numbers. libcephfs needs the path
// to it, and would look up names in the live directory otherwise. The .snap of the live directory
// has all snapshots, also those of the directories above. The result takes over the reference of
// in; after an error the caller still has it.
func (f *FS) resolve(h blockstore.Handle, in *C.struct_Inode) (*C.struct_Inode, error) {
	var stx C.struct_ceph_statx
	if err := failed(C.rc_getattr(f.m, in, &stx, f.root)); err != nil {
		return nil, err
	}
	if a := attrOf(&stx); a.Type != blockstore.TypeDir {
		return in, nil
	}
	ino, snap, _ := f.parse(&h)
	name := ""
	_, _, err := f.ReadDir(nil, f.handle(ino, snapDir), 0, [8]byte{}, true, func(e *blockstore.DirEntry) bool {
		if e.Handle != nil && snapOf(e.Handle) == snap {
			name = e.Name
		}
		return name == ""
	})
	if err == nil && name == "" {
		err = blockstore.ErrStale
	}
	if err != nil {
		return nil, err
	}
	all, err := f.objs.acquire(f.handle(ino, snapDir))
	if err != nil {
		return nil, err
	}
	defer f.objs.release(all)
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var found *C.struct_Inode
	if err := failed(C.rc_lookup(f.m, all.in, n, &found, &stx, f.root)); err != nil {
		return nil, err
	}
	if uint64(stx.stx_dev) != snap {
		C.rc_put(f.m, found)
		return nil, blockstore.ErrStale
	}
	C.rc_put(f.m, in)
	return found, nil
}
