package nfs3

import (
	"cmp"
	"slices"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// NFSACL is a program beside NFS version 3 that reads and sets POSIX ACLs. No RFC describes it; the
// reference is the Linux kernel (fs/nfsd/nfs3acl.c, fs/nfs_common/nfsacl.c). GETACL has these
// arguments and results:
//
//	nfs_fh3 handle | uint32 mask
//	nfsstat3 status | post_op_attr | if OK: uint32 mask | acl access | acl default
//
// SETACL has the status and the post_op_attr as its results, and these arguments:
//
//	nfs_fh3 handle | uint32 mask | acl access | acl default
//
// An acl is uint32 count | uint32 length | length * (uint32 tag | uint32 id | uint32 perm). The
// length is the count, or zero if the mask does not ask for entries.

// ACLProgram is the RPC program number of NFSACL, and ACLVersion is its version for NFS version 3.
const (
	ACLProgram = 100227
	ACLVersion = 3
)

// Procedures of NFSACL.
const (
	ProcACLNull = 0
	ProcGetACL  = 1
	ProcSetACL  = 2
)

// Bits of the mask of GETACL and SETACL.
const (
	MaskACL          = 0x01 // the access ACL
	MaskACLCount     = 0x02 // its number of entries
	MaskDefault      = 0x04 // the default ACL
	MaskDefaultCount = 0x08 // its number of entries
	maskAll          = 0x0f
)

const (
	// ACLMax is the largest number of entries of an ACL on the wire.
	ACLMax = 1024
	// aclEntryLen is the length of an entry in bytes.
	aclEntryLen = 12
	// ACLResMax is the longest result of GETACL, in bytes.
	ACLResMax = 4 + PostOpLen + 4 + 2*(8+ACLMax*aclEntryLen)
	// aclDefaultFlag is set in the tags of a default ACL.
	aclDefaultFlag = 0x1000
	// aclNobody is the ID -1. No user and no group has it.
	aclNobody = ^uint32(0)
)

// WireACL is an ACL as NFSACL has it on the wire. It differs from blockstore.ACL in two ways. The
// entries of the owner and of the group have the IDs of the owner and of the group. An ACL of three
// entries has a mask in addition, with the permissions of the group.
type WireACL struct {
	// Count is the number of entries. Entries is empty if they are not sent.
	Count   uint32
	Entries blockstore.ACL
}

// ACLToWire returns the ACL of an object of uid and gid in the form of the wire. The count of a nil
// ACL is zero. If entries is false, only the count is set.
func ACLToWire(l blockstore.ACL, uid, gid uint32, entries bool) (w WireACL) {
	if l == nil {
		return w
	}
	minimal := l.Minimal()
	w.Count = uint32(len(l))
	if minimal {
		w.Count++
	}
	if !entries {
		return w
	}
	w.Entries = make(blockstore.ACL, 0, w.Count)
	for _, e := range l {
		switch e.Tag {
		case blockstore.ACLUserObj:
			e.ID = uid
		case blockstore.ACLGroupObj:
			e.ID = gid
		}
		w.Entries = append(w.Entries, e)
		if e.Tag == blockstore.ACLGroupObj && minimal {
			w.Entries = append(w.Entries, blockstore.ACLEntry{Tag: blockstore.ACLMask, Perm: e.Perm})
		}
	}
	return w
}

// POSIX returns the ACL in the form of the stores: sorted, without the IDs of owner and group, and
// without a mask that limits nothing. An ACL without entries is nil. The result is not checked: see
// blockstore.ACL.Check.
func (w WireACL) POSIX() blockstore.ACL {
	if len(w.Entries) == 0 {
		return nil
	}
	l := slices.Clone(w.Entries)
	group, mask := -1, -1
	slices.SortStableFunc(l, func(a, b blockstore.ACLEntry) int {
		return cmp.Or(cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.ID, b.ID))
	})
	for i := range l {
		switch e := &l[i]; e.Tag {
		case blockstore.ACLGroupObj:
			group = i
		case blockstore.ACLMask:
			mask = i
		}
		if e := &l[i]; e.Tag != blockstore.ACLUser && e.Tag != blockstore.ACLGroup {
			e.ID = 0
		}
	}
	if len(l) == 4 && group >= 0 && mask >= 0 && l[group].Perm == l[mask].Perm {
		l = slices.Delete(l, mask, mask+1)
	}
	return l
}

// EncodeACL appends an acl, in the layout at the top of this file. inherit is true for a default
// ACL.
func EncodeACL(e *xdr.Encoder, w WireACL, inherit bool) {
	var flag uint32
	if inherit {
		flag = aclDefaultFlag
	}
	e.Uint32(w.Count)
	e.Uint32(uint32(len(w.Entries)))
	for _, entry := range w.Entries {
		e.Uint32(uint32(entry.Tag) | flag)
		e.Uint32(entry.ID)
		e.Uint32(uint32(entry.Perm))
	}
}

// DecodeACL reads an acl. It accepts unknown permissions in a mask, which Solaris sets, and drops
// them. These are errors of the decoder:
//
//   - more than ACLMax entries,
//   - a length that is neither the count nor zero,
//   - an unknown tag,
//   - a user or group with the ID -1,
//   - unknown permissions of an entry that is no mask.
func DecodeACL(d *xdr.Decoder) (w WireACL) {
	w.Count = d.Uint32()
	n := d.Uint32()
	if d.Err() != nil {
		return w
	}
	if w.Count > ACLMax || n != w.Count && n != 0 || int64(n)*aclEntryLen > int64(d.Remaining()) {
		d.Fail(xdr.ErrValue)
		return w
	}
	w.Entries = make(blockstore.ACL, 0, n)
	for range n {
		tag, id, perm := d.Uint32()&^aclDefaultFlag, d.Uint32(), d.Uint32()
		switch blockstore.ACLTag(tag) {
		case blockstore.ACLUser, blockstore.ACLGroup:
			if id == aclNobody {
				d.Fail(xdr.ErrValue)
			}
		case blockstore.ACLMask:
			perm &= 7
		case blockstore.ACLUserObj, blockstore.ACLGroupObj, blockstore.ACLOther:
		default:
			d.Fail(xdr.ErrValue)
		}
		if tag > uint32(blockstore.ACLOther) || perm > 7 {
			d.Fail(xdr.ErrValue)
		}
		w.Entries = append(w.Entries, blockstore.ACLEntry{Tag: blockstore.ACLTag(tag), ID: id, Perm: uint16(perm)})
	}
	return w
}

// aclProcs has a row for every procedure of NFSACL.
var aclProcs = [...]struct {
	name    string
	mutates bool
	do      handler
}{
	ProcACLNull: {"NULL", false, null},
	ProcGetACL:  {"GETACL", false, getACL},
	ProcSetACL:  {"SETACL", true, setACL},
}

// aclTable returns the table of NFSACL.
func (s *server) aclTable() []rpc.Proc {
	table := make([]rpc.Proc, len(aclProcs))
	for n, p := range aclProcs {
		table[n] = rpc.Proc{Name: p.name, Mutates: p.mutates, Serve: s.serve(p.do)}
	}
	return table
}

// getACL is GETACL. An object without an access ACL gets the ACL that its mode stands for, also
// where the store has no ACLs. Every caller that may use the export may ask.
func getACL(o *op) rpc.Status {
	fh := DecodeHandle(&o.c.Args)
	mask := o.c.Args.Uint32()
	h, st := o.resolve(fh)
	if st == nfs.OK && mask&^maskAll != 0 {
		st = nfs.ErrInval
	}
	if st != nfs.OK {
		return o.failPost(st, &h)
	}
	a, err := o.x.FS.GetAttr(&o.cred, h)
	if err != nil {
		return o.failPost(nfs.StatusOf(err), &h)
	}
	o.attr = a
	var access, inherit blockstore.ACL
	if mask&(MaskACL|MaskACLCount) != 0 {
		if access, err = o.acl(h, blockstore.ACLAccess); err == nil && access == nil {
			access = blockstore.ACLOfMode(a.Mode)
		}
	}
	if err == nil && mask&(MaskDefault|MaskDefaultCount) != 0 && a.Type == blockstore.TypeDir {
		inherit, err = o.acl(h, blockstore.ACLDefault)
	}
	if err != nil {
		return o.failPost(nfs.StatusOf(err), &h)
	}
	if max(len(access), len(inherit)) > ACLMax {
		return o.failPost(nfs.ErrServerFault, &h) // NFSACL has no room for it
	}
	o.status(nfs.OK)
	o.putPostOp(&o.attr)
	e := &o.c.Res
	e.Uint32(mask)
	EncodeACL(e, ACLToWire(access, a.UID, a.GID, mask&MaskACL != 0), false)
	EncodeACL(e, ACLToWire(inherit, a.UID, a.GID, mask&MaskDefault != 0), true)
	return rpc.Done
}

// aclStore returns the store of the export if it has ACLs, else nil.
func (o *op) aclStore() blockstore.ACLs {
	if !o.x.FS.Limits().ACLs {
		return nil
	}
	s, _ := o.x.FS.(blockstore.ACLs)
	return s
}

// acl returns an ACL of an object; nil if the object has none.
func (o *op) acl(h blockstore.Handle, kind blockstore.ACLKind) (blockstore.ACL, error) {
	if s := o.aclStore(); s != nil {
		return s.GetACL(&o.cred, h, kind)
	}
	return nil, nil
}

// setACL is SETACL. The mask says which ACLs are set. An ACL without entries removes the object's
// ACL. The two ACLs are set one after the other: if the second fails, the first stays. Setting the
// access ACL changes the mode of the object, so delegations are recalled as in SETATTR.
func setACL(o *op) rpc.Status {
	d := &o.c.Args
	fh := DecodeHandle(d)
	mask := d.Uint32()
	access, inherit := DecodeACL(d), DecodeACL(d)
	if mask&^maskAll != 0 || sentShort(mask&MaskACL, access) || sentShort(mask&MaskDefault, inherit) {
		d.Fail(xdr.ErrValue)
	}
	h, st := o.resolveForChange(fh)
	if st == nfs.OK {
		st = o.beginChange(h)
	}
	if st != nfs.OK {
		return o.failPost(st, &h)
	}
	store := o.aclStore()
	if store == nil {
		return o.failPost(nfs.ErrNotSupp, &h)
	}
	var err error
	if mask&MaskACL != 0 {
		_, err = store.SetACL(&o.cred, h, blockstore.ACLAccess, access.POSIX())
	}
	if err == nil && mask&MaskDefault != 0 {
		_, err = store.SetACL(&o.cred, h, blockstore.ACLDefault, inherit.POSIX())
	}
	return o.failPost(nfs.StatusOf(err), &h) // also after success, whose result has the same form
}

// sentShort reports whether an ACL is to be set whose entries were not sent.
func sentShort(set uint32, w WireACL) bool { return set != 0 && int(w.Count) != len(w.Entries) }
