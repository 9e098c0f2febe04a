package blockstore

import (
	"encoding/binary"
	"slices"
)

// ACLs is optional: POSIX ACLs, as Linux has them after draft 17 of POSIX 1003.1e, if
// Limits.ACLs says so.
//
// Setting the mode changes the access ACL, and setting the access ACL changes the mode (acl(5)).
// New objects in a directory begin with its default ACL, which replaces the umask.
type ACLs interface {
	// GetACL returns the access or default ACL, or nil if there is none. Every user may call it.
	GetACL(c *Cred, h Handle, kind ACLKind) (ACL, error)
	// SetACL replaces an ACL; nil removes it. Only the owner may call it.
	SetACL(c *Cred, h Handle, kind ACLKind, l ACL) (Wcc, error)
}

// ACLKind tells the two ACLs of an object apart.
type ACLKind uint8

// Kinds.
const (
	ACLAccess ACLKind = iota
	ACLDefault
)

// ACLTag is the class of users of an entry. The numbers are those of Linux and of NFSACL.
type ACLTag uint16

// Tags.
const (
	ACLUserObj  ACLTag = 0x01 // the owner
	ACLUser     ACLTag = 0x02 // a user by number
	ACLGroupObj ACLTag = 0x04 // the group of the object
	ACLGroup    ACLTag = 0x08 // a group by number
	ACLMask     ACLTag = 0x10 // the most that groups and users by number have
	ACLOther    ACLTag = 0x20
)

// ACLEntry is an entry. ID is used with the tags ACLUser and ACLGroup only.
type ACLEntry struct {
	Tag  ACLTag
	Perm uint16 // MayRead, MayWrite, MayExec
	ID   uint32
}

// ACL is a list of entries in the order that Check asks for.
type ACL []ACLEntry

// noID is the ID -1, which no user and no group has.
const noID = ^uint32(0)

// ACLOfMode returns the ACL that is equivalent to a mode.
func ACLOfMode(mode uint32) ACL {
	return ACL{
		{Tag: ACLUserObj, Perm: uint16(mode >> 6 & 7)},
		{Tag: ACLGroupObj, Perm: uint16(mode >> 3 & 7)},
		{Tag: ACLOther, Perm: uint16(mode & 7)},
	}
}

// Check returns ErrInval unless the entries are owner, users, group, groups, mask and other, in
// this order. Owner, group and other have one entry each. There is at most one mask, and exactly
// one if there are users or groups by number.
func (l ACL) Check() error {
	var last ACLTag
	var seen ACLTag
	for _, e := range l {
		named := e.Tag == ACLUser || e.Tag == ACLGroup
		switch {
		case e.Perm > 7, named && e.ID == noID:
			return ErrInval
		case e.Tag < last, e.Tag == last && !named:
			return ErrInval
		}
		switch e.Tag {
		case ACLUserObj, ACLUser, ACLGroupObj, ACLGroup, ACLMask, ACLOther:
		default:
			return ErrInval
		}
		last = e.Tag
		seen |= e.Tag
	}
	const must = ACLUserObj | ACLGroupObj | ACLOther
	if seen&must != must || seen&(ACLUser|ACLGroup) != 0 && seen&ACLMask == 0 {
		return ErrInval
	}
	return nil
}

// has reports whether there is an entry of the tag.
func (l ACL) has(tag ACLTag) bool {
	return slices.ContainsFunc(l, func(e ACLEntry) bool { return e.Tag == tag })
}

// Minimal reports whether a mode can express the ACL.
func (l ACL) Minimal() bool { return !l.has(ACLUser) && !l.has(ACLGroup) && !l.has(ACLMask) }

// classOf returns the position in the mode of the three bits that an entry determines. ok is false
// if the entry determines no bits of the mode.
func (l ACL) classOf(tag ACLTag) (shift int, ok bool) {
	switch tag {
	case ACLUserObj:
		return 6, true
	case ACLMask:
		return 3, true
	case ACLGroupObj:
		return 3, !l.has(ACLMask)
	case ACLOther:
		return 0, true
	}
	return 0, false
}

// Mode is the nine bits of the mode that an object with this access ACL has.
func (l ACL) Mode() (mode uint32) {
	for _, e := range l {
		if shift, ok := l.classOf(e.Tag); ok {
			mode |= uint32(e.Perm) << shift
		}
	}
	return mode
}

// WithMode is the access ACL after the object's mode is set.
func (l ACL) WithMode(mode uint32) ACL {
	l = slices.Clone(l)
	for i := range l {
		if shift, ok := l.classOf(l[i].Tag); ok {
			l[i].Perm = uint16(mode >> shift & 7)
		}
	}
	return l
}

// may reports whether an object with this access ACL and the attributes a grants c all bits of
// want. c is not privileged.
func (l ACL) may(c *Cred, a *Attr, want uint32) bool {
	mask := uint32(7)
	for _, e := range l {
		if e.Tag == ACLMask {
			mask = uint32(e.Perm)
		}
	}
	inGroup := false
	for _, e := range l {
		perm := uint32(e.Perm)
		switch e.Tag {
		case ACLUserObj:
			if c.UID == a.UID {
				return perm&want == want
			}
		case ACLUser:
			if c.UID == e.ID {
				return perm&mask&want == want
			}
		case ACLGroupObj, ACLGroup:
			gid := e.ID
			if e.Tag == ACLGroupObj {
				gid = a.GID
			}
			if c.InGroup(gid) {
				if perm&mask&want == want {
					return true
				}
				inGroup = true
			}
		case ACLOther:
			return !inGroup && perm&want == want
		}
	}
	return false
}

// The extended attribute in which Linux stores an ACL (linux/posix_acl_xattr.h), little-endian:
//
//	 0           4       6        8      12
//	+-----------+-------+--------+------+-----+
//	| version 2 | tag   | perm   | ID   | ... |   tag, perm and ID for each entry
//	+-----------+-------+--------+------+-----+
const (
	aclXattrVersion = 2
	aclXattrHead    = 4
	aclXattrEntry   = 8
)

// AppendXattr appends the ACL as an extended attribute.
func (l ACL) AppendXattr(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, aclXattrVersion)
	for _, e := range l {
		id := e.ID
		if e.Tag != ACLUser && e.Tag != ACLGroup {
			id = noID
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Tag))
		b = binary.LittleEndian.AppendUint16(b, e.Perm)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return b
}

// ParseACL decodes an extended attribute. It returns nil if the attribute has no entries.
func ParseACL(b []byte) (ACL, error) {
	if len(b) < aclXattrHead || (len(b)-aclXattrHead)%aclXattrEntry != 0 ||
		binary.LittleEndian.Uint32(b) != aclXattrVersion {
		return nil, ErrInval
	}
	b = b[aclXattrHead:]
	if len(b) == 0 {
		return nil, nil
	}
	l := make(ACL, 0, len(b)/aclXattrEntry)
	for ; len(b) > 0; b = b[aclXattrEntry:] {
		e := ACLEntry{Tag: ACLTag(binary.LittleEndian.Uint16(b)), Perm: binary.LittleEndian.Uint16(b[2:])}
		if e.Tag == ACLUser || e.Tag == ACLGroup {
			e.ID = binary.LittleEndian.Uint32(b[4:])
		}
		l = append(l, e)
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	return l, nil
}
