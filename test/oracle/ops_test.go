package oracle

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"
)

// Shorthands for arguments.

func owner(name string) x4.StateOwner4 { return x4.StateOwner4{Clientid: 12345, Owner: []byte(name)} }

func openOp(access, deny uint32, how x4.Openflag4, claim x4.OpenClaim4) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_OPEN{Opopen: x4.Open4args{
		ShareAccess: access, ShareDeny: deny, Owner: owner("opener"), Openhow: how, Claim: claim,
	}}
}

var noCreate = &x4.Openflag4_default{Opentype: x4.OPEN4_NOCREATE}

func makeOp(how x4.Createhow4, name string) x4.NfsArgop4 {
	return openOp(3, 0, &x4.Openflag4_OPEN4_CREATE{How: how}, &x4.OpenClaim4_CLAIM_NULL{File: name})
}

// open makes a file that is mode 0644, or opens it, and returns its handle and the open.
func (s *sess) open(dir []byte, name string) ([]byte, x4.Stateid4) {
	s.t.Helper()
	res := s.do(putFH(dir), makeOp(&x4.Createhow4_UNCHECKED4{Createattrs: fattr(s.t, bitmap(x4.FATTR4_MODE),
		uint32Of(0o644))}, name), &x4.NfsArgop4_OP_GETFH{})
	return get[*x4.Getfh4res_NFS4_OK](s.t, res[2]).Resok4.Object, get[*x4.Open4res_NFS4_OK](s.t, res[1]).Resok4.Stateid
}

func closeOp(id x4.Stateid4) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_CLOSE{Opclose: x4.Close4args{OpenStateid: id}}
}

func createOp(typ x4.Createtype4, name string) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_CREATE{Opcreate: x4.Create4args{Objtype: typ, Objname: name, Createattrs: x4.Fattr4{}}}
}

func writeOp(id x4.Stateid4, off uint64, how x4.StableHow4, data string) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_WRITE{Opwrite: x4.Write4args{Stateid: id, Offset: off, Stable: how, Data: []byte(data)}}
}

func readOp(id x4.Stateid4, off uint64, n uint32) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_READ{Opread: x4.Read4args{Stateid: id, Offset: off, Count: n}}
}

func lockOp(typ x4.NfsLockType4, off, n uint64, who x4.Locker4) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_LOCK{Oplock: x4.Lock4args{Locktype: typ, Offset: off, Length: n, Locker: who}}
}

func byOpen(id x4.Stateid4, who string) x4.Locker4 {
	return &x4.Locker4_TRUE{OpenOwner: x4.OpenToLockOwner4{OpenStateid: id, LockOwner: owner(who)}}
}

func compare(attr int, v writes) x4.Verify4args {
	var b bytes.Buffer
	_, _ = v(&b)
	return x4.Verify4args{ObjAttributes: x4.Fattr4{Attrmask: bitmap(attr), AttrVals: b.Bytes()}}
}

// TestEveryOperation sends every operation that go-xdr knows, in every minor version that
// has it, and looks at what comes back.
func TestEveryOperation(t *testing.T) {
	r := newRig(t)
	for _, minor := range []uint32{1, 2} {
		t.Run(fmt.Sprint("4.", minor), func(t *testing.T) {
			r.t = t
			files(t, r, minor)
			states(t, r, minor)
			sessions(t, r, minor)
			absent(t, r, minor)
			if minor == 2 {
				extents(t, r)
			}
		})
	}
	t.Run("4.0", func(t *testing.T) { r.t = t; without(t, r) })
	r.t = t
	for op, name := range x4.NfsOpnum4_name {
		for minor := range uint32(3) {
			has := op <= x4.OP_RELEASE_LOCKOWNER || op == x4.OP_ILLEGAL || minor >= 1 && op < x4.OP_ALLOCATE || minor == 2
			if has && !r.sent[op][minor] {
				t.Errorf("%s was not sent in version 4.%d", name, minor)
			}
		}
	}
}

// files are the operations on names, handles and data.
func files(t *testing.T, r *rig, minor uint32) {
	s := r.session(minor, fmt.Sprint("files", minor))
	data := s.handle("data")
	top := fmt.Sprint("top", minor)
	made := get[*x4.Create4res_NFS4_OK](t, s.one(putFH(data), &x4.NfsArgop4_OP_CREATE{Opcreate: x4.Create4args{
		Objtype: &x4.Createtype4_NF4DIR{}, Objname: top, Createattrs: fattr(t, bitmap(x4.FATTR4_MODE), uint32Of(0o711)),
	}})).Resok4
	if !slices.Equal(numbers(made.Attrset), []int{x4.FATTR4_MODE}) ||
		made.Cinfo.After <= made.Cinfo.Before && made.Cinfo.Atomic {
		t.Errorf("%+v", made)
	}
	dir := s.handle("data", top)
	if a := s.getAttr(dir, x4.FATTR4_MODE); a[x4.FATTR4_MODE] != uint32(0o711) {
		t.Errorf("%v", a)
	}
	types := map[string]x4.Createtype4{
		"link": &x4.Createtype4_NF4LNK{Linkdata: []byte("where to")}, "sock": &x4.Createtype4_NF4SOCK{},
		"fifo": &x4.Createtype4_NF4FIFO{},
		"blk":  &x4.Createtype4_NF4BLK{Devdata: x4.Specdata4{Specdata1: 8, Specdata2: 1}},
		"chr":  &x4.Createtype4_NF4CHR{Devdata: x4.Specdata4{Specdata1: 5, Specdata2: 2}}, "dir": &x4.Createtype4_NF4DIR{},
	}
	for n, typ := range types {
		s.one(putFH(dir), createOp(typ, n))
		a := s.getAttr(s.handle("data", top, n), x4.FATTR4_TYPE, x4.FATTR4_RAWDEV)
		if a[x4.FATTR4_TYPE] != typ.GetType() {
			t.Errorf("%s: %v", n, a)
		}
		if c, ok := typ.(*x4.Createtype4_NF4CHR); ok && a[x4.FATTR4_RAWDEV] != c.Devdata {
			t.Errorf("%v", a)
		}
	}
	s.fails(x4.NFS4ERR_BADTYPE, putFH(dir), createOp(&x4.Createtype4_default{Type: x4.NF4REG}, "reg"))
	s.fails(x4.NFS4ERR_EXIST, putFH(dir), createOp(&x4.Createtype4_NF4DIR{}, "dir"))
	if l := get[*x4.Readlink4res_NFS4_OK](t,
		s.one(putFH(dir), lookup("link"), &x4.NfsArgop4_OP_READLINK{})); string(l.Resok4.Link) != "where to" {
		t.Errorf("%q", l.Resok4.Link)
	}
	s.fails(x4.NFS4ERR_WRONG_TYPE, putFH(dir), &x4.NfsArgop4_OP_READLINK{})
	s.fails(x4.NFS4ERR_NOENT, putFH(dir), lookup("no"))
	s.fails(x4.NFS4ERR_INVAL, putFH(dir), lookup(""))

	// The file handles.
	get2 := s.do(&x4.NfsArgop4_OP_PUTPUBFH{}, &x4.NfsArgop4_OP_GETFH{}, putFH(dir), &x4.NfsArgop4_OP_SAVEFH{},
		&x4.NfsArgop4_OP_LOOKUPP{},
		&x4.NfsArgop4_OP_GETFH{}, &x4.NfsArgop4_OP_RESTOREFH{}, &x4.NfsArgop4_OP_GETFH{})
	for i, want := range map[int][]byte{1: s.handle(), 5: data, 7: dir} {
		if h := get[*x4.Getfh4res_NFS4_OK](t, get2[i]).Resok4.Object; !bytes.Equal(h, want) {
			t.Errorf("result %d: %x instead of %x", i, h, want)
		}
	}
	s.fails(x4.NFS4ERR_BADHANDLE, putFH([]byte("no handle")))
	s.fails(x4.NFS4ERR_NOFILEHANDLE, &x4.NfsArgop4_OP_GETFH{})
	acc := get[*x4.Access4res_NFS4_OK](t,
		s.one(putFH(dir), &x4.NfsArgop4_OP_ACCESS{Opaccess: x4.Access4args{Access: 0x3f}})).Resok4
	if acc.Supported&^0x3f != 0 || acc.Access&^acc.Supported != 0 || acc.Access == 0 {
		t.Errorf("%+v", acc)
	}

	// OPEN makes files in four ways.
	fh, id := s.open(dir, "file")
	guarded := get[*x4.Open4res_NFS4_OK](t,
		s.one(putFH(dir), makeOp(&x4.Createhow4_GUARDED4{Createattrs: fattr(t, bitmap(x4.FATTR4_SIZE, x4.FATTR4_MODE),
			uint64Of(10), uint32Of(0o600))}, "guarded"))).Resok4
	if guarded.Rflags != x4.OPEN4_RESULT_LOCKTYPE_POSIX || len(numbers(guarded.Attrset)) == 0 {
		t.Errorf("%+v", guarded)
	}
	s.fails(x4.NFS4ERR_EXIST, putFH(dir), makeOp(&x4.Createhow4_GUARDED4{}, "guarded"))
	for range 2 {
		s.one(putFH(dir), makeOp(&x4.Createhow4_EXCLUSIVE4{Createverf: [8]byte{7}}, "exclusive"))
		s.one(putFH(dir), makeOp(&x4.Createhow4_EXCLUSIVE4_1{ChCreateboth: x4.Creatverfattr{
			CvaVerf:  [8]byte{8},
			CvaAttrs: fattr(t, bitmap(x4.FATTR4_MODE), uint32Of(0o640)),
		}}, "exclusive 4.1"))
	}
	s.fails(x4.NFS4ERR_EXIST, putFH(dir), makeOp(&x4.Createhow4_EXCLUSIVE4{Createverf: [8]byte{9}}, "exclusive"))
	s.fails(x4.NFS4ERR_ISDIR, putFH(dir), openOp(1, 0, noCreate, &x4.OpenClaim4_CLAIM_NULL{File: "dir"}))

	// Data.
	w := get[*x4.Write4res_NFS4_OK](t, s.one(putFH(fh), writeOp(id, 2, x4.FILE_SYNC4, "seven b"))).Resok4
	if w.Count != 7 || w.Committed != x4.FILE_SYNC4 {
		t.Errorf("%+v", w)
	}
	for _, c := range []struct {
		off  uint64
		n    uint32
		want string
		eof  bool
	}{
		{0, 100, "\x00\x00seven b", true},
		{0, 5, "\x00\x00sev", false},
		{8, 1, "b", true},
		{9, 5, "", true},
		{100, 5, "", true},
		{2, 0, "", false},
	} {
		got := get[*x4.Read4res_NFS4_OK](t, s.one(putFH(fh), readOp(id, c.off, c.n))).Resok4
		if string(got.Data) != c.want || got.Eof != c.eof {
			t.Errorf("READ %d, %d: %+v", c.off, c.n, got)
		}
	}
	two := s.do(putFH(fh), readOp(id, 2, 3), readOp(id, 5, 3)) // data in the middle of a reply
	if a, b := get[*x4.Read4res_NFS4_OK](t, two[1]),
		get[*x4.Read4res_NFS4_OK](t, two[2]); string(a.Resok4.Data)+string(b.Resok4.Data) != "seven " {
		t.Errorf("%q %q", a.Resok4.Data, b.Resok4.Data)
	}
	v := get[*x4.Commit4res_NFS4_OK](t,
		s.one(putFH(fh), &x4.NfsArgop4_OP_COMMIT{Opcommit: x4.Commit4args{Offset: 1, Count: 2}})).Resok4
	if v.Writeverf != w.Writeverf {
		t.Errorf("verifiers %x and %x", v.Writeverf, w.Writeverf)
	}

	// Attributes are set, and compared.
	when := x4.Nfstime4{Seconds: 1234567890, Nseconds: 987654321}
	set := fattr(t, bitmap(x4.FATTR4_SIZE, x4.FATTR4_MODE, x4.FATTR4_OWNER, x4.FATTR4_TIME_ACCESS_SET,
		x4.FATTR4_TIME_MODIFY_SET), uint64Of(4), uint32Of(0o751),
		utf8("99"), &x4.Settime4_default{SetIt: x4.SET_TO_SERVER_TIME4}, &x4.Settime4_SET_TO_CLIENT_TIME4{Time: when})
	done := get[x4.Setattr4res](t,
		s.one(putFH(fh), &x4.NfsArgop4_OP_SETATTR{Opsetattr: x4.Setattr4args{Stateid: id, ObjAttributes: set}}))
	if done.Status != x4.NFS4_OK || !slices.Equal(numbers(done.Attrsset), numbers(set.Attrmask)) {
		t.Errorf("%+v", done)
	}
	a := s.getAttr(fh, x4.FATTR4_SIZE, x4.FATTR4_MODE, x4.FATTR4_OWNER, x4.FATTR4_TIME_MODIFY)
	if a[x4.FATTR4_SIZE] != uint64(4) || a[x4.FATTR4_MODE] != uint32(0o751) || a[x4.FATTR4_OWNER] != "99" ||
		a[x4.FATTR4_TIME_MODIFY] != when {
		t.Errorf("%v", a)
	}
	failed := get[x4.Setattr4res](t,
		s.fails(x4.NFS4ERR_ATTRNOTSUPP, putFH(fh), &x4.NfsArgop4_OP_SETATTR{Opsetattr: x4.Setattr4args{
			ObjAttributes: fattr(t, bitmap(x4.FATTR4_ARCHIVE), uint32Of(1)),
		}}))
	if len(numbers(failed.Attrsset)) != 0 {
		t.Errorf("%+v", failed)
	}
	// Its result has a bitmap even where it was not begun.
	s.fails(x4.NFS4ERR_NOFILEHANDLE, &x4.NfsArgop4_OP_SETATTR{})
	if st := r.compound(minor, &x4.NfsArgop4_OP_SETATTR{}).Status; st != x4.NFS4ERR_OP_NOT_IN_SESSION {
		t.Error(name(st))
	}
	s.one(putFH(fh), &x4.NfsArgop4_OP_VERIFY{Opverify: compare(x4.FATTR4_SIZE, uint64Of(4))})
	s.fails(x4.NFS4ERR_NOT_SAME, putFH(fh), &x4.NfsArgop4_OP_VERIFY{Opverify: compare(x4.FATTR4_SIZE, uint64Of(5))})
	s.one(putFH(fh), &x4.NfsArgop4_OP_NVERIFY{Opnverify: x4.Nverify4args(compare(x4.FATTR4_SIZE, uint64Of(5)))})
	s.fails(x4.NFS4ERR_SAME, putFH(fh),
		&x4.NfsArgop4_OP_NVERIFY{Opnverify: x4.Nverify4args(compare(x4.FATTR4_SIZE, uint64Of(4)))})

	// Names.
	l := get[*x4.Link4res_NFS4_OK](t,
		s.one(putFH(fh), &x4.NfsArgop4_OP_SAVEFH{}, putFH(dir),
			&x4.NfsArgop4_OP_LINK{Oplink: x4.Link4args{Newname: "second"}})).Resok4
	if l.Cinfo.Before == l.Cinfo.After {
		t.Errorf("%+v", l)
	}
	ren := get[*x4.Rename4res_NFS4_OK](t, s.one(putFH(dir), &x4.NfsArgop4_OP_SAVEFH{}, lookup("dir"),
		&x4.NfsArgop4_OP_RENAME{Oprename: x4.Rename4args{Oldname: "second", Newname: "third"}})).Resok4
	if ren.SourceCinfo.Before == ren.SourceCinfo.After || ren.TargetCinfo.Before == ren.TargetCinfo.After {
		t.Errorf("%+v", ren)
	}
	if h := s.handle("data", top, "dir", "third"); !bytes.Equal(h, fh) {
		t.Error("a link is another file")
	}
	s.fails(x4.NFS4ERR_NOTEMPTY, putFH(dir), &x4.NfsArgop4_OP_REMOVE{Opremove: x4.Remove4args{Target: "dir"}})
	rm := get[*x4.Remove4res_NFS4_OK](t,
		s.one(putFH(dir), lookup("dir"), &x4.NfsArgop4_OP_REMOVE{Opremove: x4.Remove4args{Target: "third"}})).Resok4
	if rm.Cinfo.Before == rm.Cinfo.After {
		t.Errorf("%+v", rm)
	}

	// A directory, in pages.
	names := map[string]any{}
	var at uint64
	var verf [8]byte
	for {
		page := get[*x4.Readdir4res_NFS4_OK](t, s.one(putFH(dir), &x4.NfsArgop4_OP_READDIR{Opreaddir: x4.Readdir4args{
			Cookie: at, Cookieverf: verf, Dircount: 200, Maxcount: 500,
			AttrRequest: bitmap(x4.FATTR4_TYPE, x4.FATTR4_FILEHANDLE, x4.FATTR4_RDATTR_ERROR),
		}})).Resok4
		for e := page.Reply.Entries; e != nil; e = e.Nextentry {
			a := attributes(t, &e.Attrs)
			if names[e.Name] != nil || e.Cookie <= 2 ||
				!bytes.Equal(a[x4.FATTR4_FILEHANDLE].([]byte), s.handle("data", top, e.Name)) {
				t.Errorf("entry %+v", e)
			}
			names[e.Name], at = a[x4.FATTR4_TYPE], e.Cookie
		}
		if verf = page.Cookieverf; page.Reply.Eof {
			break
		}
	}
	for n, typ := range types {
		if names[n] != typ.GetType() {
			t.Errorf("%s is listed as %v", n, names[n])
		}
	}
	if len(names) != len(types)+4 {
		t.Errorf("%v", names)
	}
	for _, sec := range []x4.NfsResop4{
		s.one(putFH(data), &x4.NfsArgop4_OP_SECINFO{Opsecinfo: x4.Secinfo4args{Name: top}}),
		s.one(putFH(data), &x4.NfsArgop4_OP_SECINFO_NO_NAME{OpsecinfoNoName: x4.SECINFO_STYLE4_PARENT}),
	} {
		var got []int
		for _, f := range get[*x4.Secinfo4res_NFS4_OK](t, sec).Resok4 {
			got = append(got, int(f.GetFlavor()))
		}
		if !slices.Equal(got, []int{1, 0}) {
			t.Errorf("flavors %v", got)
		}
	}
	s.fails(x4.NFS4ERR_NOFILEHANDLE, putFH(data), &x4.NfsArgop4_OP_SECINFO{Opsecinfo: x4.Secinfo4args{Name: top}},
		&x4.NfsArgop4_OP_GETFH{})
}

// utf8 writes a string.
func utf8(v string) writes {
	return func(w io.Writer) (int64, error) { return x4.WriteUtf8strMixed(w, v) }
}
