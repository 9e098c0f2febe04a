package filecmd

import (
	"context"
	"io"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// object is one file, directory or other thing on a side of a copy. Which of
// the fields are set is the side's business, but for shown and attr.
type object struct {
	shown string // how messages name it
	attr  nfs3.Attr
	path  string        // local
	h     client.Handle // remote
}

func (o *object) dir() bool { return o.attr.Type == blockstore.TypeDir }

// sparse reports whether a file has less allocated than it is long.
func (o *object) sparse() bool { return o.attr.Used < o.attr.Size }

// id tells the names of one file apart from those of others.
type id struct{ fsid, file uint64 }

func (o *object) id() id { return id{o.attr.FSID, o.attr.FileID} }

// side is where a copy comes from or goes to: a tree of this host or of a
// server. Its methods may be called from any goroutine.
type side interface {
	// list calls each for what is in a directory, in any order.
	list(ctx context.Context, dir *object, each func(name string, o *object) error) error
	readlink(ctx context.Context, o *object) (string, error)
	// stream writes a file's bytes in order.
	stream(ctx context.Context, o *object, w io.Writer) error

	// lookup finds a name; the error matches fs.ErrNotExist if it is not there.
	lookup(ctx context.Context, dir *object, name string) (*object, error)
	// The following make objects for their owner alone; finish gives them the
	// rest. They fail with fs.ErrExist if the name is taken, except that create
	// empties a regular file.
	mkdir(ctx context.Context, dir *object, name string) (*object, error)
	create(ctx context.Context, dir *object, name string) (*object, error)
	symlink(ctx context.Context, dir *object, name, target string) error
	mknod(ctx context.Context, dir *object, name string, a *nfs3.Attr) (*object, error)
	link(ctx context.Context, o, dir *object, name string) error
	// remove removes what is no directory.
	remove(ctx context.Context, dir *object, name string) error
	// finish sets mode and times to those of a, the owner too if asked, and the
	// size of a file.
	finish(ctx context.Context, o *object, a *nfs3.Attr, owner bool) error
}

// fileMode is the mode of what is not finished yet.
const (
	fileMode = 0o600
	dirMode  = 0o700
)
