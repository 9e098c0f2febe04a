package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ACLs of version 4 are mapped to POSIX ACLs, which the stores have (package nfs/acl). The
// attribute acl is an array:
//
//	uint32 number | nfsace4 ...
//	nfsace4: uint32 type | uint32 flag | uint32 access_mask | utf8str_mixed who
//
// A directory has two POSIX ACLs. ACEs with an inheritance flag make its default ACL, which new
// objects inherit. ACEs without INHERIT_ONLY make its access ACL. An ACE can count in both. dacl
// and sacl (RFC 8881 sections 6.2.2 and 6.2.3) are not supported, because POSIX ACLs have neither
// automatic inheritance nor audit entries.

// aclsOf returns the store of an export if it has ACLs, else nil. x may be nil.
func aclsOf(x *nfs.Export) blockstore.ACLs {
	return optional[blockstore.ACLs](x, func(l blockstore.Limits) bool { return l.ACLs })
}

// optional returns the store of an export if it has the optional interface T, and its limits say
// so; else nil. x may be nil.
func optional[T any](x *nfs.Export, has func(blockstore.Limits) bool) (s T) {
	if x != nil && has(x.FS.Limits()) {
		s, _ = x.FS.(T)
	}
	return s
}

// attrSet has the attributes that a client sets. It belongs to one operation.
type attrSet struct {
	blockstore.SetAttr
	umask uint32      // of mode_umask; prepareNew applies it to the mode
	deleg state.Times // of the client's delegation
	acl   *aclSet     // nil: no ACL is set
	label []byte      // nil: no label is set; a copy
}

// aclSet is an ACL that a client sets: its ACEs, and the POSIX ACLs that prepare made of them.
// inherit is nil for a file, and for a directory without inherited ACEs.
type aclSet struct {
	aces            []acl.ACE
	access, inherit blockstore.ACL
}

// decodeACL reads the attribute acl. whole is false if nothing behind it can be read.
//
//	more entries than fit into the rest of the fattr4  FBIG, as the Linux server; whole is false
//	a user or group that is unknown here               BADOWNER; the rest was read
//	malformed                                          an error of d, for decodeSetAttr to find
//
// The first check comes before any memory is allocated: the number of entries is the client's.
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

// prepare maps the ACL, if one is set, to POSIX ACLs for a directory or another object. An ACL that
// they cannot express is ATTRNOTSUPP, before anything is changed: one with AUDIT or ALARM entries,
// with unknown flags, or with inheritance for a file. Bits of a mask without a POSIX permission are
// dropped silently.
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

// prepareNew is prepare for a new object in parent, and computes the object's mode. The umask
// counts only if the object inherits no ACL (RFC 8275 section 4). An exclusive create sets the mode
// in a second step, after the object has inherited its ACL. The mode must then have only the bits
// that the ACL leaves:
//
//	parent's default ACL  not exclusive          exclusive
//	none                  mode without umask     mode without umask
//	set                   mode; the store        mode without the bits that the
//	                      applies the ACL        default ACL does not have
//
// The parent can get another default ACL before the object is made. The mode is then that of a
// create a moment earlier.
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
// ACL without inherited ACEs removes it. The two calls are not atomic. If the second one fails the
// access ACL stays set, and the result of the operation does not list acl. Only the owner may set
// it; the store checks that.
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

// setNew sets the ACL and the label of a new object, if the client sets them. If one fails, the
// operation succeeds all the same, and the bitmap in its result lacks the attribute.
func (k *compound) setNew(o *object, s *attrSet, dir bool, set *Bitmap) {
	if s.acl != nil && k.setACL(o, s.acl, dir) != nfs.OK {
		set.clear(AttrACL)
	}
	if s.label != nil && k.setLabel(o, s.label) != nfs.OK {
		set.clear(AttrSecLabel)
	}
}
