package blockstore

import (
	"bytes"
	"slices"
	"testing"
)

func TestACLXattr(t *testing.T) {
	// setfacl -m u:1000:rw,g:2000:r on a file of mode 0640.
	b := []byte{
		2, 0, 0, 0,
		1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff,
		2, 0, 6, 0, 0xe8, 3, 0, 0,
		4, 0, 4, 0, 0xff, 0xff, 0xff, 0xff,
		8, 0, 4, 0, 0xd0, 7, 0, 0,
		0x10, 0, 6, 0, 0xff, 0xff, 0xff, 0xff,
		0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
	}
	want := ACL{
		{ACLUserObj, 6, 0},
		{ACLUser, 6, 1000},
		{ACLGroupObj, 4, 0},
		{ACLGroup, 4, 2000},
		{ACLMask, 6, 0},
		{ACLOther, 0, 0},
	}
	got, err := ParseACL(b)
	if err != nil || !slices.Equal(got, want) || got.Mode() != 0o660 || got.Minimal() {
		t.Errorf("%v, mode %o, %v", got, got.Mode(), err)
	}
	if out := want.AppendXattr(nil); !bytes.Equal(out, b) {
		t.Errorf("% x", out)
	}
	if l, err := ParseACL(b[:4]); l != nil || err != nil {
		t.Errorf("without entries: %v, %v", l, err)
	}
	for _, bad := range [][]byte{
		nil, b[:3], b[:5], b[:12], append([]byte{1}, b[1:]...),
		append([]byte{2, 0, 0, 0}, b[12:]...),
	} {
		if l, err := ParseACL(bad); err == nil {
			t.Errorf("% x: %v", bad, l)
		}
	}
}

func TestACLCheck(t *testing.T) {
	u, g, o, m := ACLEntry{ACLUserObj, 7, 0}, ACLEntry{ACLGroupObj, 5, 0}, ACLEntry{ACLOther, 1, 0},
		ACLEntry{ACLMask, 7, 0}
	nu, ng := ACLEntry{ACLUser, 7, 3}, ACLEntry{ACLGroup, 7, 3}
	for _, c := range []struct {
		l    ACL
		fits bool
	}{
		{ACL{u, g, o}, true},
		{ACL{u, g, m, o}, true},
		{ACL{u, nu, nu, g, ng, m, o}, true},
		{nil, false},
		{ACL{u, g}, false},
		{ACL{g, o}, false},
		{ACL{u, o}, false},
		{ACL{u, g, nu, m, o}, false},
		{ACL{u, nu, g, o}, false},
		{ACL{u, g, ng, o}, false},
		{ACL{u, u, g, o}, false},
		{ACL{u, g, m, m, o}, false},
		{ACL{u, g, o, o}, false},
		{ACL{{ACLUserObj, 8, 0}, g, o}, false},
		{ACL{u, {ACLUser, 7, noID}, g, m, o}, false},
		{ACL{u, {3, 7, 0}, g, o}, false},
	} {
		if err := c.l.Check(); (err == nil) != c.fits {
			t.Errorf("%v: %v", c.l, err)
		}
	}
	for mode := range uint32(0o1000) {
		if l := ACLOfMode(mode); l.Check() != nil || l.Mode() != mode || !l.Minimal() {
			t.Fatalf("%o: %v", mode, l)
		}
		if l := (ACL{u, nu, g, m, o}).WithMode(mode); l.Mode() != mode || l[1] != nu || l[2] != g {
			t.Fatalf("%o: %v", mode, l)
		}
	}
}

func FuzzParseACL(f *testing.F) {
	f.Add(ACL{
		{ACLUserObj, 6, 0},
		{ACLUser, 6, 1000},
		{ACLGroupObj, 4, 0},
		{ACLMask, 6, 0},
		{ACLOther, 0, 0},
	}.AppendXattr(nil))
	f.Add(ACLOfMode(0o640).AppendXattr(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseACL(b)
		if err != nil || l == nil {
			return
		}
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		if again, err := ParseACL(l.AppendXattr(nil)); err != nil || !slices.Equal(again, l) {
			t.Fatalf("%v became %v, %v", l, again, err)
		}
	})
}
