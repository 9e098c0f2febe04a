package nfs3

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// once finds out whether the call has made its change before the server was killed.
func (o *op) once() nfs.Once { return nfs.Once{Call: o.c, FS: o.x.FS} }

// attributed reports whether this call, a SETATTR that is guarded by the time of
// the last change, was made before it was cut off: the guard does not hold any
// more, but the attributes are those that were asked for.
func (o *op) attributed(h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) bool {
	if guard == nil || !o.c.Journaled() {
		return false
	}
	if _, cutOff := o.once().RecordObjects(nfs.Objects{}); !cutOff {
		return false
	}
	a, err := o.x.FS.GetAttr(nil, h)
	return err == nil && !a.Ctime.Equal(*guard) &&
		(s.Mode == nil || *s.Mode == a.Mode) && (s.UID == nil || *s.UID == a.UID) && (s.GID == nil || *s.GID == a.GID) &&
		(s.Size == nil || *s.Size == a.Size) &&
		(s.AtimeHow != blockstore.TimeClient || s.Atime.Equal(a.Atime)) &&
		(s.MtimeHow != blockstore.TimeClient || s.Mtime.Equal(a.Mtime))
}

// makeOnce runs the store's part of a procedure that makes an object, unless it is
// made already.
func (o *op) makeOnce(dir blockstore.Handle, name string, typ blockstore.FileType, s *blockstore.SetAttr,
	do func() (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error),
) (h blockstore.Handle, w blockstore.Wcc, st nfs.Status) {
	if h, a, yes := o.once().Made(&o.cred, dir, name, typ, s); yes {
		o.attr = a
		return h, w, nfs.OK
	}
	var err error
	h, o.attr, w, err = do()
	return h, w, nfs.StatusOf(err)
}
