package filecmd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// object is a file, a directory or another object on a side of a copy. Each side sets the fields
// that it uses; all set shown and attr.
type object struct {
	shown string // how messages name it
	attr  nfs3.Attr
	path  string        // local
	f     *os.File      // local, while it is written
	h     client.Handle // remote
}

func (o *object) dir() bool { return o.attr.Type == blockstore.TypeDir }

// moved records the name that an object has now.
func (o *object) moved(into *object, name string) {
	o.shown = below(into, name)
	if o.path != "" {
		o.path = filepath.Join(into.path, name)
	}
}

// sparse reports whether a file has fewer bytes allocated than its size.
func (o *object) sparse() bool { return o.attr.Used < o.attr.Size }

// toCopy estimates the bytes that a copy of the object transfers: the allocated bytes of a sparse
// file, and 0 for an object that is not a regular file.
func (o *object) toCopy() int64 {
	if o.attr.Type != blockstore.TypeReg {
		return 0
	}
	return int64(min(o.attr.Size, o.attr.Used))
}

// id tells the names of one file apart from those of others.
type id struct{ fsid, file uint64 }

func (o *object) id() id { return id{o.attr.FSID, o.attr.FileID} }

// side is the source or the target of a copy: a tree of this host or of a server. Its methods may
// be called from any goroutine.
type side interface {
	// list calls each for the entries of a directory, in any order.
	list(ctx context.Context, dir *object, each func(name string, o *object) error) error
	readlink(ctx context.Context, o *object) (string, error)
	// read reads the first len(p) bytes of a file. It fails with io.ErrUnexpectedEOF if there are
	// fewer.
	read(ctx context.Context, o *object, p []byte) error
	// stream writes a file's bytes in order.
	stream(ctx context.Context, o *object, w io.Writer) error

	// lookup finds a name; the error matches fs.ErrNotExist if it is not there.
	lookup(ctx context.Context, dir *object, name string) (*object, error)
	// attr asks for the attributes of an object again.
	attr(ctx context.Context, o *object) (nfs3.Attr, error)
	// The following make objects for their owner alone; finish sets the other attributes. They fail
	// with fs.ErrExist if the name is taken.
	mkdir(ctx context.Context, dir *object, name string) (*object, error)
	// create makes a file and opens it, and close closes it.
	create(ctx context.Context, dir *object, name string) (*object, error)
	close(o *object) error
	// reopen opens a file that create has made earlier for the same user as like (see ours). It
	// fails with errNotOurs if another file has the name.
	reopen(ctx context.Context, dir *object, name string, like *object) (*object, error)
	// sync makes the data of a file that is open durable.
	sync(o *object) error
	// syncDir makes the names in a directory durable.
	syncDir(o *object) error
	symlink(ctx context.Context, dir *object, name, target string) error
	mknod(ctx context.Context, dir *object, name string, a *nfs3.Attr) (*object, error)
	link(ctx context.Context, o, dir *object, name string) error
	// rename renames an object within a directory. It replaces an object that is not a directory.
	rename(ctx context.Context, dir *object, from, to string) error
	// remove removes an object that is not a directory.
	remove(ctx context.Context, dir *object, name string) error
	// finish sets mode and times to those of a, the size of a file, and if owner is set the owner.
	// Without owner it clears set-ID bits.
	finish(ctx context.Context, o *object, a *nfs3.Attr, owner bool) error
}

// finalMode is the mode of a copy of what has the attributes a.
func finalMode(a *nfs3.Attr, owner bool) uint32 {
	const setID = 0o6000
	if owner {
		return a.Mode & 0o7777
	}
	return a.Mode & 0o7777 &^ setID
}

var errNotOurs = errors.New("is not a partial copy by this user")

// ours reports whether an object with the attributes a can only be the work of the user who owns
// like. No other user can have written to it.
func ours(a *nfs3.Attr, like *object) bool {
	return a.Type == blockstore.TypeReg && a.Mode&0o7777 == fileMode && a.NLink == 1 && a.UID == like.attr.UID
}

// fileMode and dirMode are the modes of incomplete objects.
const (
	fileMode = 0o600
	dirMode  = 0o700
)
