package acl

import (
	"cmp"
	"slices"

	"github.com/rstored/rstored/blockstore"
)

// The bits of an access mask that stand for each POSIX permission.
const (
	maskRead  = ReadData
	maskWrite = WriteData | AppendData
	maskExec  = Execute
	// maskAnyone is allowed to every caller on every object, maskOwner to the owner in addition.
	maskAnyone = ReadAttributes | ReadACL | Synchronize
	maskOwner  = WriteAttributes | WriteACL
)

const (
	inheritance = FileInherit | DirInherit
	// flagsMapped are the flags that a POSIX ACL can express.
	flagsMapped = inheritance | InheritOnly | IdentifierGroup
)

// maskOf returns the access mask of POSIX permissions. DELETE_CHILD is part of writing a directory.
func maskOf(perm uint16, dir bool) (mask uint32) {
	if uint32(perm)&blockstore.MayRead != 0 {
		mask |= maskRead
	}
	if uint32(perm)&blockstore.MayWrite != 0 {
		mask |= maskWrite
		if dir {
			mask |= DeleteChild
		}
	}
	if uint32(perm)&blockstore.MayExec != 0 {
		mask |= maskExec
	}
	return mask
}

// permOf returns the permissions of which the mask has all bits.
func permOf(mask uint32, dir bool) (perm uint16) {
	for _, p := range []uint32{blockstore.MayRead, blockstore.MayWrite, blockstore.MayExec} {
		if need := maskOf(uint16(p), dir); mask&need == need {
			perm |= uint16(p)
		}
	}
	return perm
}

// FromPOSIX returns the ACEs of an object's access ACL. For a directory, inherit is the default
// ACL, or nil if there is none. Both ACLs have passed Check.
//
// The two kinds of ACL are evaluated differently. In a POSIX ACL the one entry that matches the
// caller decides. In version 4 several ACEs can match, and together they allow. So FromPOSIX puts a
// DENY in front of what a later ACE would allow in addition. A caller can be in several groups, and
// one of them is enough. So all groups are allowed before any group is denied:
//
//	owner       DENY, ALLOW
//	each user   DENY, ALLOW
//	each group  ALLOW
//	each group  DENY
//	EVERYONE@   ALLOW
//
// A DENY without permissions is left out.
func FromPOSIX(access, inherit blockstore.ACL, dir bool) []ACE {
	list := appendACEs(make([]ACE, 0, 2*(len(access)+len(inherit))), access, 0, dir)
	if dir && inherit != nil {
		list = appendACEs(list, inherit, inheritance|InheritOnly, dir)
	}
	return list
}

// appendACEs appends the ACEs of one POSIX ACL. flags are set in each of them.
func appendACEs(list []ACE, l blockstore.ACL, flags uint32, dir bool) []ACE {
	limit := uint16(7)
	for _, e := range l {
		if e.Tag == blockstore.ACLMask {
			limit = e.Perm
		}
	}
	// What ACEs behind the owner, and behind the users, allow: so much must be denied before.
	var other, groups, users uint16
	for _, e := range l {
		switch e.Tag {
		case blockstore.ACLUser:
			users |= e.Perm & limit
		case blockstore.ACLGroupObj, blockstore.ACLGroup:
			groups |= e.Perm & limit
		case blockstore.ACLOther:
			other = e.Perm
		}
	}
	allow := func(a ACE, perm uint16, more uint32) {
		a.Type, a.Mask = Allow, maskOf(perm, dir)|maskAnyone|more
		a.Flags |= flags
		list = append(list, a)
	}
	deny := func(a ACE, perm uint16) {
		if perm == 0 {
			return
		}
		a.Type, a.Mask = Deny, maskOf(perm, dir)
		a.Flags |= flags
		list = append(list, a)
	}
	ofGroup := func(e *blockstore.ACLEntry) ACE {
		if e.Tag == blockstore.ACLGroupObj {
			return ACE{Who: Group}
		}
		return ACE{Who: Named, Flags: IdentifierGroup, ID: e.ID}
	}
	for i := range l {
		e := &l[i]
		switch e.Tag {
		case blockstore.ACLUserObj:
			deny(ACE{Who: Owner}, ^e.Perm&(users|groups|other))
			allow(ACE{Who: Owner}, e.Perm, maskOwner)
		case blockstore.ACLUser:
			perm := e.Perm & limit
			deny(ACE{Who: Named, ID: e.ID}, ^perm&(groups|other))
			allow(ACE{Who: Named, ID: e.ID}, perm, 0)
		case blockstore.ACLGroupObj, blockstore.ACLGroup:
			allow(ofGroup(e), e.Perm&limit, 0)
		}
	}
	for i := range l {
		if e := &l[i]; e.Tag == blockstore.ACLGroupObj || e.Tag == blockstore.ACLGroup {
			deny(ofGroup(e), ^(e.Perm&limit)&other)
		}
	}
	allow(ACE{Who: Everyone}, other, 0)
	return list
}

// ToPOSIX returns the access ACL of an object with these ACEs. For a directory it also returns the
// default ACL, or nil if no ACE is inherited. The error is ErrUnmapped for
//
//   - a type other than ALLOW and DENY,
//   - a flag that no POSIX ACL can express,
//   - an inheritance flag on anything but a directory.
//
// Masks are read cautiously. A permission is set only if the mask has all bits of the permission.
// Bits that belong to no permission are dropped.
func ToPOSIX(list []ACE, dir bool) (access, inherit blockstore.ACL, err error) {
	var now, later sums
	for i := range list {
		a := &list[i]
		inherited := a.Flags&inheritance != 0
		if a.Type != Allow && a.Type != Deny || a.Flags&^flagsMapped != 0 || inherited && !dir || a.Who > Everyone {
			return nil, nil, ErrUnmapped
		}
		// POSIX ACLs cannot tell files from directories: an ACE that one kind inherits is inherited by
		// both.
		if inherited {
			later.add(a)
		}
		if !inherited || a.Flags&InheritOnly == 0 {
			now.add(a)
		}
	}
	access = now.posix(dir)
	if later.any {
		inherit = later.posix(dir)
	}
	return access, inherit, nil
}

// sum has the bits that the ACEs so far have allowed and denied to a user, group or class. The
// first ACE with a bit decides about the bit.
type sum struct{ allowed, denied uint32 }

func (s *sum) add(typ, mask uint32) {
	if typ == Allow {
		s.allowed |= mask &^ s.denied
	} else {
		s.denied |= mask &^ s.allowed
	}
}

// sumOf is the sum of one user or group, by number.
type sumOf struct {
	id uint32
	sum
}

// sums has a sum for each user, group and class of users that has an ACE.
type sums struct {
	any                 bool
	owner, group, other sum
	// everyone is the sum of EVERYONE@. A user or group begins with it at its first ACE.
	everyone      sum
	users, groups []sumOf
}

func (s *sums) of(list *[]sumOf, id uint32) *sum {
	for i := range *list {
		if (*list)[i].id == id {
			return &(*list)[i].sum
		}
	}
	*list = append(*list, sumOf{id, s.everyone})
	return &(*list)[len(*list)-1].sum
}

// add applies the next ACE. The owner may be a member of a group, and so may any user. A member of
// one group may be a member of any other. A user who is named by number may be the owner. So a
// denial for a group or a user also counts for all of these.
func (s *sums) add(a *ACE) {
	s.any = true
	all := func(typ, mask uint32) {
		for _, list := range [][]sumOf{s.users, s.groups} {
			for i := range list {
				list[i].add(typ, mask)
			}
		}
	}
	switch {
	case a.Who == Owner:
		s.owner.add(a.Type, a.Mask)
	case a.Who == Everyone:
		s.owner.add(a.Type, a.Mask)
		s.group.add(a.Type, a.Mask)
		s.other.add(a.Type, a.Mask)
		s.everyone.add(a.Type, a.Mask)
		all(a.Type, a.Mask)
	case a.Who == Named && !a.isGroup():
		u := s.of(&s.users, a.ID)
		u.add(a.Type, a.Mask)
		if a.Type == Deny {
			s.owner.add(Deny, u.denied)
		}
	default:
		g := &s.group
		if a.Who == Named {
			g = s.of(&s.groups, a.ID)
		}
		g.add(a.Type, a.Mask)
		if a.Type == Deny {
			denied := g.denied
			s.owner.add(Deny, denied)
			s.group.add(Deny, denied)
			s.everyone.add(Deny, denied)
			all(Deny, denied)
		}
	}
}

// posix makes the POSIX ACL of the sums. Without ACEs it permits nothing.
func (s *sums) posix(dir bool) blockstore.ACL {
	mask := s.group.allowed
	l := blockstore.ACL{{Tag: blockstore.ACLUserObj, Perm: permOf(s.owner.allowed, dir)}}
	named := func(tag blockstore.ACLTag, list []sumOf) {
		slices.SortFunc(list, func(a, b sumOf) int { return cmp.Compare(a.id, b.id) })
		for _, n := range list {
			l = append(l, blockstore.ACLEntry{Tag: tag, Perm: permOf(n.allowed, dir), ID: n.id})
			mask |= n.allowed
		}
	}
	named(blockstore.ACLUser, s.users)
	l = append(l, blockstore.ACLEntry{Tag: blockstore.ACLGroupObj, Perm: permOf(s.group.allowed, dir)})
	named(blockstore.ACLGroup, s.groups)
	if len(s.users) > 0 || len(s.groups) > 0 {
		l = append(l, blockstore.ACLEntry{Tag: blockstore.ACLMask, Perm: permOf(mask, dir)})
	}
	return append(l, blockstore.ACLEntry{Tag: blockstore.ACLOther, Perm: permOf(s.other.allowed, dir)})
}
