package nfs3

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// once returns the means to find out whether an earlier execution of this call, before the server
// was killed, has made its change.
func (o *op) once() nfs.Once { return nfs.Once{Call: o.c, FS: o.x.FS} }

// attributed reports whether an earlier execution of this SETATTR has set the attributes before the
// server was killed. It is for a SETATTR with a guard: the guard fails now, because the change
// itself has moved the ctime. The object then has the attributes that the call asks for. err says
// that they cannot be made stable.
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
