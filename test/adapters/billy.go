package adapters

import (
	"context"
	"crypto/rand"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/helper/chroot"

	"github.com/rstored/rstored/nfs/client"
)

// Billy is a directory of a server as a billy.Filesystem and billy.Change.
type Billy struct{ FS *client.FS }

var (
	_ billy.Filesystem = Billy{}
	_ billy.Change     = Billy{}
)

// Create implements billy.Basic.
func (b Billy) Create(name string) (billy.File, error) {
	return b.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// Open implements billy.Basic.
func (b Billy) Open(name string) (billy.File, error) { return b.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile implements billy.Basic. It makes the directories of a new file.
func (b Billy) OpenFile(name string, flag int, perm fs.FileMode) (billy.File, error) {
	if flag&os.O_CREATE != 0 {
		if err := b.up(name); err != nil {
			return nil, err
		}
	}
	f, err := b.FS.OpenFile(rel(name), flag, perm)
	if err != nil {
		return nil, plain(err)
	}
	return &billyFile{f, name}, nil
}

// up makes the directory of a name.
func (b Billy) up(name string) error { return plain(b.FS.MkdirAll(rel(path.Dir(rel(name))), 0o777)) }

// Stat implements billy.Basic.
func (b Billy) Stat(name string) (os.FileInfo, error) {
	v, err := b.FS.Stat(rel(name))
	return v, plain(err)
}

// Rename implements billy.Basic.
func (b Billy) Rename(from, to string) error {
	if err := b.up(to); err != nil {
		return err
	}
	return plain(b.FS.Rename(rel(from), rel(to)))
}

// Remove implements billy.Basic.
func (b Billy) Remove(name string) error { return plain(b.FS.Remove(rel(name))) }

// Join implements billy.Basic.
func (Billy) Join(parts ...string) string { return path.Join(parts...) }

// TempFile implements billy.TempFile.
func (b Billy) TempFile(dir, prefix string) (billy.File, error) {
	return b.OpenFile(path.Join(dir, prefix+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// ReadDir implements billy.Dir.
func (b Billy) ReadDir(name string) (out []os.FileInfo, err error) {
	list, err := b.FS.ReadDir(rel(name))
	for _, e := range list {
		i, err := e.Info()
		if err != nil {
			return out, err
		}
		out = append(out, i)
	}
	return out, plain(err)
}

// MkdirAll implements billy.Dir.
func (b Billy) MkdirAll(name string, perm fs.FileMode) error {
	return plain(b.FS.MkdirAll(rel(name), perm))
}

// Lstat implements billy.Symlink.
func (b Billy) Lstat(name string) (os.FileInfo, error) {
	v, err := b.FS.Lstat(rel(name))
	return v, plain(err)
}

// Symlink implements billy.Symlink.
func (b Billy) Symlink(target, link string) error {
	if err := b.up(link); err != nil {
		return err
	}
	return plain(b.FS.Symlink(target, rel(link)))
}

// Readlink implements billy.Symlink.
func (b Billy) Readlink(name string) (string, error) {
	v, err := b.FS.ReadLink(rel(name))
	return v, plain(err)
}

// Chroot implements billy.Chroot.
func (b Billy) Chroot(dir string) (billy.Filesystem, error) { return chroot.New(b, dir), nil }

// Root implements billy.Chroot.
func (Billy) Root() string { return "/" }

// Chmod implements billy.Change.
func (b Billy) Chmod(name string, mode fs.FileMode) error { return plain(b.FS.Chmod(rel(name), mode)) }

// Lchown implements billy.Change.
func (b Billy) Lchown(name string, uid, gid int) error { return b.Chown(name, uid, gid) }

// Chown implements billy.Change.
func (b Billy) Chown(name string, uid, gid int) error { return plain(b.FS.Chown(rel(name), uid, gid)) }

// Chtimes implements billy.Change.
func (b Billy) Chtimes(name string, atime, mtime time.Time) error {
	return plain(b.FS.Chtimes(rel(name), atime, mtime))
}

// billyFile is an open file.
type billyFile struct {
	*client.File
	name string
}

// Name implements billy.File: the name that the file was opened by.
func (f *billyFile) Name() string { return f.name }

// Lock implements billy.File: it waits for a lock of the whole file, on the server.
func (f *billyFile) Lock() error { return f.File.Lock(context.Background(), 0, 0, true) }

// Unlock implements billy.File.
func (f *billyFile) Unlock() error { return f.File.Unlock(0, 0) }
