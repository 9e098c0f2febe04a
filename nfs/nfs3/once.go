package nfs3

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// once finds out whether the change of a repeated call was made before the server was killed.
func (o *op) once() nfs.Once { return nfs.Once{Call: o.c, FS: o.x.FS} }

// attributed reports whether this SETATTR, with a guard on the time of the last change, was
// executed before the server was killed: the guard fails now, but the file has the attributes that
// the call asks for. err says that these cannot be made stable.
func (o *op) attributed(h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) (yes bool, err error) {
	if guard == nil || !o.c.Journaled() {
		return false, nil
	}
	if _, cutOff := o.once().RecordObjects(nfs.Objects{}); !cutOff {
		return false, nil
	}
	a, err := o.x.FS.GetAttr(nil, h)
	yes = err == nil && !a.Ctime.Equal(*guard) &&
		(s.Mode == nil || *s.Mode == a.Mode) && (s.UID == nil || *s.UID == a.UID) && (s.GID == nil || *s.GID == a.GID) &&
		(s.Size == nil || *s.Size == a.Size) &&
		(s.AtimeHow != blockstore.TimeClient || s.Atime.Equal(a.Atime)) &&
		(s.MtimeHow != blockstore.TimeClient || s.Mtime.Equal(a.Mtime))
	if !yes {
		return false, nil
	}
	return true, o.once().Stable(h)
}
