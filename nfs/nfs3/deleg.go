package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Files that are delegated to a client of version 4 are asked back before they are
// read or changed; meanwhile the answer is JUKEBOX.

func (o *op) file(h blockstore.Handle) lock.File { return lock.File{Export: o.x.ID, Handle: h} }

// readable makes sure that nobody has changed a file without saying so yet.
func (o *op) readable(h blockstore.Handle) nfs.Status {
	if o.s.Delegations == nil || o.s.Delegations.Free(o.file(h), false, o.mayBlock) {
		return nfs.OK
	}
	return nfs.ErrJukebox
}

// hold is for a file that is about to be changed.
func (o *op) beginChange(h blockstore.Handle) nfs.Status {
	if o.s.Delegations == nil {
		return nfs.OK
	}
	begun, ok := o.s.Delegations.BeginChange(o.file(h))
	if begun {
		o.changing = append(o.changing, o.file(h))
	}
	if !ok {
		return nfs.ErrJukebox
	}
	return nfs.OK
}

// beginChangeName is hold for a file whose name, if it is there, is about to go or to mean
// something else.
func (o *op) beginChangeName(dir blockstore.Handle, name string) nfs.Status {
	if o.s.Delegations == nil || !o.s.Delegations.Delegating() {
		return nfs.OK
	}
	h, a, err := o.x.FS.Lookup(&o.cred, dir, name)
	if err != nil || a.Type != blockstore.TypeReg {
		return nfs.OK // what is wrong with it is for the procedure itself to say
	}
	return o.beginChange(h)
}

func (o *op) endChanges() {
	for _, f := range o.changing {
		o.s.Delegations.EndChange(f)
	}
	o.changing = o.changing[:0]
}
