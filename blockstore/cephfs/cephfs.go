//go:build cephfs && linux && cgo

package cephfs

// #cgo LDFLAGS: -ldl
// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"math"
	"sync"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
)

// loading guards the library, which is opened once.
var loading sync.Mutex

// Available reports why libcephfs cannot be used: nil if it is there.
func Available() error {
	loading.Lock()
	defer loading.Unlock()
	if why := C.rc_load(); why != nil {
		return fmt.Errorf("cephfs: libcephfs cannot be loaded: %s", C.GoString(why))
	}
	return nil
}

// FS is one filesystem, or a directory of it. Its methods may be called from any goroutine.
type FS struct {
	opts  Options
	m     *C.struct_ceph_mount_info
	root  *C.UserPerm // of the server itself
	fsid  uint64
	verf  [8]byte
	top   blockstore.Handle
	objs  objects
	names names

	delegations bool           // of libcephfs are enabled
	leaving     sync.WaitGroup // removed files, and those of leases, that are given back
	closes      int            // calls of Close; guarded by leases.mu
	lost        sync.Once
}

var (
	_ blockstore.FS      = (*FS)(nil)
	_ blockstore.Extents = (*FS)(nil)
	_ blockstore.Pinner  = (*FS)(nil)
	_ blockstore.Xattrs  = (*FS)(nil)
	_ blockstore.Births  = (*FS)(nil)
	_ blockstore.ACLs    = (*FS)(nil)
	_ blockstore.Leaser  = (*FS)(nil)

	_ blockstore.HostLocker = (*FS)(nil)
	_ blockstore.DirWatcher = (*FS)(nil)

	_ blockstore.ProjectQuotas = (*FS)(nil)
)

// Open mounts a filesystem by libcephfs. It waits until the monitors and an MDS answer, at most for
// client_mount_timeout.
func Open(o Options) (blockstore.FS, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	f := &FS{opts: o}
	rand.Read(f.verf[:])
	if err := f.Resume(); err != nil {
		return nil, err
	}
	return f, nil
}

// Resume mounts a store again after Release, which has ended all leases. Their users are told.
func (f *FS) Resume() error {
	defer f.objs.tellEnded()
	if f.opts.Session != "" {
		if err := Reset(f.opts); err != nil {
			return err
		}
	}
	if err := f.mount(&f.opts); err != nil {
		return err
	}
	f.objs.init(f)
	var in *C.struct_Inode
	if err := failed(C.rc_lookup_root(f.m, &in)); err != nil {
		_ = f.Close()
		return err
	}
	var stx C.struct_ceph_statx
	if err := failed(C.rc_getattr(f.m, in, &stx, f.root)); err != nil {
		C.rc_put(f.m, in)
		_ = f.Close()
		return err
	}
	f.top = f.handle(uint64(stx.stx_ino), noSnap)
	f.objs.release(f.objs.adopt(f.top, in))
	return nil
}

// mount configures and mounts. After an error nothing is left.
func (f *FS) mount(o *Options) error {
	if err := f.client(o); err != nil {
		return err
	}
	if err := f.connect(o); err != nil {
		C.rc_release(f.m)
		f.m = nil
		return err
	}
	f.root = C.rc_userperm_new(0, 0, 0, nil)
	return nil
}

// client makes the client, which rc_release frees.
func (f *FS) client(o *Options) error {
	var id *C.char
	if o.ID != "" {
		id = C.CString(o.ID)
		defer C.free(unsafe.Pointer(id))
	}
	if r := C.rc_create(&f.m, id); r < 0 {
		return fmt.Errorf("cephfs: client %q: %w", o.ID, failed(r))
	}
	return nil
}

// start configures the client and starts it, which is before a mount.
func (f *FS) start(o *Options) error {
	conf := cstring(o.Conf)
	defer C.free(unsafe.Pointer(conf))
	if r := C.rc_conf_read_file(f.m, conf); r < 0 {
		return fmt.Errorf("cephfs: reading %q: %w", o.Conf, failed(r))
	}
	if r := C.rc_conf_parse_env(f.m); r < 0 {
		return fmt.Errorf("cephfs: the environment CEPH_ARGS: %w", failed(r))
	}
	set := map[string]string{
		// The identity of each call is given by the call, and checked.
		"fuse_default_permissions": "false",
		"client_oc":                fmt.Sprint(o.Cache),
		"client_acl_type":          "posix_acl",
	}
	if o.Keyring != "" {
		set["keyring"] = o.Keyring
	}
	if o.Filesystem != "" {
		set["client_fs"] = o.Filesystem // for Reset, which does not mount
	}
	for k, v := range o.Set {
		set[k] = v
	}
	for k, v := range set {
		if err := f.configure(k, v); err != nil {
			return err
		}
	}
	if r := C.rc_init(f.m); r < 0 {
		return fmt.Errorf("cephfs: starting the client: %w", failed(r))
	}
	return nil
}

func (f *FS) connect(o *Options) error {
	if err := f.start(o); err != nil {
		return err
	}
	if o.Filesystem != "" {
		name := C.CString(o.Filesystem)
		defer C.free(unsafe.Pointer(name))
		if r := C.rc_select_filesystem(f.m, name); r < 0 {
			return fmt.Errorf("cephfs: filesystem %q: %w", o.Filesystem, failed(r))
		}
	}
	if o.Session != "" {
		name := C.CString(o.Session)
		defer C.free(unsafe.Pointer(name))
		C.rc_set_uuid(f.m, name)
	}
	root := cstring(o.Root)
	defer C.free(unsafe.Pointer(root))
	if r := C.rc_mount(f.m, root); r < 0 {
		return fmt.Errorf("cephfs: mounting %q of filesystem %q (is an MDS active? see: ceph fs status): %w", o.Root,
			o.Filesystem, failed(r))
	}
	if err := f.delegate(o.Delegations); err != nil {
		C.rc_unmount(f.m)
		return err
	}
	var cluster [64]C.char
	key := C.CString("fsid")
	defer C.free(unsafe.Pointer(key))
	if r := C.rc_conf_get(f.m, key, &cluster[0], C.size_t(len(cluster))); r < 0 {
		return fmt.Errorf("cephfs: the cluster's fsid: %w", failed(r))
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", C.GoString(&cluster[0]), C.rc_get_fs_cid(f.m))
	f.fsid = h.Sum64()
	return nil
}

func (f *FS) configure(key, value string) error {
	k, v := C.CString(key), C.CString(value)
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(v))
	if r := C.rc_conf_set(f.m, k, v); r < 0 {
		return fmt.Errorf("cephfs: setting %s = %s: %w", key, value, failed(r))
	}
	return nil
}

// cstring is s for C; NULL for "".
func cstring(s string) *C.char {
	if s == "" {
		return nil
	}
	return C.CString(s)
}

// Root returns the handle of the root directory.
func (f *FS) Root() (blockstore.Handle, error) { return f.top, nil }

// FSID is derived from the identities of cluster and filesystem: it is the same on every gateway.
func (f *FS) FSID() uint64 { return f.fsid }

// Verifier is drawn by Open.
func (f *FS) Verifier() [8]byte { return f.verf }

// Limits are those of CephFS. max_file_size of the filesystem may be smaller than MaxFileSize.
func (f *FS) Limits() blockstore.Limits {
	return blockstore.Limits{
		MaxFileSize: math.MaxInt64, LinkMax: 65000, NameMax: blockstore.NameMax, BlockSize: 4 << 20,
		Xattrs: true, ACLs: true, Births: true,
	}
}

// Stat returns the numbers of the filesystem, or of the quota that a directory is in. The bytes are
// 0 until a manager of the cluster has reported them; those of a quota are known.
func (f *FS) Stat(_ *blockstore.Cred, h blockstore.Handle) (blockstore.Stat, error) {
	o, err := f.objs.acquire(h)
	if err != nil {
		return blockstore.Stat{}, err
	}
	defer f.objs.release(o)
	var st C.struct_statvfs
	if err := failed(C.rc_statfs(f.m, o.in, &st)); err != nil {
		return blockstore.Stat{}, err
	}
	unit := uint64(st.f_frsize)
	s := blockstore.Stat{
		TotalBytes: uint64(st.f_blocks) * unit, FreeBytes: uint64(st.f_bfree) * unit,
		AvailBytes: uint64(st.f_bavail) * unit, TotalFiles: uint64(st.f_files), FreeFiles: uint64(st.f_ffree),
	}
	if st.f_ffree > math.MaxInt64 { // -1: CephFS has no limit of inodes
		s.TotalFiles, s.FreeFiles = math.MaxInt64, math.MaxInt64-s.TotalFiles
	}
	s.AvailFiles = s.FreeFiles
	if h != f.top { // that of the root is in what libcephfs says
		if q, err := f.ProjectQuota(h); err == nil {
			bounded(&s.TotalBytes, &s.FreeBytes, &s.AvailBytes, q.Hard, q.Used)
			bounded(&s.TotalFiles, &s.FreeFiles, &s.AvailFiles, q.FilesHard, q.Files)
		}
	}
	return s, nil
}

// bounded reduces the numbers of a filesystem, which are 0 if they are not known, to those of a
// quota.
func bounded(total, free, avail *uint64, limit, used uint64) {
	if limit > 0 && (*total == 0 || limit < *total) {
		left := limit - min(used, limit)
		if *total > 0 {
			left = min(left, *avail)
		}
		*total, *free, *avail = limit, left, left
	}
}

// Close gives everything back, and unmounts. After Release there is nothing to close.
func (f *FS) Close() error {
	if f.m == nil {
		return nil
	}
	leases.mu.Lock()
	f.closes++ // who releases a lease later does nothing
	leases.mu.Unlock()
	f.leaving.Wait()
	f.objs.close()
	C.rc_userperm_destroy(f.root)
	r := C.rc_unmount(f.m)
	C.rc_release(f.m)
	f.m = nil
	return failed(r)
}

// perm is the identity of a caller for libcephfs. done gives it back.
func (f *FS) perm(c *blockstore.Cred) (p *C.UserPerm, done func()) {
	if c == nil {
		return f.root, func() {}
	}
	var list *C.gid_t
	if n := len(c.Groups); n > 0 {
		// libcephfs copies nothing of the list, and a request that is sent again to another MDS still
		// has it: done follows the sync of the change.
		list = (*C.gid_t)(C.malloc(C.size_t(n) * C.sizeof_gid_t))
		copy(unsafe.Slice((*uint32)(unsafe.Pointer(list)), n), c.Groups)
	}
	p = C.rc_userperm_new(C.uid_t(c.UID), C.gid_t(c.GID), C.int(len(c.Groups)), list)
	return p, func() {
		C.rc_userperm_destroy(p)
		C.free(unsafe.Pointer(list))
	}
}

// WatchDir implements blockstore.DirWatcher. Other clients of the cluster change directories, and
// libcephfs does not tell of that.
func (*FS) WatchDir(blockstore.Handle, func()) (stop func(), err error) {
	return nil, blockstore.ErrNotSupp
}
