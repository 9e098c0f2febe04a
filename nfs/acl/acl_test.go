package acl

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The letters of nfs4_acl(5).
var (
	maskLetters = map[rune]uint32{
		'r': ReadData, 'w': WriteData, 'a': AppendData, 'n': 0x8, 'N': 0x10, 'x': Execute, 'D': DeleteChild,
		't': ReadAttributes,
		'T': WriteAttributes, 'd': 0x10000, 'c': ReadACL, 'C': WriteACL, 'o': 0x80000, 'y': Synchronize,
	}
	flagLetters = map[rune]uint32{
		'f': FileInherit, 'd': DirInherit, 'n': NoPropagate, 'i': InheritOnly, 'S': 0x10,
		'F': 0x20, 'g': IdentifierGroup,
	}
	typeLetters = map[string]uint32{"A": Allow, "D": Deny, "U": 2, "L": 3}
)

// aces reads what nfs4_getfacl writes.
func aces(t *testing.T, s string) (list []ACE) {
	t.Helper()
	for f := range strings.FieldsSeq(s) {
		p := strings.Split(f, ":")
		typ, ok := typeLetters[p[0]]
		if !ok || len(p) != 4 {
			t.Fatalf("%q", f)
		}
		a := ACE{Type: typ}
		for _, c := range p[1] {
			a.Flags |= flagLetters[c]
		}
		for _, c := range p[3] {
			if maskLetters[c] == 0 {
				t.Fatalf("%q", f)
			}
			a.Mask |= maskLetters[c]
		}
		if w := slices.Index(special[:], p[2]); w > 0 {
			a.Who = Who(w)
			a.Flags &^= IdentifierGroup // the tools show it of GROUP@
		} else {
			id, err := strconv.Atoi(p[2])
			if err != nil {
				t.Fatal(err)
			}
			a.ID = uint32(id)
		}
		list = append(list, a)
	}
	return list
}

// posix reads what getfacl -c writes, or "" for none.
func posix(t *testing.T, s string) (l blockstore.ACL) {
	t.Helper()
	for f := range strings.FieldsSeq(s) {
		p := strings.Split(f, ":")
		named := p[1] != ""
		e := blockstore.ACLEntry{}
		switch {
		case p[0] == "u" && !named:
			e.Tag = blockstore.ACLUserObj
		case p[0] == "u":
			e.Tag = blockstore.ACLUser
		case p[0] == "g" && !named:
			e.Tag = blockstore.ACLGroupObj
		case p[0] == "g":
			e.Tag = blockstore.ACLGroup
		case p[0] == "m":
			e.Tag = blockstore.ACLMask
		case p[0] == "o":
			e.Tag = blockstore.ACLOther
		}
		if named {
			id, err := strconv.Atoi(p[1])
			if err != nil {
				t.Fatal(err)
			}
			e.ID = uint32(id)
		}
		for i, c := range "rwx" {
			if rune(p[2][i]) == c {
				e.Perm |= 4 >> i
			}
		}
		l = append(l, e)
	}
	if l != nil {
		if err := l.Check(); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
	}
	return l
}

func TestFromPOSIX(t *testing.T) {
	for _, c := range []struct {
		access, inherit string
		dir             bool
		want            string
	}{
		{"u::rw- g::r-- o::---", "", false, "A::OWNER@:rwatTcCy A:g:GROUP@:rtcy A::EVERYONE@:tcy"},
		{"u::rwx g::r-x o::r-x", "", true, "A::OWNER@:rwaDxtTcCy A:g:GROUP@:rxtcy A::EVERYONE@:rxtcy"},
		{"u::--- g::r-- o::r--", "", false, "D::OWNER@:r A::OWNER@:tTcCy A:g:GROUP@:rtcy A::EVERYONE@:rtcy"},
		{"u::rwx g::--- o::r-x", "", false, "A::OWNER@:rwaxtTcCy A:g:GROUP@:tcy D:g:GROUP@:rx A::EVERYONE@:rxtcy"},
		{
			"u::rw- u:1000:rwx g::r-- g:2000:rw- m::rw- o::r--", "", false,
			"A::OWNER@:rwatTcCy A::1000:rwatcy A:g:GROUP@:rtcy A:g:2000:rwatcy A::EVERYONE@:rtcy",
		},
		{
			"u::rw- u:1000:--- g::rwx g:2000:--- m::r-x o::r--", "", false,
			"D::OWNER@:x A::OWNER@:rwatTcCy D::1000:rx A::1000:tcy A:g:GROUP@:rxtcy A:g:2000:tcy D:g:2000:r A::EVERYONE@:rtcy",
		},
		{
			"u::rwx g::r-x o::---", "u::rwx u:7:rw- g::r-x m::rwx o::---", true,
			"A::OWNER@:rwaDxtTcCy A:g:GROUP@:rxtcy A::EVERYONE@:tcy " +
				"A:fdi:OWNER@:rwaDxtTcCy D:fdi:7:x A:fdi:7:rwaDtcy A:fdig:GROUP@:rxtcy A:fdi:EVERYONE@:tcy",
		},
	} {
		got := FromPOSIX(posix(t, c.access), posix(t, c.inherit), c.dir)
		if want := aces(t, c.want); !slices.Equal(got, want) {
			t.Errorf("%s, %s:\n%+v\n%+v", c.access, c.inherit, got, want)
		}
	}
}

func TestToPOSIX(t *testing.T) {
	for _, c := range []struct {
		list            string
		dir             bool
		access, inherit string
		fails           bool
	}{
		{list: "A::OWNER@:rwatTcCy A:g:GROUP@:rtcy A::EVERYONE@:tcy", access: "u::rw- g::r-- o::---"},
		{list: "", access: "u::--- g::--- o::---"},
		{list: "", dir: true, access: "u::--- g::--- o::---"},
		{list: "A::EVERYONE@:rwax", access: "u::rwx g::rwx o::rwx"},
		// Half a permission is none; a directory's includes the deletion of entries.
		{list: "A::EVERYONE@:wx", access: "u::--x g::--x o::--x"},
		{list: "A::EVERYONE@:rwa", dir: true, access: "u::r-- g::r-- o::r--"},
		{list: "A::EVERYONE@:rwaD", dir: true, access: "u::rw- g::rw- o::rw-"},
		// The first counts.
		{list: "D::OWNER@:wa A::EVERYONE@:rwa", access: "u::r-- g::rw- o::rw-"},
		{list: "A::EVERYONE@:rwa D::OWNER@:wa", access: "u::rw- g::rw- o::rw-"},
		// Whom a number is denied to may be the owner.
		{list: "D::9:wa A::OWNER@:rwa A::EVERYONE@:r", access: "u::r-- u:9:r-- g::r-- m::r-- o::r--"},
		{list: "D:g:GROUP@:r A::OWNER@:r A::5:r A::EVERYONE@:rx", access: "u::--x u:5:--x g::--x m::--x o::r-x"},
		{list: "D:g:8:x A::EVERYONE@:rx", access: "u::r-- g::r-- g:8:r-- m::r-- o::r-x"},
		// Who is met later begins with what everyone has.
		{
			list:   "A::EVERYONE@:r A::30:wa A:g:20:x A::10:x A:g:5:r",
			access: "u::r-- u:10:r-x u:30:rw- g::r-- g:5:r-- g:20:r-x m::rwx o::r--",
		},
		{
			list: "A:fd:7:rx A::OWNER@:rwaDx", dir: true, access: "u::rwx u:7:r-x g::--- m::r-x o::---",
			inherit: "u::--- u:7:r-x g::--- m::r-x o::---",
		},
		{list: "A:fi:OWNER@:rx A:d:GROUP@:x", dir: true, access: "u::--- g::--x o::---", inherit: "u::r-x g::--x o::---"},
		{list: "A:i:EVERYONE@:r", access: "u::r-- g::r-- o::r--"},
		{list: "A:f:EVERYONE@:r", fails: true},
		{list: "A:n:EVERYONE@:r", dir: true, fails: true},
		{list: "A:S:EVERYONE@:r", fails: true},
		{list: "U:S:EVERYONE@:r", fails: true},
		{list: "L::EVERYONE@:r", fails: true},
	} {
		access, inherit, err := ToPOSIX(aces(t, c.list), c.dir)
		if c.fails {
			if !errors.Is(err, ErrUnmapped) {
				t.Errorf("%s: %v", c.list, err)
			}
			continue
		}
		if err != nil || !slices.Equal(access, posix(t, c.access)) || !slices.Equal(inherit, posix(t, c.inherit)) ||
			(inherit == nil) != (c.inherit == "") {
			t.Errorf("%s: %v, %v, %v", c.list, access, inherit, err)
		}
	}
}

// randomPOSIX is a POSIX ACL of few users and groups, so that they meet.
func randomPOSIX(r *rand.Rand) blockstore.ACL {
	perm := func() uint16 { return uint16(r.IntN(8)) }
	l := blockstore.ACL{{Tag: blockstore.ACLUserObj, Perm: perm()}}
	named := func(tag blockstore.ACLTag) (n int) {
		for id := range uint32(4) {
			if r.IntN(3) == 0 {
				l = append(l, blockstore.ACLEntry{Tag: tag, Perm: perm(), ID: id})
				n++
			}
		}
		return n
	}
	n := named(blockstore.ACLUser)
	l = append(l, blockstore.ACLEntry{Tag: blockstore.ACLGroupObj, Perm: perm()})
	if n += named(blockstore.ACLGroup); n > 0 || r.IntN(4) == 0 {
		l = append(l, blockstore.ACLEntry{Tag: blockstore.ACLMask, Perm: perm()})
	}
	return append(l, blockstore.ACLEntry{Tag: blockstore.ACLOther, Perm: perm()})
}

// effective is a POSIX ACL without what its mask takes, and without the mask.
func effective(l blockstore.ACL) (out blockstore.ACL) {
	mask := uint16(7)
	for _, e := range l {
		if e.Tag == blockstore.ACLMask {
			mask = e.Perm
		}
	}
	for _, e := range l {
		switch e.Tag {
		case blockstore.ACLMask:
			continue
		case blockstore.ACLUser, blockstore.ACLGroupObj, blockstore.ACLGroup:
			e.Perm &= mask
		}
		out = append(out, e)
	}
	return out
}

// allows is the algorithm of RFC 8881 section 6.2.1 for one bit.
func allows(list []ACE, c *blockstore.Cred, owner, group, bit uint32) bool {
	for _, a := range list {
		var is bool
		switch {
		case a.Flags&InheritOnly != 0:
		case a.Who == Owner:
			is = c.UID == owner
		case a.Who == Group:
			is = c.InGroup(group)
		case a.Who == Everyone:
			is = true
		case a.isGroup():
			is = c.InGroup(a.ID)
		default:
			is = c.UID == a.ID
		}
		if is && a.Mask&bit != 0 {
			return a.Type == Allow
		}
	}
	return false
}

// TestRoundTrip: a POSIX ACL comes back with the same effect, and on the way the ACEs
// say of everybody what it says.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		access := randomPOSIX(r)
		var inherit blockstore.ACL
		dir := r.IntN(2) == 0
		if dir && r.IntN(2) == 0 {
			inherit = randomPOSIX(r)
		}
		list := FromPOSIX(access, inherit, dir)
		a, i, err := ToPOSIX(list, dir)
		if err != nil || a.Check() != nil || !slices.Equal(effective(a), effective(access)) ||
			!slices.Equal(effective(i), effective(inherit)) {
			t.Fatalf("%v, %v became %v, %v by %+v: %v", access, inherit, a, i, list, err)
		}
		attr := blockstore.Attr{
			Type: blockstore.TypeReg, Mode: access.Mode(), UID: uint32(1 + r.IntN(5)),
			GID: uint32(r.IntN(5)), ACL: &access,
		}
		c := &blockstore.Cred{UID: uint32(1 + r.IntN(5)), GID: uint32(r.IntN(5)), Groups: []uint32{uint32(r.IntN(5))}}
		for _, p := range []struct{ perm, bit uint32 }{
			{blockstore.MayRead, ReadData},
			{blockstore.MayWrite, WriteData},
			{blockstore.MayWrite, AppendData},
			{blockstore.MayExec, Execute},
		} {
			if got, want := allows(list, c, attr.UID, attr.GID, p.bit), c.May(&attr, p.perm); got != want {
				t.Fatalf("%v of %d:%d: %+v may %d: %t by the ACEs %+v", access, attr.UID, attr.GID, c, p.perm, got, list)
			}
		}
	}
}

// TestSettles: what was made of any ACEs stays as it is when it is read and set again.
func TestSettles(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		dir := r.IntN(2) == 0
		var list []ACE
		for range r.IntN(8) {
			a := ACE{Type: uint32(r.IntN(2)), Mask: uint32(r.IntN(1 << 7)), Who: Who(r.IntN(4)), ID: uint32(r.IntN(3))}
			if r.IntN(2) == 0 {
				a.Flags |= IdentifierGroup
			}
			if dir {
				a.Flags |= uint32(r.IntN(4)) | uint32(r.IntN(2))*InheritOnly
			}
			list = append(list, a)
		}
		access, inherit, err := ToPOSIX(list, dir)
		if err != nil || access.Check() != nil || inherit != nil && inherit.Check() != nil {
			t.Fatalf("%+v: %v, %v, %v", list, access, inherit, err)
		}
		a, i, err := ToPOSIX(FromPOSIX(access, inherit, dir), dir)
		if err != nil || !slices.Equal(effective(a), effective(access)) || !slices.Equal(effective(i), effective(inherit)) {
			t.Fatalf("%+v: %v, %v became %v, %v, %v", list, access, inherit, a, i, err)
		}
	}
}

func number(who []byte, _ bool) (uint32, bool) {
	n, err := strconv.ParseUint(string(who), 10, 32)
	return uint32(n), err == nil
}

func appendNumber(b []byte, id uint32, _ bool) []byte { return strconv.AppendUint(b, uint64(id), 10) }

func TestWire(t *testing.T) {
	list := aces(t, "D::OWNER@:x A::1000:rwatcy A:g:GROUP@:rtcy A:fdig:2000:r A::EVERYONE@:tcy")
	var e xdr.Encoder
	Encode(&e, list, appendNumber)
	head := []byte{0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 6, 'O', 'W', 'N', 'E', 'R', '@', 0, 0}
	if !bytes.HasPrefix(e.B, head) {
		t.Errorf("% x", e.B)
	}
	d := xdr.NewDecoder(e.B)
	if got, err := Decode(&d, number); err != nil || d.Remaining() != 0 || !slices.Equal(got, list) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range len(e.B) {
		d := xdr.NewDecoder(e.B[:n])
		if _, err := Decode(&d, number); err == nil {
			t.Errorf("%d bytes are enough", n)
		}
	}
	var who xdr.Encoder
	for _, s := range []string{"-", "root@example.org", "INTERACTIVE@", "OWNER", "owner@"} {
		who.Reset()
		who.Uint32(2)
		for range 2 { // the decoder goes on to the end
			who.Fixed(make([]byte, 12))
			who.String(s)
		}
		who.Uint32(7)
		d := xdr.NewDecoder(who.B)
		if _, err := Decode(&d, number); !errors.Is(err, ErrWho) || d.Uint32() != 7 {
			t.Errorf("%q: %v", s, err)
		}
	}
	many := xdr.NewDecoder([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	if _, err := Decode(&many, number); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	var e xdr.Encoder
	Encode(&e, []ACE{
		{Type: Deny, Mask: Execute, Who: Owner},
		{Mask: ReadData, ID: 7},
		{Flags: IdentifierGroup, ID: 9},
		{Who: Everyone, Flags: inheritance},
	}, appendNumber)
	f.Add(e.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := xdr.NewDecoder(b)
		list, err := Decode(&d, number)
		if err != nil {
			return
		}
		var e xdr.Encoder
		Encode(&e, list, appendNumber)
		again := xdr.NewDecoder(e.B)
		got, err := Decode(&again, number)
		if err != nil || !slices.Equal(got, list) {
			t.Fatal(fmt.Sprintf("%+v became %+v", list, got), err)
		}
		for _, dir := range []bool{false, true} {
			access, inherit, err := ToPOSIX(list, dir)
			if err == nil && (access.Check() != nil || inherit != nil && inherit.Check() != nil) {
				t.Fatalf("%+v: %v, %v", list, access, inherit)
			}
		}
	})
}
