package filecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// local is this host's side of a copy.
type local struct{}

// statBlock is the unit of Stat_t.Blocks, in bytes.
const statBlock = 512

var typeOf = map[uint32]blockstore.FileType{
	unix.S_IFREG: blockstore.TypeReg, unix.S_IFDIR: blockstore.TypeDir, unix.S_IFLNK: blockstore.TypeLnk,
	unix.S_IFIFO: blockstore.TypeFifo, unix.S_IFSOCK: blockstore.TypeSock,
	unix.S_IFBLK: blockstore.TypeBlk, unix.S_IFCHR: blockstore.TypeChr,
}

// localObject describes a file of this host; with follow, what a symbolic link
// points to.
func localObject(p string, follow bool) (*object, error) {
	var st unix.Stat_t
	stat := unix.Lstat
	if follow {
		stat = unix.Stat
	}
	if err := stat(p, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: p, Err: err}
	}
	return objectOf(p, &st), nil
}

// openObject describes a file that is open.
func openObject(f *os.File) (*object, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	o := objectOf(f.Name(), &st)
	o.f = f
	return o, nil
}

func objectOf(p string, st *unix.Stat_t) *object {
	o := &object{shown: p, path: p}
	o.attr.FSID = st.Dev
	o.attr.Attr = blockstore.Attr{
		Type: typeOf[st.Mode&unix.S_IFMT], Mode: st.Mode & 0o7777, NLink: uint32(st.Nlink), UID: st.Uid, GID: st.Gid,
		Size: uint64(st.Size), Used: uint64(st.Blocks) * statBlock,
		Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev), FileID: st.Ino,
		Atime: time.Unix(st.Atim.Unix()), Mtime: time.Unix(st.Mtim.Unix()), Ctime: time.Unix(st.Ctim.Unix()),
	}
	return o
}

// listed is how many names of a directory are read at once.
const listed = 1024

func (local) list(ctx context.Context, dir *object, each func(string, *object) error) error {
	d, err := os.Open(dir.path)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(listed)
		for _, name := range names {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			o, err := localObject(filepath.Join(dir.path, name), false)
			if gone(err) {
				continue
			}
			if err != nil {
				return err
			}
			if err := each(name, o); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (local) readlink(_ context.Context, o *object) (string, error) { return os.Readlink(o.path) }

// openListed opens a file for reading. Since the listing the owner of the directory may have
// replaced the name by a FIFO, or by a symbolic link to a file that only this process may read.
// openListed then fails with errReplaced.
func openListed(o *object) (*os.File, error) {
	f, err := os.OpenFile(o.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	now, err := openObject(f)
	if err == nil && (now.id() != o.id() || now.attr.Type != o.attr.Type) {
		err = errReplaced
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

var errReplaced = errors.New("was replaced while it was copied")

func (local) read(_ context.Context, o *object, p []byte) error {
	f, err := openListed(o)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.ReadFull(f, p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (local) stream(_ context.Context, o *object, w io.Writer) error {
	if o.f != nil {
		_, err := io.Copy(w, io.NewSectionReader(o.f, 0, 1<<63-1))
		return err
	}
	f, err := openListed(o)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func (local) lookup(_ context.Context, dir *object, name string) (*object, error) {
	return localObject(filepath.Join(dir.path, name), false)
}

func (local) mkdir(_ context.Context, dir *object, name string) (*object, error) {
	p := filepath.Join(dir.path, name)
	if err := os.Mkdir(p, dirMode); err != nil {
		return nil, err
	}
	return localObject(p, false)
}

func (local) attr(_ context.Context, o *object) (nfs3.Attr, error) {
	now, err := localObject(o.path, false)
	if err != nil {
		return nfs3.Attr{}, err
	}
	return now.attr, nil
}

func (local) create(_ context.Context, dir *object, name string) (*object, error) {
	f, err := os.OpenFile(filepath.Join(dir.path, name), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, fileMode)
	if err != nil {
		return nil, err
	}
	o, err := openObject(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return o, nil
}

func (local) reopen(_ context.Context, dir *object, name string, like *object) (*object, error) {
	f, err := os.OpenFile(filepath.Join(dir.path, name), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, errNotOurs
	}
	o, err := openObject(f)
	if err == nil && !ours(&o.attr, like) {
		err = errNotOurs
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return o, nil
}

func (local) close(o *object) error {
	f := o.f
	o.f = nil
	return f.Close()
}

func (local) rename(_ context.Context, dir *object, from, to string) error {
	return os.Rename(filepath.Join(dir.path, from), filepath.Join(dir.path, to))
}

func (local) symlink(_ context.Context, dir *object, name, target string) error {
	return os.Symlink(target, filepath.Join(dir.path, name))
}

func (local) mknod(_ context.Context, dir *object, name string, a *nfs3.Attr) (*object, error) {
	p := filepath.Join(dir.path, name)
	mode := uint32(0)
	for bits, t := range typeOf {
		if t == a.Type {
			mode = bits
		}
	}
	if mode == 0 {
		return nil, fmt.Errorf("unknown type %d", a.Type)
	}
	if err := unix.Mknod(p, mode|fileMode, int(unix.Mkdev(a.Major, a.Minor))); err != nil {
		return nil, err
	}
	return localObject(p, false)
}

func (local) link(_ context.Context, o, dir *object, name string) error {
	return os.Link(o.path, filepath.Join(dir.path, name))
}

func (local) remove(_ context.Context, dir *object, name string) error {
	return unix.Unlink(filepath.Join(dir.path, name))
}

func (local) finish(_ context.Context, o *object, a *nfs3.Attr, owner bool) (err error) {
	f := o.f
	if f == nil {
		// The name may belong to another object by now.
		fd, err := unix.Open(o.path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: o.path, Err: err}
		}
		f = os.NewFile(uintptr(fd), o.path)
		defer func() { _ = f.Close() }()
		now, err := openObject(f)
		if err != nil {
			return err
		}
		if now.id() != o.id() || now.attr.Type != o.attr.Type {
			return errReplaced
		}
	}
	fd := int(f.Fd())
	// chmod and utimensat take no descriptor of O_PATH, but the kernel's name of it.
	name := fmt.Sprintf("/proc/self/fd/%d", fd)
	if owner {
		if err := unix.Fchownat(fd, "", int(a.UID), int(a.GID), unix.AT_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "chown", Path: o.path, Err: err}
		}
	}
	err = unix.Fchmod(fd, finalMode(a, owner))
	if errors.Is(err, unix.EBADF) {
		err = unix.Chmod(name, finalMode(a, owner))
	}
	if err != nil {
		return &os.PathError{Op: "chmod", Path: o.path, Err: err}
	}
	if err := os.Chtimes(name, a.Atime, a.Mtime); err != nil {
		return &os.PathError{Op: "utimensat", Path: o.path, Err: errors.Unwrap(err)}
	}
	return nil
}

// extents are the runs of data of a file of size bytes; one for all of it
// where the file system does not tell.
func extents(f *os.File, size int64) ([]client.Extent, error) {
	var list []client.Extent
	fd := int(f.Fd())
	for off := int64(0); off < size; {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		if err != nil {
			return []client.Extent{{Size: uint64(size)}}, nil //nolint:nilerr // the file system does not tell
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil {
			return nil, &os.PathError{Op: "seek", Path: f.Name(), Err: err}
		}
		hole = min(hole, size)
		if data >= hole {
			break
		}
		list = append(list, client.Extent{Off: uint64(data), Size: uint64(hole - data)})
		off = hole
	}
	return list, nil
}

// readable opens and closes a file.
func readable(o *object) error {
	f, err := openListed(o)
	if err != nil {
		return err
	}
	return f.Close()
}
