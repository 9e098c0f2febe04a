package adapters

import (
	"io/fs"
	"os"
	"time"

	"github.com/spf13/afero"

	"github.com/rstored/rstored/nfs/client"
)

// Afero is a directory of a server as an afero.Fs.
type Afero struct{ FS *client.FS }

var _ afero.Fs = Afero{}

// Name implements afero.Fs.
func (Afero) Name() string { return "nfs" }

// Create implements afero.Fs.
func (a Afero) Create(name string) (afero.File, error) {
	return a.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// Mkdir implements afero.Fs.
func (a Afero) Mkdir(name string, perm os.FileMode) error { return plain(a.FS.Mkdir(rel(name), perm)) }

// MkdirAll implements afero.Fs.
func (a Afero) MkdirAll(name string, perm os.FileMode) error {
	return plain(a.FS.MkdirAll(rel(name), perm))
}

// Open implements afero.Fs.
func (a Afero) Open(name string) (afero.File, error) { return a.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile implements afero.Fs.
func (a Afero) OpenFile(name string, flag int, perm os.FileMode) (afero.File, error) {
	if i, err := a.FS.Stat(rel(name)); err == nil && i.IsDir() && flag == os.O_RDONLY {
		d, err := a.FS.Open(rel(name))
		if err != nil {
			return nil, err
		}
		return &aferoDir{d.(fs.ReadDirFile), name}, nil
	}
	f, err := a.FS.OpenFile(rel(name), flag, perm)
	if err != nil {
		return nil, plain(err)
	}
	return &aferoFile{f, name}, nil
}

// Remove implements afero.Fs.
func (a Afero) Remove(name string) error { return plain(a.FS.Remove(rel(name))) }

// RemoveAll implements afero.Fs.
func (a Afero) RemoveAll(name string) error { return plain(a.FS.RemoveAll(rel(name))) }

// Rename implements afero.Fs.
func (a Afero) Rename(oldName, newName string) error {
	return plain(a.FS.Rename(rel(oldName), rel(newName)))
}

// Stat implements afero.Fs.
func (a Afero) Stat(name string) (os.FileInfo, error) {
	v, err := a.FS.Stat(rel(name))
	return v, plain(err)
}

// Chmod implements afero.Fs.
func (a Afero) Chmod(name string, mode os.FileMode) error { return plain(a.FS.Chmod(rel(name), mode)) }

// Chown implements afero.Fs.
func (a Afero) Chown(name string, uid, gid int) error { return plain(a.FS.Chown(rel(name), uid, gid)) }

// Chtimes implements afero.Fs.
func (a Afero) Chtimes(name string, atime, mtime time.Time) error {
	return plain(a.FS.Chtimes(rel(name), atime, mtime))
}

// aferoFile is an open file.
type aferoFile struct {
	*client.File
	name string
}

// Name implements afero.File: the name that the file was opened by.
func (f *aferoFile) Name() string { return f.name }

// WriteString implements afero.File.
func (f *aferoFile) WriteString(s string) (int, error) { return f.Write([]byte(s)) }

// Readdir implements afero.File.
func (f *aferoFile) Readdir(int) ([]os.FileInfo, error) { return nil, isNo(f.name, "a directory") }

// Readdirnames implements afero.File.
func (f *aferoFile) Readdirnames(int) ([]string, error) { return nil, isNo(f.name, "a directory") }

func isNo(name, what string) error {
	return &fs.PathError{Op: "use as " + what, Path: name, Err: fs.ErrInvalid}
}

// aferoDir is an open directory.
type aferoDir struct {
	fs.ReadDirFile
	name string
}

// Name implements afero.File.
func (d *aferoDir) Name() string { return d.name }

// Readdir implements afero.File.
func (d *aferoDir) Readdir(n int) (out []os.FileInfo, err error) {
	list, err := d.ReadDir(n)
	for _, e := range list {
		i, err := e.Info()
		if err != nil {
			return out, err
		}
		out = append(out, i)
	}
	return out, plain(err)
}

// Readdirnames implements afero.File.
func (d *aferoDir) Readdirnames(n int) (out []string, err error) {
	list, err := d.ReadDir(n)
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out, plain(err)
}

// The rest of afero.File is about files.
func (d *aferoDir) ReadAt([]byte, int64) (int, error)  { return 0, isNo(d.name, "a file") }
func (d *aferoDir) WriteAt([]byte, int64) (int, error) { return 0, isNo(d.name, "a file") }
func (d *aferoDir) Write([]byte) (int, error)          { return 0, isNo(d.name, "a file") }
func (d *aferoDir) WriteString(string) (int, error)    { return 0, isNo(d.name, "a file") }
func (d *aferoDir) Seek(int64, int) (int64, error)     { return 0, isNo(d.name, "a file") }
func (d *aferoDir) Truncate(int64) error               { return isNo(d.name, "a file") }
func (d *aferoDir) Sync() error                        { return nil }
