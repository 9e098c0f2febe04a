//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"strconv"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
)

// The quotas of CephFS are attributes of directories, which count all that is below them.
const (
	quotaBytes = "ceph.quota.max_bytes"
	quotaFiles = "ceph.quota.max_files"
	usedBytes  = "ceph.dir.rbytes"
	usedFiles  = "ceph.dir.rentries"
)

// ProjectQuota implements blockstore.ProjectQuotas: the quota of the nearest directory from dir up to
// the root of the store. What is used is what the MDS has counted some seconds before.
func (f *FS) ProjectQuota(dir blockstore.Handle) (q blockstore.Quota, err error) {
	d, _, err := f.useDir(nil, dir)
	for err == nil && !d.frozen() {
		q.Hard, q.FilesHard = f.number(d, quotaBytes), f.number(d, quotaFiles)
		if q != (blockstore.Quota{}) {
			q.Soft, q.FilesSoft = q.Hard, q.FilesHard
			q.Used, q.Files = f.number(d, usedBytes), f.number(d, usedFiles)
			break
		}
		if d.h == f.top {
			break
		}
		var up *object
		up, _, err = f.up(d)
		f.objs.release(d)
		d = up
	}
	if err == nil {
		f.objs.release(d)
	}
	return q, err
}

// number reads a virtual attribute; 0 if there is none.
func (f *FS) number(d *object, name string) uint64 {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	var buf [32]byte
	r := C.rc_getxattr(f.m, d.in, n, unsafe.Pointer(&buf[0]), C.size_t(len(buf)), f.root)
	v, err := strconv.ParseUint(string(buf[:max(r, 0)]), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// SetProjectQuota limits the bytes of the root directory of the store; 0 ends the limit. Clients see
// it as the size of the filesystem.
func (f *FS) SetProjectQuota(bytes uint64) error {
	o, err := f.objs.acquire(f.top)
	if err != nil {
		return err
	}
	defer f.objs.release(o)
	n, v := C.CString(quotaBytes), []byte(strconv.FormatUint(bytes, 10))
	defer C.free(unsafe.Pointer(n))
	return failed(C.rc_setxattr(f.m, o.in, n, unsafe.Pointer(&v[0]), C.size_t(len(v)), 0, f.root))
}
