package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// A file may be delegated to a client of version 4. Version 3 recalls the delegation before it
// reads or changes the file. Until the client has returned it, the status is JUKEBOX, and the
// client of version 3 repeats the call (RFC 1813 section 2.6).

func (o *op) file(h blockstore.Handle) lock.File { return lock.File{Export: o.x.ID, Handle: h} }

// readable recalls a write delegation of a file. Its holder may have changes that the server does
// not have yet.
func (o *op) readable(h blockstore.Handle) nfs.Status {
	if o.s.Delegations == nil || o.s.Delegations.Free(o.file(h), false, o.mayBlock) {
		return nfs.OK
	}
	return nfs.ErrJukebox
}

// beginChange recalls the delegations of a file that is about to change. Until endChanges, after
// the procedure, no client gets a new one.
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

// beginChangeName is beginChange for the regular file or directory that has a name, if there is
// one. The caller is about to remove the name or to give it to another object. The zero handle says
// that the name does not exist.
func (o *op) beginChangeName(dir blockstore.Handle, name string) (blockstore.Handle, nfs.Status) {
	if o.s.Delegations == nil || !o.s.Delegations.Delegating() {
		return blockstore.Handle{}, nfs.OK
	}
	h, a, err := o.x.FS.Lookup(&o.cred, dir, name)
	switch {
	case err != nil:
		return blockstore.Handle{}, nfs.OK // the procedure reports the error itself
	case a.Type != blockstore.TypeReg && a.Type != blockstore.TypeDir:
		return h, nfs.OK
	}
	return h, o.beginChange(h)
}

// beginDir is beginChange for a change of the entries of a directory. After the change dirChanged
// notifies the clients that have the directory delegated. If e has no name, nothing changes and
// beginDir does nothing.
func (o *op) beginDir(dir blockstore.Handle, e nfs.DirEvent) nfs.Status {
	if o.s.Delegations == nil || e == (nfs.DirEvent{}) {
		return nfs.OK
	}
	begun, ok := o.s.Delegations.BeginDirChange(o.file(dir), e)
	if begun {
		o.changing = append(o.changing, o.file(dir))
	}
	if !ok {
		return nfs.ErrJukebox
	}
	return nfs.OK
}

func (o *op) dirChanged(dir blockstore.Handle, e nfs.DirEvent) {
	if o.s.Delegations != nil && e != (nfs.DirEvent{}) {
		o.s.Delegations.DirChanged(o.file(dir), e)
	}
}

func (o *op) endChanges() {
	for _, f := range o.changing {
		o.s.Delegations.EndChange(f)
	}
	o.changing = o.changing[:0]
}
