package filecmd

import (
	"context"
	"errors"
	"io"
	"os"

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
	f     *os.File      // local, while it is written
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
	// attr asks for the attributes of an object again.
	attr(ctx context.Context, o *object) (nfs3.Attr, error)
	// The following make objects for their owner alone; finish gives them the
	// rest. They fail with fs.ErrExist if the name is taken.
	mkdir(ctx context.Context, dir *object, name string) (*object, error)
	// create makes a file and opens it, and close closes it.
	create(ctx context.Context, dir *object, name string) (*object, error)
	close(o *object) error
	// reopen opens what create made earlier for the user who has now made like: see ours. It fails with
	// errNotOurs if another file has the name.
	reopen(ctx context.Context, dir *object, name string, like *object) (*object, error)
	// sync makes the data of a file that is open durable.
	sync(o *object) error
	// syncDir makes the names in a directory durable.
	syncDir(o *object) error
	symlink(ctx context.Context, dir *object, name, target string) error
	mknod(ctx context.Context, dir *object, name string, a *nfs3.Attr) (*object, error)
	link(ctx context.Context, o, dir *object, name string) error
	// rename gives an object of a directory another name there; what has that name, and is no directory, is replaced.
	rename(ctx context.Context, dir *object, from, to string) error
	// remove removes what is no directory.
	remove(ctx context.Context, dir *object, name string) error
	// finish sets mode and times to those of a, the owner too if asked, and the
	// size of a file. Without the owner nobody's set-ID bits are taken over.
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

var errNotOurs = errors.New("is no part of a copy by this user")

// ours reports whether what has the attributes a can only be what the user who has made like has left there: nobody
// else can have written to it.
func ours(a *nfs3.Attr, like *object) bool {
	return a.Type == blockstore.TypeReg && a.Mode&0o7777 == fileMode && a.NLink == 1 && a.UID == like.attr.UID
}

// fileMode is the mode of what is not finished yet.
const (
	fileMode = 0o600
	dirMode  = 0o700
)
