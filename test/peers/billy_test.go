package peers

import (
	"os"
	"path/filepath"
	"time"

	"github.com/go-git/go-billy/v5"
)

// change adds to a billy file system of this host what go-nfs needs to set
// attributes (billy.Change).
type change struct{ billy.Filesystem }

func (c change) path(name string) string { return filepath.Join(c.Root(), filepath.Clean("/"+name)) }

// Chmod implements billy.Change.
func (c change) Chmod(name string, mode os.FileMode) error { return os.Chmod(c.path(name), mode) }

// Lchown implements billy.Change.
func (c change) Lchown(name string, uid, gid int) error { return os.Lchown(c.path(name), uid, gid) }

// Chown implements billy.Change.
func (c change) Chown(name string, uid, gid int) error { return os.Chown(c.path(name), uid, gid) }

// Chtimes implements billy.Change.
func (c change) Chtimes(name string, atime, mtime time.Time) error {
	return os.Chtimes(c.path(name), atime, mtime)
}
