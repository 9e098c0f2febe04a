package acl

import (
	"cmp"
	"slices"

	"github.com/rstored/rstored/blockstore"
)

// What permissions are in a mask.
const (
	maskRead  = ReadData
	maskWrite = WriteData | AppendData
	maskExec  = Execute
	// anyone may do this to every object, and its owner that besides.
	maskAnyone = ReadAttributes | ReadACL | Synchronize
	maskOwner  = WriteAttributes | WriteACL
)

const (
	inheritance = FileInherit | DirInherit
	// flagsMapped are those that a POSIX ACL can keep.
	flagsMapped = inheritance | InheritOnly | IdentifierGroup
)

// maskOf is the mask of permissions.
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

// permOf are the permissions that a mask has all of.
func permOf(mask uint32, dir bool) (perm uint16) {
	for _, p := range []uint32{blockstore.MayRead, blockstore.MayWrite, blockstore.MayExec} {
		if need := maskOf(uint16(p), dir); mask&need == need {
			perm |= uint16(p)
		}
	}
	return perm
}

// FromPOSIX is the ACL of an object with an access ACL, and if it is a directory with a
// default ACL or nil. Both have passed Check.
//
// The first entry of a POSIX ACL that fits decides, while ACEs add up: what a user is
// not to have from a later ACE is denied before. A user may be in several groups, of
// which one is enough, so that all groups are allowed before any is denied.
func FromPOSIX(access, inherit blockstore.ACL, dir bool) []ACE {
	list := appendACEs(make([]ACE, 0, 2*(len(access)+len(inherit))), access, 0, dir)
	if dir && inherit != nil {
		list = appendACEs(list, inherit, inheritance|InheritOnly, dir)
	}
	return list
}

// appendACEs appends those of one POSIX ACL.
func appendACEs(list []ACE, l blockstore.ACL, flags uint32, dir bool) []ACE {
	limit := uint16(7)
	for _, e := range l {
		if e.Tag == blockstore.ACLMask {
			limit = e.Perm
		}
	}
	// What those behind the owner and behind the users have.
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

// ToPOSIX is the access ACL of an object with these ACEs, and for a directory its
// default ACL, nil if no ACE is inherited. It is ErrUnmapped for other types than allow
// and deny, for flags that have no meaning in a POSIX ACL, and for inheritance of what
// is no directory. Masks are read with caution: a permission is there if all of its bits
// are, and bits that are none of any are dropped.
func ToPOSIX(list []ACE, dir bool) (access, inherit blockstore.ACL, err error) {
	var now, later sums
	for i := range list {
		a := &list[i]
		inherited := a.Flags&inheritance != 0
		if a.Type != Allow && a.Type != Deny || a.Flags&^flagsMapped != 0 || inherited && !dir || a.Who > Everyone {
			return nil, nil, ErrUnmapped
		}
		// To be inherited by files or by directories alone is to be inherited by both.
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

// sum is what somebody has been allowed and denied by the ACEs so far. What came first
// counts.
type sum struct{ allowed, denied uint32 }

func (s *sum) add(typ, mask uint32) {
	if typ == Allow {
		s.allowed |= mask &^ s.denied
	} else {
		s.denied |= mask &^ s.allowed
	}
}

// sumOf is that of a user or a group by number.
type sumOf struct {
	id uint32
	sum
}

// sums has a sum for each user, group and class of users that has an ACE.
type sums struct {
	any                 bool
	owner, group, other sum
	// everyone is what EVERYONE@ has: where those begin who are met later.
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

// add counts one ACE. A member of a group that is denied something can be the owner, any user, or a
// member of any other group. A user that is denied something by number can be the owner. So a
// denial counts for all of them.
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

// posix makes a POSIX ACL. Without ACEs nobody has anything.
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
