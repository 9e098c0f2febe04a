package client

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// The methods here are those of os.Root, with names as io/fs has them: relative to the directory of
// the FS, with slashes. Relative symbolic links are followed where os.Root follows them, and do not
// lead out of the directory. Modes are taken as they are: the umask of the process does not count.
// Errors are of type *fs.PathError, or *os.LinkError for two names, and match fs.ErrNotExist,
// fs.ErrExist and fs.ErrPermission.

// errAccess is the error of a read or write that OpenFile was not asked for.
var errAccess = errors.New("the file is not open for this")

// parent finds the directory of a name, and the last part of the name.
func (f *FS) parent(op, name string) (dir *Node, base string, err error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	dir, err = f.find(op, path.Dir(name), true)
	return dir, path.Base(name), err
}

// unixMode is a mode as NFS has it, without the type.
func unixMode(m fs.FileMode) *uint32 {
	bits := uint32(m.Perm())
	for _, b := range specialBits {
		if m&b.mode != 0 {
			bits |= b.bit
		}
	}
	return &bits
}

// Create makes a file for reading and writing, or truncates one that exists.
func (f *FS) Create(name string) (*File, error) {
	return f.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// OpenFile opens a file with the flags of package os, and makes it with O_CREATE. With O_APPEND
// each Write first asks the server for the end of the file, and writes there; two clients that
// append at the same time overwrite each other. With O_SYNC data is stable when a write returns.
// Open also opens directories; OpenFile does not.
func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (*File, error) {
	n, err := f.find("open", name, true)
	switch {
	case err == nil && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, pathError("open", name, nfs.ErrExist)
	case err == nil && n.Attr.Type == blockstore.TypeDir:
		return nil, pathError("open", name, nfs.ErrIsDir)
	case err == nil && flag&os.O_TRUNC != 0:
		err = pathError("open", name, f.c.SetAttr(f.ctx, n.Handle, &blockstore.SetAttr{Size: new(uint64)}, nil))
	case errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0:
		n, err = f.create(name, perm)
		if errors.Is(err, fs.ErrExist) && flag&os.O_EXCL == 0 {
			return f.OpenFile(name, flag&^os.O_CREATE, perm) // another client was faster
		}
	}
	if err != nil {
		return nil, err
	}
	file := &File{c: f.c, ctx: f.ctx, node: n, name: name, atEnd: flag&os.O_APPEND != 0, stable: flag&os.O_SYNC != 0}
	switch flag & (os.O_WRONLY | os.O_RDWR) {
	case 0:
		file.refused = ShareWrite
	case os.O_WRONLY:
		file.refused = ShareRead
	}
	return file, nil
}

// create makes a file that does not exist.
func (f *FS) create(name string, perm fs.FileMode) (*Node, error) {
	dir, base, err := f.parent("open", name)
	if err != nil {
		return nil, err
	}
	mode := &blockstore.SetAttr{Mode: unixMode(perm)}
	n, err := f.c.Create(f.ctx, dir.Handle, base, blockstore.Guarded, mode, [8]byte{})
	return n, pathError("open", name, err)
}

// ReadFile implements fs.ReadFileFS.
func (f *FS) ReadFile(name string) ([]byte, error) {
	n, err := f.find("open", name, true)
	if err != nil {
		return nil, err
	}
	if n.Attr.Type == blockstore.TypeDir {
		return nil, pathError("read", name, nfs.ErrIsDir)
	}
	file := &File{c: f.c, ctx: f.ctx, node: n, name: name}
	// A size is the server's claim, so the first allocation is at most one READ.
	out := make([]byte, 0, min(n.Attr.Size+1, TransferMax))
	for {
		if len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
		k, err := file.ReadAt(out[len(out):cap(out)], int64(len(out)))
		out = out[:len(out)+k]
		if err == io.EOF {
			return out, file.Close()
		}
		if err != nil {
			return out, errors.Join(err, file.Close())
		}
	}
}

// WriteFile writes a file. It makes a missing file, and truncates an existing one. The data is
// stable when WriteFile returns.
func (f *FS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	file, err := f.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

// Mkdir makes a directory.
func (f *FS) Mkdir(name string, perm fs.FileMode) error {
	dir, base, err := f.parent("mkdir", name)
	if err != nil {
		return err
	}
	_, err = f.c.Mkdir(f.ctx, dir.Handle, base, &blockstore.SetAttr{Mode: unixMode(perm)})
	return pathError("mkdir", name, err)
}

// MkdirAll makes a directory and those above it that are missing. It is no error if the directory
// exists.
func (f *FS) MkdirAll(name string, perm fs.FileMode) error {
	n, err := f.find("mkdir", name, true)
	switch {
	case err == nil && n.Attr.Type != blockstore.TypeDir:
		return pathError("mkdir", name, nfs.ErrExist)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if up := path.Dir(name); up != "." {
		if err := f.MkdirAll(up, perm); err != nil {
			return err
		}
	}
	if err = f.Mkdir(name, perm); !errors.Is(err, fs.ErrExist) {
		return err
	}
	n, findErr := f.find("mkdir", name, true) // another client was faster
	if findErr == nil && n.Attr.Type == blockstore.TypeDir {
		return nil
	}
	return err
}

// Remove removes a file, a symbolic link or an empty directory.
func (f *FS) Remove(name string) error {
	dir, base, err := f.parent("remove", name)
	if err != nil {
		return err
	}
	n, err := f.c.Lookup(f.ctx, dir.Handle, base)
	if err == nil {
		err = f.c.removeNode(f.ctx, dir.Handle, base, n.Attr.Type)
	}
	return pathError("remove", name, err)
}

// RemoveAll removes a name and all below it. It does not follow symbolic links. It is no error if
// the name does not exist. After an error a part may be removed.
func (f *FS) RemoveAll(name string) error {
	dir, base, err := f.parent("remove", name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	n, err := f.c.Lookup(f.ctx, dir.Handle, base)
	if err == nil {
		err = f.c.RemoveTree(f.ctx, dir.Handle, base, n)
	}
	if IsStatus(err, nfs.ErrNoEnt) {
		return nil
	}
	return pathError("remove", name, err)
}

// Rename renames a file or directory. It replaces what has the new name.
func (f *FS) Rename(oldName, newName string) error {
	from, oldBase, err := f.parent("rename", oldName)
	if err != nil {
		return linkError("rename", oldName, newName, err)
	}
	to, newBase, err := f.parent("rename", newName)
	if err == nil {
		err = f.c.Rename(f.ctx, from.Handle, oldBase, to.Handle, newBase)
	}
	return linkError("rename", oldName, newName, err)
}

// Link gives a file another name. It does not follow a symbolic link that has the old name.
func (f *FS) Link(oldName, newName string) error {
	n, err := f.find("link", oldName, false)
	if err != nil {
		return linkError("link", oldName, newName, err)
	}
	dir, base, err := f.parent("link", newName)
	if err == nil {
		err = f.c.Link(f.ctx, n.Handle, dir.Handle, base)
	}
	return linkError("link", oldName, newName, err)
}

// Symlink makes a symbolic link. It does not change the target. An FS follows only relative
// targets.
func (f *FS) Symlink(target, name string) error {
	dir, base, err := f.parent("symlink", name)
	if err == nil {
		_, err = f.c.Symlink(f.ctx, dir.Handle, base, target, nil)
	}
	return linkError("symlink", target, name, err)
}

// linkError wraps err as an os.LinkError.
func linkError(op, oldName, newName string, err error) error {
	if err == nil {
		return nil
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	} else {
		err = &statusError{err}
	}
	return &os.LinkError{Op: op, Old: oldName, New: newName, Err: err}
}

// set changes attributes of what a name leads to.
func (f *FS) set(op, name string, s *blockstore.SetAttr) error {
	n, err := f.find(op, name, true)
	if err != nil {
		return err
	}
	return pathError(op, name, f.c.SetAttr(f.ctx, n.Handle, s, nil))
}

// Chmod changes the mode: the permissions, fs.ModeSetuid, fs.ModeSetgid and fs.ModeSticky.
func (f *FS) Chmod(name string, mode fs.FileMode) error {
	return f.set("chmod", name, &blockstore.SetAttr{Mode: unixMode(mode)})
}

// Chown changes the owner and the group. -1 leaves one as it is.
func (f *FS) Chown(name string, uid, gid int) error {
	var s blockstore.SetAttr
	if uid != -1 {
		s.UID = new(uint32(uid))
	}
	if gid != -1 {
		s.GID = new(uint32(gid))
	}
	return f.set("chown", name, &s)
}

// Chtimes changes the times of the last access and change. A zero time stays as it is.
func (f *FS) Chtimes(name string, atime, mtime time.Time) error {
	s := blockstore.SetAttr{Atime: atime, Mtime: mtime}
	if !atime.IsZero() {
		s.AtimeHow = blockstore.TimeClient
	}
	if !mtime.IsZero() {
		s.MtimeHow = blockstore.TimeClient
	}
	return f.set("chtimes", name, &s)
}

// Truncate changes the size of a file.
func (f *FS) Truncate(name string, size int64) error {
	if size < 0 {
		return pathError("truncate", name, nfs.ErrInval)
	}
	return f.set("truncate", name, &blockstore.SetAttr{Size: new(uint64(size))})
}

// Sub implements fs.SubFS.
func (f *FS) Sub(dir string) (fs.FS, error) {
	n, err := f.find("sub", dir, true)
	if err != nil {
		return nil, err
	}
	if n.Attr.Type != blockstore.TypeDir {
		return nil, pathError("sub", dir, nfs.ErrNotDir)
	}
	return &FS{f.c, f.ctx, n}, nil
}
