package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// aclsOf is the store of an export, nil if that has no ACLs.
func aclsOf(x *nfs.Export) blockstore.ACLs {
	if x == nil || !x.FS.Limits().ACLs {
		return nil
	}
	s, _ := x.FS.(blockstore.ACLs)
	return s
}

// attrSet are attributes that a client sets.
type attrSet struct {
	blockstore.SetAttr
	umask uint32 // of mode_umask; the mode is not under it yet
	acl   *aclSet
}

// aclSet is an ACL that a client sets: its ACEs, and what prepare made of them.
type aclSet struct {
	aces            []acl.ACE
	access, inherit blockstore.ACL
}

// decodeACL reads the attribute acl. whole is false if nothing behind it can be read.
func (k *compound) decodeACL(d *xdr.Decoder) (s *aclSet, st nfs.Status, whole bool) {
	aces, err := acl.Decode(d, k.s.cfg.Names.Parse)
	switch {
	case errors.Is(err, acl.ErrTooMany):
		return nil, nfs.ErrFBig, false
	case errors.Is(err, acl.ErrWho):
		return nil, nfs.ErrBadOwner, true
	}
	return &aclSet{aces: aces}, nfs.OK, true
}

// aces returns the ACEs of an object of an export that has ACLs. An object without an ACL has the
// ACEs that its mode stands for.
func (k *compound) aces(o *object, a *blockstore.Attr) ([]acl.ACE, nfs.Status) {
	store, dir := aclsOf(o.x), a.Type == blockstore.TypeDir
	access, err := store.GetACL(k.who(o), o.h, blockstore.ACLAccess)
	if err != nil {
		return nil, nfs.StatusOf(err)
	}
	if access == nil {
		access = blockstore.ACLOfMode(a.Mode)
	}
	var inherit blockstore.ACL
	if dir {
		if inherit, err = store.GetACL(k.who(o), o.h, blockstore.ACLDefault); err != nil {
			return nil, nfs.StatusOf(err)
		}
	}
	return acl.FromPOSIX(access, inherit, dir), nfs.OK
}

// prepare maps the ACL for an object that is a directory or not, if one is set.
func (s *attrSet) prepare(dir bool) nfs.Status {
	if s.acl == nil {
		return nfs.OK
	}
	var err error
	if s.acl.access, s.acl.inherit, err = acl.ToPOSIX(s.acl.aces, dir); err != nil {
		return nfs.ErrAttrNotSupp
	}
	return nfs.OK
}

// prepareNew is prepare for a new object in parent, and computes its mode: the umask counts only
// where no ACL is inherited (RFC 8275 section 4). An exclusive create sets the mode in a second
// step, when the object has inherited its ACL, so the mode has to be what the ACL leaves of it.
func (k *compound) prepareNew(parent *object, s *attrSet, dir, exclusive bool) nfs.Status {
	if st := s.prepare(dir); st != nfs.OK {
		return st
	}
	if s.Mode == nil || s.umask == 0 && !exclusive {
		return nfs.OK
	}
	mode := *s.Mode
	var inherit blockstore.ACL
	if store := aclsOf(parent.x); store != nil {
		var err error
		if inherit, err = store.GetACL(k.who(parent), parent.h, blockstore.ACLDefault); err != nil {
			return nfs.StatusOf(err)
		}
	}
	switch {
	case inherit == nil:
		mode &^= s.umask
	case exclusive:
		mode &^= 0o777 &^ inherit.Mode()
	}
	s.Mode = &mode
	return nfs.OK
}

// setACL sets a prepared ACL. For a directory that includes the ACL that new objects inherit: an
// ACL without inherited ACEs removes it.
func (k *compound) setACL(o *object, s *aclSet, dir bool) nfs.Status {
	store := aclsOf(o.x)
	if store == nil {
		return nfs.ErrAttrNotSupp
	}
	_, err := store.SetACL(k.who(o), o.h, blockstore.ACLAccess, s.access)
	if err == nil && dir {
		_, err = store.SetACL(k.who(o), o.h, blockstore.ACLDefault, s.inherit)
	}
	if errors.Is(err, blockstore.ErrNotSupp) {
		return nfs.ErrAttrNotSupp // a symlink has none
	}
	return nfs.StatusOf(err)
}

// setNewACL gives a new object its ACL, if one is set. If that fails the object stays without it,
// and the bitmap in the result says so.
func (k *compound) setNewACL(o *object, s *attrSet, dir bool, set *Bitmap) {
	if s.acl != nil && k.setACL(o, s.acl, dir) != nfs.OK {
		set.clear(AttrACL)
	}
}
