package nfs

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

func TestHandles(t *testing.T) {
	secret := bytes.Repeat([]byte{0xA5}, 32)
	c := NewCodec(secret)
	var last Parsed
	for n := 1; n <= blockstore.HandleMax; n++ {
		h, _ := blockstore.MakeHandle(bytes.Repeat([]byte{byte(n)}, n))
		b := c.Append(nil, 0xDEADBEEF, &h)
		if len(b) > HandleMax {
			t.Fatalf("%d bytes", len(b))
		}
		m := hmac.New(sha256.New, secret)
		m.Write(b[:handleHead+n])
		if !bytes.Equal(m.Sum(nil)[:handleCode], b[handleHead+n:]) {
			t.Errorf("length %d: the code is not HMAC-SHA256", n)
		}
		id, got, err := c.Parse(b)
		if err != nil || id != 0xDEADBEEF || got != h {
			t.Errorf("length %d: %x %v %v", n, id, got, err)
		}
		for range 2 {
			id, got, err := c.ParseNext(&last, b)
			if err != nil || id != 0xDEADBEEF || got != h {
				t.Errorf("length %d, after another or itself: %x %v %v", n, id, got, err)
			}
		}
		for i := range b {
			bad := bytes.Clone(b)
			bad[i] ^= 1
			if _, _, err := c.Parse(bad); err == nil {
				t.Errorf("length %d: byte %d changed and not noticed", n, i)
			}
			if _, _, err := c.ParseNext(&last, bad); err == nil {
				t.Errorf("length %d: byte %d changed since and not noticed", n, i)
			}
		}
		for _, bad := range [][]byte{nil, b[:len(b)-1], append(b[:len(b):len(b)], 0), make([]byte, 2*HandleMax)} {
			if _, _, err := c.ParseNext(&last, bad); err == nil {
				t.Errorf("length %d: %d other bytes taken", n, len(bad))
			}
		}
		if _, _, err := NewCodec([]byte("other")).Parse(b); !errors.Is(err, ErrHandleCode) {
			t.Errorf("another secret: %v", err)
		}
		if _, _, err := c.Parse(b[:len(b)-1]); err == nil {
			t.Error("a handle cut short was taken")
		}
	}
	long := NewCodec(bytes.Repeat([]byte{1}, 100))
	h, _ := blockstore.MakeHandle([]byte{1})
	if _, _, err := long.Parse(long.Append(nil, 1, &h)); err != nil {
		t.Error(err)
	}
	var buf [HandleMax]byte
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := c.Parse(c.Append(buf[:0], 1, &h)); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzHandle(f *testing.F) {
	c := NewCodec([]byte("secret"))
	h, _ := blockstore.MakeHandle([]byte("object"))
	f.Add(c.Append(nil, 7, &h))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{1}, HandleMax))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, h, err := c.Parse(b)
		if err == nil && !bytes.Equal(c.Append(nil, id, &h), b) {
			t.Errorf("%x is not what is made of it", b)
		}
	})
}

func TestTable(t *testing.T) {
	tab := NewTable(nil)
	a, b := memfs.New(memfs.Options{}), memfs.New(memfs.Options{})
	add := func(id uint32, pseudo string, fs blockstore.FS) error {
		return tab.Add(&Export{ID: id, Pseudo: pseudo, FS: fs})
	}
	for _, tc := range []struct {
		id     uint32
		pseudo string
		fs     blockstore.FS
		ok     bool
	}{
		{1, "/a", a, true},
		{2, "/a/b", b, true},
		{1, "/", a, true},
		{3, "/a", b, false},
		{1, "/c", b, false},
		{4, "c", a, false},
		{4, "/c/", a, false},
		{4, "/d", nil, false},
	} {
		if err := add(tc.id, tc.pseudo, tc.fs); (err == nil) != tc.ok {
			t.Errorf("add %d %s: %v", tc.id, tc.pseudo, err)
		}
	}
	for _, tc := range []struct{ path, name, rest string }{
		{"/a", "/a", ""},
		{"/a/", "/a", ""},
		{"/a/x/y", "/a", "x/y"},
		{"/a/b/c", "/a/b", "c"},
		{"/ab", "/", "ab"},
		{"/", "/", ""},
		{"", "/", ""},
		{"/a/../../..", "/", ""},
		{"/a/b/../z", "/a", "z"},
	} {
		if x, rest := tab.ByPath(tc.path); x == nil || x.Pseudo != tc.name || rest != tc.rest {
			t.Errorf("%q: %+v %q", tc.path, x, rest)
		}
	}
	if err := tab.Remove("/"); err != nil {
		t.Error(err)
	}
	if err := tab.Remove("/"); !errors.Is(err, ErrExportUnknown) {
		t.Errorf("removed twice: %v", err)
	}
	if x, _ := tab.ByPath("/zzz"); x != nil {
		t.Errorf("found %s", x.Pseudo)
	}
	if tab.ByID(1) == nil || tab.ByID(9) != nil {
		t.Error("by number")
	}
	if err := tab.Replace(nil); err != nil || len(tab.Exports()) != 0 || tab.ByID(1) != nil {
		t.Error("replace")
	}
}

func TestRulesAndIdentity(t *testing.T) {
	tab := NewTable(nil)
	rule := func(p string, s Squash, uid uint32) ClientRule {
		return ClientRule{CIDR: netip.MustParsePrefix(p), Squash: s, AnonUID: uid, AnonGID: uid}
	}
	if err := tab.Add(&Export{ID: 1, Pseudo: "/", FS: memfs.New(memfs.Options{}), Clients: []ClientRule{
		rule("10.0.0.0/8", RootSquash, 100), rule("10.1.0.0/16", AllSquash, 101),
		rule("10.1.2.3/32", NoRootSquash, 102), rule("::ffff:11.0.0.0/104", RootSquash, 103),
		rule("fd00::/8", RootSquash, 104),
	}}); err != nil {
		t.Fatal(err)
	}
	x := tab.ByID(1)
	root := rpc.Cred{Flavor: rpc.AuthSys, Groups: []uint32{0, 5}}
	user := rpc.Cred{Flavor: rpc.AuthSys, UID: 7, GID: 8, Groups: []uint32{9}}
	for _, tc := range []struct {
		addr string
		cred rpc.Cred
		want string
	}{
		{"10.9.9.9", root, "{100 100 [100 5]}"},
		{"10.9.9.9", user, "{7 8 [9]}"},
		{"10.1.9.9", root, "{101 101 []}"},
		{"10.1.9.9", user, "{101 101 []}"},
		{"10.1.2.3", root, "{0 0 [0 5]}"},
		{"10.1.2.3", rpc.Cred{}, "{102 102 []}"},
		{"::ffff:10.1.2.3", root, "{0 0 [0 5]}"},
		{"11.0.0.1", root, "{103 103 [103 5]}"},
		{"fd00::1", root, "{104 104 [104 5]}"},
		{"192.0.2.1", root, "none"},
		{"2001:db8::1", root, "none"},
	} {
		got := "none"
		if r, st := x.Rule(netip.MustParseAddr(tc.addr)); st == OK {
			var c blockstore.Cred
			r.Identity(&tc.cred, nil, false, &c)
			got = fmt.Sprintf("{%d %d %v}", c.UID, c.GID, c.Groups)
		}
		if got != tc.want {
			t.Errorf("%s %v: %s, want %s", tc.addr, tc.cred, got, tc.want)
		}
	}
	if _, st := x.Rule(netip.Addr{}); st != ErrAcces {
		t.Error("a client without an address was let in")
	}
	_ = tab.Replace([]*Export{{ID: 1, Pseudo: "/", FS: memfs.New(memfs.Options{})}})
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		r, st := tab.ByID(1).Rule(netip.MustParseAddr(a))
		if st != OK || r.Squash != RootSquash || r.AnonUID != AnonID {
			t.Errorf("an export without rules: %+v", r)
		}
	}
}

func TestStatuses(t *testing.T) {
	var seen []Status
	for _, r := range statuses {
		if slices.Contains(seen, r.status) {
			t.Errorf("%v twice", r.status)
		}
		seen = append(seen, r.status)
		if r.err == nil {
			continue
		}
		if got := StatusOf(fmt.Errorf("wrapped: %w", r.err)); got != r.status {
			t.Errorf("%v: %v", r.err, got)
		}
		if !errors.Is(r.status, r.err) {
			t.Errorf("%v does not match %v", r.status, r.err)
		}
		if StatusOf(r.status) != r.status || r.status.Err() == nil {
			t.Errorf("%v as an error", r.status)
		}
	}
	if StatusOf(nil) != OK || OK.Err() != nil || StatusOf(errors.New("?")) != ErrIO ||
		StatusOf(blockstore.ErrWouldBlock) != ErrJukebox {
		t.Error("edges")
	}
	var c Counters
	c.Status(ErrNoEnt)
	c.Status(99)
	if m := c.Snapshot(); m["nfs_status_NOENT"] != 1 || m["nfs_status_other"] != 1 {
		t.Errorf("%v", m)
	}
}
