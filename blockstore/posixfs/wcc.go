package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// before sets both sides of consistency data to the attributes before an operation, so that a
// failure reports an unchanged object.
func (f *FS) before(w *blockstore.Wcc, st *unix.Stat_t) {
	a := f.changes.attrOf(st)
	w.Pre, w.Post = blockstore.Known(&a), blockstore.Known(&a)
}

// after sets the attributes after an operation that has not changed the object, or may have
// failed in the middle.
func (o *object) after(w *blockstore.Wcc) {
	var st unix.Stat_t
	w.Post.Known = false
	if o.fstat(&st) == nil {
		a := o.changes.attrOf(&st)
		w.Post = blockstore.Known(&a)
	}
}

// changed sets the attributes after an operation that has changed the object. Their ctime
// differs from that before; see changes.
func (o *object) changed(w *blockstore.Wcc) {
	var st unix.Stat_t
	w.Post.Known = false
	if o.fstat(&st) == nil {
		a := o.changes.changed(&st, w.Pre.Ctime)
		w.Post = blockstore.Known(&a)
	}
}

// forget removes an object without names from the cache, which frees its space, and from the
// finder. It does nothing if the object is pinned.
func (f *FS) forget(o *object) {
	if f.pins.has(&o.h) {
		return
	}
	o.dirty.Store(false)
	f.objects.drop(&o.h)
	f.find.gone(&o.id)
}
