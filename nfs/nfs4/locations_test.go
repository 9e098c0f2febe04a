package nfs4

import (
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// relocate gives the rig two more exports: /away is on other servers, /also has replicas. It
// returns a handle in /away from before, and that of its root.
func relocate(r *rig, x *sess) (file, root []byte) {
	away, also := memfs.New(memfs.Options{FSID: 90}), memfs.New(memfs.Options{FSID: 91})
	list := slices.Clone(r.table.Exports())
	replace := func(e ...*nfs.Export) {
		if err := r.table.Replace(append(slices.Clone(list), e...)); err != nil {
			r.t.Fatal(err)
		}
	}
	replace(&nfs.Export{ID: 10, Pseudo: "/away", FS: away, Clients: list[0].Clients})
	root = x.handle("away")
	file, _ = x.make(root, "file")
	replace(
		&nfs.Export{
			ID: 10, Pseudo: "/away", FS: away, Clients: list[0].Clients, Moved: true,
			Locations: []nfs.Location{{Path: "/new/home", Servers: []string{"a.example.org", "2001:db8::1"}}, {
				Path: "/", Servers: []string{"192.0.2.7"},
			}},
		},
		&nfs.Export{
			ID: 11, Pseudo: "/also", FS: also, Clients: list[0].Clients,
			Locations: []nfs.Location{{Path: "/also", Servers: []string{"192.0.2.8", "192.0.2.9"}}},
		})
	return file, root
}

func pathname(d *xdr.Decoder) (p string) {
	for range d.Uint32() {
		p += "/" + d.String(nameMax)
	}
	return p
}

// fsLocations reads a fattr4 of nothing but fs_locations.
func fsLocations(t *testing.T, d *xdr.Decoder) (root string, list []nfs.Location) {
	t.Helper()
	if b, _ := DecodeBitmap(d); b != BitmapOf(AttrFSLocations) {
		t.Fatalf("attributes %v", b)
	}
	d.Uint32()
	root = pathname(d)
	for range d.Uint32() {
		var l nfs.Location
		for range d.Uint32() {
			l.Servers = append(l.Servers, d.String(256))
		}
		l.Path = pathname(d)
		list = append(list, l)
	}
	return root, list
}

func TestLocations(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	_, away := relocate(r, x)
	for _, c := range []struct {
		name, root string
		want       []nfs.Location
	}{
		{"away", "/away", []nfs.Location{
			{Path: "/new/home", Servers: []string{"a.example.org", "2001:db8::1"}},
			{Servers: []string{"192.0.2.7"}},
		}},
		{"also", "/also", []nfs.Location{{Path: "/also", Servers: []string{"192.0.2.8", "192.0.2.9"}}}},
		{"deep", "", nil},
	} {
		p := x.do(op(OpPutRootFH), op(OpLookup, c.name), op(OpGetAttr, BitmapOf(AttrFSLocations))).ok(OpPutRootFH).
			ok(OpLookup).ok(OpGetAttr)
		root, list := fsLocations(t, p.Decoder)
		if p.end(); root != c.root || !slices.EqualFunc(list, c.want, func(a, b nfs.Location) bool {
			return a.Path == b.Path && slices.Equal(a.Servers, b.Servers)
		}) {
			t.Errorf("%s: root %q, %+v", c.name, root, list)
		}
	}

	// fs_locations_info has the same, and fsid the export's.
	p := x.do(op(OpPutFH, away), op(OpGetAttr, BitmapOf(AttrSize, AttrFSID, AttrMode, AttrFSLocInfo))).ok(OpPutFH).
		ok(OpGetAttr)
	if b, _ := DecodeBitmap(p.Decoder); b != BitmapOf(AttrFSID, AttrFSLocInfo) {
		t.Errorf("attributes of an absent file system: %v", b)
	}
	p.Uint32()
	if major, minor := p.Uint64(), p.Uint64(); major != 90 || minor != 10 {
		t.Errorf("fsid %d, %d", major, minor)
	}
	var servers []string
	if p.Uint32(); p.Uint32() == 0 || pathname(p.Decoder) != "/away" {
		t.Error("fs_locations_info is not for /away, or has no time")
	}
	for range p.Uint32() {
		for range p.Uint32() {
			if cur, info := int32(p.Uint32()), p.Opaque(100); cur != -1 || len(info) != locationInfoLen {
				t.Errorf("currency %d, info of %d bytes", cur, len(info))
			}
			servers = append(servers, p.String(256))
		}
		servers = append(servers, pathname(p.Decoder))
	}
	if p.end(); !slices.Equal(servers, []string{"a.example.org", "2001:db8::1", "/new/home", "192.0.2.7", ""}) {
		t.Errorf("fs_locations_info: %q", servers)
	}
}

// TestMoved sends every operation with a handle of an absent file system.
func TestMoved(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	file, root := relocate(r, x)
	here := x.handle("one")
	for n := range uint32(numOps) {
		row := &table[n]
		if row.name == "" || row.do == nil || allowedIfMoved(n) || row.is(minor0) {
			continue
		}
		for _, fh := range [][]byte{file, root} {
			// The arguments are missing: they are not looked at.
			ops := []args{op(OpPutFH, fh), op(OpSaveFH), op(n)}
			if row.is(needsSaved) { // absent is the source
				ops = []args{op(OpPutFH, here), op(OpSaveFH), op(OpPutFH, fh), op(n)}
			}
			if n != OpSaveFH && !row.is(needsSaved) {
				ops = slices.Delete(ops, 1, 2)
			}
			p := x.do(ops...)
			if p.status != nfs.ErrMoved {
				t.Errorf("%s in an absent file system: %v", row.name, p.status)
			}
			if !slices.Contains(errorsOf41[n], nfs.ErrMoved) {
				t.Errorf("%s may not be MOVED", row.name)
			}
		}
	}
	// The saved one counts for operations that use it, and PUTFH replaces the current one.
	p := x.do(op(OpPutFH, here), op(OpSaveFH), op(OpPutFH, root), op(OpRestoreFH), op(OpGetAttr, BitmapOf(AttrType)))
	p.ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpRestoreFH).ok(OpGetAttr)
	// GETATTR without a sign that the client knows of absent file systems.
	x.do(op(OpPutFH, root), op(OpGetAttr, BitmapOf(AttrType, AttrFSID))).ok(OpPutFH).fails(OpGetAttr, nfs.ErrMoved)
	p = x.do(op(OpPutFH, root), op(OpGetAttr, BitmapOf(AttrType, AttrRdattrError, AttrMountedOn))).ok(OpPutFH).
		ok(OpGetAttr)
	if b, _ := DecodeBitmap(p.Decoder); b != BitmapOf(AttrRdattrError, AttrMountedOn) {
		t.Errorf("attributes with rdattr_error: %v", b)
	}
	if p.Uint32(); nfs.Status(p.Uint32()) != nfs.ErrMoved {
		t.Error("rdattr_error is not MOVED")
	}
	// READDIR of the directory around it.
	list := func(want Bitmap) *reply {
		return x.do(op(OpPutRootFH), op(OpReadDir, uint64(0), [8]byte{}, uint32(4096), uint32(4096), want)).ok(OpPutRootFH)
	}
	r.peer = stranger // sees /deep alone, whatever has moved
	x.follow()
	if p := list(BitmapOf(AttrType)); p.next(OpReadDir) != nfs.OK {
		t.Errorf("a listing without the absent file system: %v", p.status)
	}
	r.peer = reader // whose root is the pseudo file system's
	x.follow()
	if p := list(BitmapOf(AttrRdattrError, AttrFSID, AttrMountedOn)); p.next(OpReadDir) != nfs.OK {
		t.Errorf("READDIR with rdattr_error: %v", p.status)
	}
	if p := list(BitmapOf(AttrType)); p.next(OpReadDir) != nfs.ErrMoved {
		t.Errorf("READDIR without rdattr_error: %v", p.status)
	}
}
