package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// before, after and changed fill consistency data; all start at what was found, so that
// a failure reports an unchanged object.
func (f *FS) before(w *blockstore.Wcc, st *unix.Stat_t) {
	a := f.changes.attrOf(st)
	w.Pre, w.Post = blockstore.Known(&a), blockstore.Known(&a)
}

func (o *object) after(w *blockstore.Wcc) {
	var st unix.Stat_t
	w.Post.Known = false
	if o.fstat(&st) == nil {
		a := o.changes.attrOf(&st)
		w.Post = blockstore.Known(&a)
	}
}

// changed is after for an object that was changed.
func (o *object) changed(w *blockstore.Wcc) {
	var st unix.Stat_t
	w.Post.Known = false
	if o.fstat(&st) == nil {
		a := o.changes.changed(&st, w.Pre.Ctime)
		w.Post = blockstore.Known(&a)
	}
}

// forget drops an object without names from the cache, which frees its space,
// and from the table, unless it is pinned.
func (f *FS) forget(o *object) {
	if f.pins.has(&o.h) {
		return
	}
	o.dirty.Store(false)
	f.objects.drop(&o.h)
	f.find.gone(&o.id)
}
