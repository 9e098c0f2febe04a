package nfs4

import (
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/nfs/idmap"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// users is a database of two.
type users struct{}

func (users) Name(id uint32, group bool) (string, error) {
	switch {
	case id == 1000 && !group:
		return "ada", nil
	case id == 100 && group:
		return "staff", nil
	}
	return "", idmap.ErrUnknown
}

func (users) ID(name string, group bool) (uint32, error) {
	switch {
	case name == "ada" && !group:
		return 1000, nil
	case name == "staff" && group:
		return 100, nil
	}
	return 0, idmap.ErrUnknown
}

// TestOwnersByName: owners and the ACEs of ACLs go in and out by name; numbers are always
// understood, and what is nobody's is refused.
func TestOwnersByName(t *testing.T) {
	for _, names := range []bool{true, false} {
		r := newRig(t)
		r.s.cfg.Names = idmap.New(idmap.Config{Domain: "example.org", Names: names, Source: users{}})
		x := r.session(2, "o")
		fh := x.file("f")
		put := op(OpPutFH, fh)
		owners := BitmapOf(AttrOwner, AttrOwnerGroup)
		told := func(uid, gid string) {
			t.Helper()
			if u, g := x.attr(fh, AttrOwner).String(OwnerMax), x.attr(fh, AttrOwnerGroup).String(OwnerMax); u != uid ||
				g != gid {
				t.Errorf("names %v: %q and %q instead of %q and %q", names, u, g, uid, gid)
			}
		}
		set := func(uid, gid string, want nfs.Status) {
			t.Helper()
			p := x.do(put, op(OpSetAttr, state.Anonymous, attrs(owners, uid, gid))).ok(OpPutFH)
			if st := p.next(OpSetAttr); st != want {
				t.Errorf("names %v: %s and %s: %v", names, uid, gid, st)
			}
		}
		set("ada@example.org", "staff@EXAMPLE.org", nfs.OK)
		if names {
			told("ada@example.org", "staff@example.org")
		} else {
			told("1000", "100")
		}
		set("1001", "0", nfs.OK)
		told("1001", "0")
		for _, who := range []string{"ada@example.com", "ada", "staff@example.org", "eve@example.org", "nobody"} {
			set(who, "0", nfs.ErrBadOwner)
			told("1001", "0")
		}
		set("", "0", nfs.ErrInval)
		told("1001", "0")
		set("0", "ada@example.org", nfs.ErrBadOwner)

		ace := func(flags uint32, who string) args {
			return part(uint32(1), acl.Allow, flags, acl.ReadData, who)
		}
		for _, c := range []struct {
			flags uint32
			who   string
			want  nfs.Status
		}{
			{0, "ada@example.org", nfs.OK},
			{acl.IdentifierGroup, "staff@example.org", nfs.OK},
			{acl.IdentifierGroup, "ada@example.org", nfs.ErrBadOwner},
			{0, "1234", nfs.OK},
			{0, "EVE@", nfs.ErrBadOwner},
		} {
			p := x.do(put, op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrACL), ace(c.flags, c.who)))).ok(OpPutFH)
			if st := p.next(OpSetAttr); st != c.want {
				t.Errorf("names %v: an ACE of %s: %v", names, c.who, st)
				continue
			}
			if c.want != nfs.OK {
				continue
			}
			d := x.attr(fh, AttrACL)
			found := false
			for range d.Uint32() {
				d.Skip(12)
				who := d.String(OwnerMax)
				found = found || who == c.who
			}
			if want := names || c.who == "1234"; found != want {
				t.Errorf("names %v: %s is told so: %v", names, c.who, found)
			}
		}
	}
}

func (users) Groups(uint32) ([]uint32, error) { return nil, idmap.ErrUnknown }

// TestWhoWithoutRule: an object whose export refuses the call is not reached as root. WRONGSEC
// makes such objects, for SECINFO, and for entries of READDIR.
func TestWhoWithoutRule(t *testing.T) {
	k := compound{s: new(Server), c: &rpc.Call{Cred: rpc.Cred{Flavor: rpc.AuthSys, Groups: []uint32{0}}}}
	for range 2 { // a second call finds the identity of the first
		if c := k.who(&object{x: new(nfs.Export)}); c.UID != nfs.AnonID || c.GID != nfs.AnonID || len(c.Groups) != 0 {
			t.Errorf("%+v", *c)
		}
	}
}
