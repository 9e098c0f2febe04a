package posixfs

import (
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// Lookup finds a name in a directory. ".." of the root is the root. A mount point of the host is
// ErrAccess, because what is mounted there is not exported.
func (f *FS) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (
	_ blockstore.Handle, a blockstore.Attr, err error,
) {
	fail := func(err error) (blockstore.Handle, blockstore.Attr, error) {
		return blockstore.Handle{}, blockstore.Attr{}, mapErr(err)
	}
	d, err := f.acquireDir(dir)
	if err != nil {
		return fail(err)
	}
	defer f.release(d)
	if name != "." && name != ".." {
		if err := blockstore.CheckName(name); err != nil {
			return fail(err)
		}
	}
	o, err := f.openChild(c, d, name)
	if err != nil {
		return fail(err)
	}
	defer f.release(o)
	if a, err = o.attr(); err == blockstore.ErrStale {
		err = blockstore.ErrNotExist // the name was removed meanwhile
	}
	if err != nil {
		return fail(err)
	}
	return o.h, a, nil
}

// openChild returns the object of a name, if c may search the directory.
func (f *FS) openChild(c *blockstore.Cred, d *object, name string) (*object, error) {
	var st unix.Stat_t
	if err := d.stat(&st); err != nil {
		return nil, err
	}
	// A single name needs search permission on d and nothing else. The answer is mostly cached; to
	// open the name with the identity of c costs twice as much as all the rest.
	if !f.may(c, d, &st, blockstore.MayExec) {
		return nil, blockstore.ErrAccess
	}
	// If another call renames the name after its identity was read, the result is that of a lookup
	// before the rename.
	if o := f.knownChild(d, name); o != nil {
		return o, nil
	}
	var fd int
	var err error
	switch {
	case name == "." || (name == ".." && d == f.root):
		fd, err = f.openName(d.path, ".")
	case name == "..":
		fd, err = f.openDotDot(d.path)
	default:
		fd, err = f.openName(d.path, name)
	}
	switch {
	case err == unix.EXDEV:
		return nil, blockstore.ErrAccess
	case err != nil:
		return nil, mapErr(err)
	}
	return f.adoptChild(d, name, fd)
}

// LookupNowait implements blockstore.NowaitLookup: directory and object are open, the kernel has the
// name in memory, and what the directory permits is known. It answers only for a name of the object
// that is recorded already, because recording one can wait for the disk.
func (f *FS) LookupNowait(c *blockstore.Cred, dir blockstore.Handle, name string) (
	h blockstore.Handle, a, dirAttr blockstore.Attr, err error,
) {
	h, a, dirAttr, ok := f.lookupNow(c, &dir, name)
	if !ok {
		return h, a, dirAttr, blockstore.ErrWouldBlock
	}
	return h, a, dirAttr, nil
}

func (f *FS) lookupNow(c *blockstore.Cred, dir *blockstore.Handle, name string) (
	h blockstore.Handle, a, dirAttr blockstore.Attr, ok bool,
) {
	if !f.near || f.kind != kindKernel || f.mountID == 0 || blockstore.CheckName(name) != nil {
		return
	}
	d := f.opened(dir)
	if d == nil {
		return
	}
	defer f.release(d)
	var st unix.Stat_t
	if d.typ != blockstore.TypeDir || d.stat(&st) != nil || !f.maySearchNow(c, d, &st) {
		return
	}
	id, mount, err := f.identNow(d.path, name)
	if err != nil || mount != f.mountID || !f.find.knows(&id, &d.id, name) {
		return
	}
	h = f.tag.handle(&id)
	o := f.opened(&h)
	if o == nil {
		return
	}
	defer f.release(o)
	if a, err = o.attr(); err != nil {
		return
	}
	return h, a, f.changes.attrOf(&st), true
}

// opened returns an object that is open, or nil. The caller releases it.
func (f *FS) opened(h *blockstore.Handle) *object {
	if *h == f.root.h {
		return f.root
	}
	return f.objects.get(h)
}

// resolveCached makes openat2 fail where it would wait (RESOLVE_CACHED, since Linux 5.12).
const resolveCached = 0x20

// identNow is kernelIdent of a name that the kernel has in memory. Otherwise it fails. It does not
// look across a mount, whose file system can wait: name_to_handle_at with the name would.
func (f *FS) identNow(dir int, name string) (id ident, mount uint64, err error) {
	var path [blockstore.NameMax + 1]byte // unix.Openat2 allocates one, and CheckName has seen name
	copy(path[:], name)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: confine | resolveCached}
	r, _, e := unix.Syscall6(unix.SYS_OPENAT2, uintptr(dir), uintptr(unsafe.Pointer(&path)), uintptr(unsafe.Pointer(&how)),
		unsafe.Sizeof(how), 0, 0)
	if e != 0 {
		return id, 0, e
	}
	fd := int(r)
	defer unix.Close(fd)
	return kernelIdent(fd, "")
}

// openDotDot opens the parent of a directory other than the root. It is ErrStale if the
// directory is no longer below the root: the host has moved it, and its parent is not exported.
func (f *FS) openDotDot(dir int) (int, error) {
	fd, err := unix.Openat(dir, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := f.mustBeBelow(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// knownChild returns the object of a name if it is open already. To find its identity by the name
// (name_to_handle_at) costs a third of opening it.
func (f *FS) knownChild(d *object, name string) *object {
	if f.kind != kindKernel || f.mountID == 0 || name == "." || name == ".." {
		return nil
	}
	id, mount, err := kernelIdent(d.path, name)
	if err != nil || mount != f.mountID {
		return nil
	}
	h := f.tag.handle(&id)
	o := f.objects.get(&h)
	if o != nil {
		f.find.seen(&o.id, &d.id, name)
	}
	return o
}

// adoptChild makes an object of a descriptor of name in d. It owns the descriptor, also if it
// fails.
func (f *FS) adoptChild(d *object, name string, fd int) (*object, error) {
	id, err := identify(f.kind, fd, "")
	if err != nil {
		unix.Close(fd)
		return nil, mapErr(err)
	}
	f.find.seen(&id, &d.id, name)
	return f.adopt(id, fd)
}
