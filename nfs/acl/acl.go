package acl

import (
	"errors"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Types of ACEs (RFC 8881 section 6.2.1.1). POSIX ACLs have no audit and no alarm entries.
const (
	Allow uint32 = 0
	Deny  uint32 = 1
)

// SupportAllow and SupportDeny are the bits of the attribute aclsupport for those types.
const (
	SupportAllow uint32 = 1
	SupportDeny  uint32 = 2
)

// Flags of ACEs (section 6.2.1.4).
const (
	FileInherit     uint32 = 0x01
	DirInherit      uint32 = 0x02
	NoPropagate     uint32 = 0x04
	InheritOnly     uint32 = 0x08
	IdentifierGroup uint32 = 0x40
)

// Bits of the mask of an ACE (section 6.2.1.3).
const (
	ReadData        uint32 = 0x01
	WriteData       uint32 = 0x02
	AppendData      uint32 = 0x04
	Execute         uint32 = 0x20
	DeleteChild     uint32 = 0x40
	ReadAttributes  uint32 = 0x80
	WriteAttributes uint32 = 0x100
	ReadACL         uint32 = 0x20000
	WriteACL        uint32 = 0x40000
	Synchronize     uint32 = 0x100000
)

// Who is the kind of user or group that an ACE applies to.
type Who uint8

// Named is one user, or with IdentifierGroup one group, by number. The other values are those
// special principals (section 6.2.1.5) that can be mapped.
const (
	Named Who = iota
	Owner
	Group
	Everyone
)

var special = [...]string{Owner: "OWNER@", Group: "GROUP@", Everyone: "EVERYONE@"}

// ACE is an nfsace4. ID has a meaning only if Who is Named.
type ACE struct {
	Type, Flags, Mask uint32
	Who               Who
	ID                uint32
}

// isGroup reports whether ID is the number of a group.
func (a *ACE) isGroup() bool { return a.Flags&IdentifierGroup != 0 }

// Errors.
var (
	// ErrUnmapped: no POSIX ACL can express the ACL.
	ErrUnmapped = errors.New("the ACL has no POSIX ACL")
	// ErrWho: an ACE names a user or group that does not exist here.
	ErrWho = errors.New("unknown user or group in an ACL")
	// ErrTooMany: the message is too short for the number of ACEs that it announces.
	ErrTooMany = errors.New("too many entries in an ACL")
)

const (
	// aceMin is the shortest nfsace4 with a name, in bytes.
	aceMin = 3*4 + 4 + 4
	// whoMax is the longest name in bytes.
	whoMax = 1024
)

// Decode reads an nfsace4<>. id returns the number of a user or group by its name; who is not valid
// after id returns. Malformed XDR is an error of the decoder, and the result is then not valid.
//
//	uint32 number | nfsace4 ...
//	nfsace4: uint32 type | uint32 flag | uint32 access_mask | utf8str_mixed who
//
// The number is the peer's. Decode compares it with the length of the rest before it allocates
// anything. After ErrWho the rest of the list was decoded, so the caller can continue behind it.
func Decode(d *xdr.Decoder, id func(who []byte, group bool) (uint32, bool)) ([]ACE, error) {
	n := d.Uint32()
	if d.Err() != nil {
		return nil, d.Err()
	}
	if int64(n) > int64(d.Remaining()/aceMin) {
		return nil, ErrTooMany
	}
	list := make([]ACE, 0, n)
	var fault error
	for range n {
		a := ACE{Type: d.Uint32(), Flags: d.Uint32(), Mask: d.Uint32()}
		who := d.Opaque(whoMax)
		if d.Err() != nil {
			return nil, d.Err()
		}
		for w, name := range special {
			if name != "" && name == string(who) {
				a.Who = Who(w)
			}
		}
		if a.Who == Named {
			var ok bool
			if a.ID, ok = id(who, a.isGroup()); !ok {
				fault = ErrWho
			}
		}
		list = append(list, a)
	}
	return list, fault
}

// Encode appends an nfsace4<>, in the layout that Decode reads. name appends the name of a user or
// group.
func Encode(e *xdr.Encoder, list []ACE, name func(b []byte, id uint32, group bool) []byte) {
	e.Uint32(uint32(len(list)))
	var b []byte
	for i := range list {
		a := &list[i]
		e.Uint32(a.Type)
		e.Uint32(a.Flags)
		e.Uint32(a.Mask)
		if a.Who != Named {
			e.String(special[a.Who])
			continue
		}
		b = name(b[:0], a.ID, a.isGroup())
		e.Opaque(b)
	}
}
