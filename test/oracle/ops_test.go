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

// states are the operations on opens, locks and stateids.
func states(t *testing.T, r *rig, minor uint32) {
	s := r.session(minor, fmt.Sprint("states", minor))
	dir := s.handle("data")
	fh, id := s.open(dir, fmt.Sprint("states", minor))
	s.one(putFH(fh), openOp(1, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{})) // of the same owner
	down := get[*x4.OpenDowngrade4res_NFS4_OK](t,
		s.one(putFH(fh), &x4.NfsArgop4_OP_OPEN_DOWNGRADE{OpopenDowngrade: x4.OpenDowngrade4args{
			OpenStateid: x4.Stateid4{Other: id.Other}, ShareAccess: 1,
		}})).Resok4.OpenStateid
	if down.Other != id.Other || down.Seqid != id.Seqid+2 {
		t.Errorf("%v after %v", down, id)
	}
	s.fails(x4.NFS4ERR_OPENMODE, putFH(fh), writeOp(down, 0, x4.UNSTABLE4, "x"))
	up := get[*x4.Open4res_NFS4_OK](t, s.one(putFH(fh), openOp(3, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))).Resok4.Stateid
	s.fails(x4.NFS4ERR_OLD_STATEID, putFH(fh), writeOp(down, 0, x4.UNSTABLE4, "x"))

	locked := get[*x4.Lock4res_NFS4_OK](t,
		s.one(putFH(fh), lockOp(x4.WRITE_LT, 10, 20, byOpen(up, "locker")))).Resok4.LockStateid
	grown := get[*x4.Lock4res_NFS4_OK](t,
		s.one(putFH(fh), lockOp(x4.READ_LT, 50, 1<<64-1,
			&x4.Locker4_FALSE{LockOwner: x4.ExistLockOwner4{LockStateid: locked}}))).Resok4.LockStateid
	if grown.Other != locked.Other || grown.Seqid != locked.Seqid+1 {
		t.Errorf("%v after %v", grown, locked)
	}
	denied := get[*x4.Lock4res_NFS4ERR_DENIED](t,
		s.fails(x4.NFS4ERR_DENIED, putFH(fh), lockOp(x4.READ_LT, 5, 10, byOpen(up, "other")))).Denied
	if denied.Offset != 10 || denied.Length != 20 || denied.Locktype != x4.WRITE_LT ||
		string(denied.Owner.Owner) != "locker" || denied.Owner.Clientid != s.client {
		t.Errorf("%+v", denied)
	}
	test := func(typ x4.NfsLockType4, off uint64, who string) x4.NfsArgop4 {
		return &x4.NfsArgop4_OP_LOCKT{Oplockt: x4.Lockt4args{Locktype: typ, Offset: off, Length: 5, Owner: owner(who)}}
	}
	s.one(putFH(fh), test(x4.WRITE_LT, 10, "locker"))
	s.one(putFH(fh), test(x4.READ_LT, 60, "other"))
	denied = get[*x4.Lockt4res_NFS4ERR_DENIED](t,
		s.fails(x4.NFS4ERR_DENIED, putFH(fh), test(x4.WRITE_LT, 60, "other"))).Denied
	if denied.Offset != 50 || denied.Length != 1<<64-1 || denied.Locktype != x4.READ_LT {
		t.Errorf("%+v", denied)
	}
	free := &x4.NfsArgop4_OP_FREE_STATEID{OpfreeStateid: x4.FreeStateid4args{FsaStateid: x4.Stateid4{Other: locked.Other}}}
	s.fails(x4.NFS4ERR_LOCKS_HELD, free)
	un := get[*x4.Locku4res_NFS4_OK](t, s.one(putFH(fh), &x4.NfsArgop4_OP_LOCKU{Oplocku: x4.Locku4args{
		Locktype: x4.WRITE_LT, LockStateid: grown, Offset: 0, Length: 1<<64 - 1,
	}})).LockStateid
	if un.Other != locked.Other || un.Seqid != grown.Seqid+1 {
		t.Errorf("%v after %v", un, grown)
	}
	tested := get[*x4.TestStateid4res_NFS4_OK](t, s.one(&x4.NfsArgop4_OP_TEST_STATEID{OptestStateid: x4.TestStateid4args{
		TsStateids: []x4.Stateid4{up, down, un, {Seqid: 99, Other: un.Other}, {Other: [12]byte{1}}},
	}})).TsrResok4.TsrStatusCodes
	if want := []x4.Nfsstat4{
		x4.NFS4_OK, x4.NFS4ERR_OLD_STATEID, x4.NFS4_OK, x4.NFS4ERR_BAD_STATEID,
		x4.NFS4ERR_BAD_STATEID,
	}; !slices.Equal(tested, want) {
		t.Errorf("%v", tested)
	}
	s.one(free)
	gone := get[*x4.Close4res_NFS4_OK](t, s.one(putFH(fh), closeOp(up))).OpenStateid
	if gone.Seqid != 1<<32-1 || gone.Other != [12]byte{} {
		t.Errorf("%+v", gone)
	}
	s.fails(x4.NFS4ERR_BAD_STATEID, putFH(fh), closeOp(up))
	other := r.session(minor, fmt.Sprint("other", minor))
	s.one(putFH(fh), openOp(1, 2, noCreate, &x4.OpenClaim4_CLAIM_FH{}))
	other.fails(x4.NFS4ERR_SHARE_DENIED, putFH(fh), openOp(2, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))
	other.fails(x4.NFS4ERR_LOCKED, putFH(fh), writeOp(x4.Stateid4{}, 0, x4.UNSTABLE4, "x"))

	// Claims without a delegation, and after no restart.
	s.fails(x4.NFS4ERR_NO_GRACE, putFH(fh),
		openOp(1, 0, noCreate, &x4.OpenClaim4_CLAIM_PREVIOUS{DelegateType: x4.OPEN_DELEGATE_NONE}))
	s.fails(x4.NFS4ERR_BAD_STATEID, putFH(dir),
		openOp(1, 0, noCreate, &x4.OpenClaim4_CLAIM_DELEGATE_CUR{DelegateCurInfo: x4.OpenClaimDelegateCur4{
			DelegateStateid: up, File: fmt.Sprint("states", minor),
		}}))
	s.fails(x4.NFS4ERR_BAD_STATEID, putFH(fh),
		openOp(1, 0, noCreate, &x4.OpenClaim4_CLAIM_DELEG_CUR_FH{OcDelegateStateid: up}))
	s.fails(x4.NFS4ERR_NOTSUPP, putFH(dir),
		openOp(1, 0, noCreate, &x4.OpenClaim4_CLAIM_DELEGATE_PREV{FileDelegatePrev: "x"}))
	s.fails(x4.NFS4ERR_NOTSUPP, putFH(fh), openOp(1, 0, noCreate, &x4.OpenClaim4_CLAIM_DELEG_PREV_FH{}))
	s.fails(x4.NFS4ERR_BAD_STATEID, putFH(fh),
		&x4.NfsArgop4_OP_DELEGRETURN{Opdelegreturn: x4.Delegreturn4args{DelegStateid: up}})
	// Why there is no delegation.
	for want, why := range map[uint32]x4.WhyNoDelegation4{
		x4.OPEN4_SHARE_ACCESS_WANT_NO_DELEG: x4.WND4_NOT_WANTED, x4.OPEN4_SHARE_ACCESS_WANT_CANCEL: x4.WND4_CANCELLED,
		x4.OPEN4_SHARE_ACCESS_WANT_READ_DELEG | x4.OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: x4.WND4_RESOURCE,
	} {
		d := get[*x4.Open4res_NFS4_OK](t,
			s.one(putFH(fh), openOp(1|want, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))).Resok4.Delegation
		ext, ok := d.(*x4.OpenDelegation4_OPEN_DELEGATE_NONE_EXT)
		if !ok || ext.OdWhynone.GetOndWhy() != why {
			t.Errorf("want %x: %+v", want, d)
		}
	}
}

// sessions are the operations on clients, sessions and connections.
func sessions(t *testing.T, r *rig, minor uint32) {
	s := r.session(minor, fmt.Sprint("sessions", minor))
	b := get[*x4.BindConnToSession4res_NFS4_OK](t,
		r.compound(minor, &x4.NfsArgop4_OP_BIND_CONN_TO_SESSION{OpbindConnToSession: x4.BindConnToSession4args{
			BctsaSessid: s.id, BctsaDir: x4.CDFC4_FORE_OR_BOTH,
		}}).Resarray[0]).BctsrResok4
	if b.BctsrSessid != s.id || b.BctsrDir != x4.CDFS4_FORE || b.BctsrUseConnInRdmaMode {
		t.Errorf("%+v", b)
	}
	s.one(&x4.NfsArgop4_OP_BACKCHANNEL_CTL{OpbackchannelCtl: x4.BackchannelCtl4args{
		BcaCbProgram: 5,
		BcaSecParms:  []x4.CallbackSecParms4{&x4.CallbackSecParms4_AUTH_NONE{}},
	}})
	s.fails(x4.NFS4ERR_COMPLETE_ALREADY, &x4.NfsArgop4_OP_RECLAIM_COMPLETE{})
	s.one(putFH(s.handle("data")),
		&x4.NfsArgop4_OP_RECLAIM_COMPLETE{OpreclaimComplete: x4.ReclaimComplete4args{RcaOneFs: true}})
	// A reply from the reply cache is the same.
	data := s.handle("data")
	s.cache = true
	s.one(putFH(data), createOp(&x4.Createtype4_NF4FIFO{}, fmt.Sprint("once", minor)))
	s.seq--
	s.one(putFH(data), createOp(&x4.Createtype4_NF4FIFO{}, fmt.Sprint("once", minor)))
	for _, c := range []struct {
		how  x4.StateProtect4A
		want x4.Nfsstat4
	}{
		{&x4.StateProtect4A_SP4_MACH_CRED{SpaMachOps: x4.StateProtectOps4{
			SpoMustEnforce: []uint32{1, 2},
			SpoMustAllow:   []uint32{3},
		}}, x4.NFS4ERR_INVAL},
		{&x4.StateProtect4A_SP4_SSV{SpaSsvParms: x4.SsvSpParms4{
			SspHashAlgs: [][]byte{{1}}, SspEncrAlgs: [][]byte{{2, 3}},
			SspWindow: 1,
		}}, x4.NFS4ERR_ENCR_ALG_UNSUPP},
	} {
		res := r.compound(minor, &x4.NfsArgop4_OP_EXCHANGE_ID{OpexchangeId: x4.ExchangeId4args{
			EiaClientowner: x4.ClientOwner4{CoOwnerid: []byte("o")}, EiaStateProtect: c.how,
		}})
		if res.Status != c.want {
			t.Errorf("%T: %v", c.how, name(res.Status))
		}
	}
	end := &x4.NfsArgop4_OP_DESTROY_SESSION{OpdestroySession: x4.DestroySession4args{DsaSessionid: s.id}}
	s.fails(x4.NFS4ERR_SEQUENCE_POS, &x4.NfsArgop4_OP_SEQUENCE{})
	s.one(end)
	if st := r.compound(minor, end).Status; st != x4.NFS4ERR_BADSESSION {
		t.Error(name(st))
	}
	gone := &x4.NfsArgop4_OP_DESTROY_CLIENTID{OpdestroyClientid: x4.DestroyClientid4args{DcaClientid: s.client}}
	for _, want := range []x4.Nfsstat4{x4.NFS4_OK, x4.NFS4ERR_STALE_CLIENTID} {
		if st := r.compound(minor, gone).Status; st != want {
			t.Error(name(st))
		}
	}
}

// absent are the operations that the server does not have.
func absent(t *testing.T, r *rig, minor uint32) {
	s := r.session(minor, fmt.Sprint("absent", minor))
	dir := s.handle("data")
	for _, op := range slices.Concat(of40, of41) {
		s.fails(wanted(op), putFH(dir), op)
	}
	dirs := get[*x4.GetDirDelegation4res_NFS4_OK](t, s.one(putFH(dir), &x4.NfsArgop4_OP_GET_DIR_DELEGATION{}))
	if _, none := dirs.GddrResNonFatal4.(*x4.GetDirDelegation4resNonFatal_GDD4_UNAVAIL); !none {
		t.Errorf("%+v", dirs)
	}
	fh, _ := s.open(dir, fmt.Sprint("wanted", minor))
	want := get[*x4.WantDelegation4res_NFS4_OK](t,
		s.one(putFH(fh), &x4.NfsArgop4_OP_WANT_DELEGATION{OpwantDelegation: x4.WantDelegation4args{
			WdaWant: x4.OPEN4_SHARE_ACCESS_WANT_READ_DELEG, WdaClaim: &x4.DelegClaim4_CLAIM_FH{},
		}}))
	if _, none := want.WdrResok4.(*x4.OpenDelegation4_OPEN_DELEGATE_NONE_EXT); !none {
		t.Errorf("%+v", want)
	}
	// What is there, and says no by itself: directories are not delegated, and nothing is copied.
	none := &x4.DelegClaim4_CLAIM_FH{}
	s.fails(x4.NFS4ERR_INVAL, putFH(dir),
		&x4.NfsArgop4_OP_WANT_DELEGATION{OpwantDelegation: x4.WantDelegation4args{WdaClaim: none}})
	res := get[x4.GetDirDelegation4res](t, s.one(putFH(dir), &x4.NfsArgop4_OP_GET_DIR_DELEGATION{}))
	if ok, is := res.(*x4.GetDirDelegation4res_NFS4_OK); !is || ok.GddrResNonFatal4.GetGddrnfStatus() != x4.GDD4_UNAVAIL {
		t.Errorf("GET_DIR_DELEGATION: %+v", res)
	}
	if minor == 2 {
		s.fails(x4.NFS4ERR_BAD_STATEID, putFH(dir), &x4.NfsArgop4_OP_OFFLOAD_CANCEL{})
		s.fails(x4.NFS4ERR_BAD_STATEID, putFH(dir), &x4.NfsArgop4_OP_OFFLOAD_STATUS{})
	}
	for _, op := range of42 {
		if minor == 2 {
			s.fails(wanted(op), putFH(dir), op)
			continue
		}
		// An operation of a later version is one that does not exist, and says so.
		res, ok := r.send(bytesOf(t, &x4.Compound4args{Minorversion: minor, Argarray: []x4.NfsArgop4{op}}))
		if got := parse(t, res); !ok || got.Status != x4.NFS4ERR_OP_ILLEGAL || got.Resarray[0].GetResop() != x4.OP_ILLEGAL {
			t.Errorf("%T in version 4.1: %+v", op, got)
		}
	}
	s.fails(x4.NFS4ERR_OP_ILLEGAL, &x4.NfsArgop4_OP_ILLEGAL{})
}

// wanted is how an operation of those below ends.
func wanted(op x4.NfsArgop4) x4.Nfsstat4 {
	switch op.GetArgop() {
	case x4.OP_GET_DIR_DELEGATION:
		return x4.NFS4_OK // there is none, which is no failure
	case x4.OP_SET_SSV: // without the protection that it is for
		return x4.NFS4ERR_INVAL
	case x4.OP_WANT_DELEGATION: // of a kind that nobody wants
		return x4.NFS4ERR_INVAL
	case x4.OP_OFFLOAD_CANCEL, x4.OP_OFFLOAD_STATUS: // of no copy
		return x4.NFS4ERR_BAD_STATEID
	}
	return x4.NFS4ERR_NOTSUPP
}

// Operations that the server does not have, or has nothing for, by the version that
// brought them.
var (
	of40 = []x4.NfsArgop4{
		&x4.NfsArgop4_OP_DELEGPURGE{}, &x4.NfsArgop4_OP_OPENATTR{Opopenattr: x4.Openattr4args{Createdir: true}},
		&x4.NfsArgop4_OP_OPEN_CONFIRM{}, &x4.NfsArgop4_OP_RENEW{}, &x4.NfsArgop4_OP_SETCLIENTID_CONFIRM{},
		&x4.NfsArgop4_OP_SETCLIENTID{Opsetclientid: x4.Setclientid4args{
			Client:   x4.NfsClientId4{Id: []byte("me")},
			Callback: x4.CbClient4{CbLocation: x4.Netaddr4{NaRNetid: "tcp", NaRAddr: "10.0.0.1.3.4"}},
		}},
		&x4.NfsArgop4_OP_RELEASE_LOCKOWNER{OpreleaseLockowner: x4.ReleaseLockowner4args{LockOwner: owner("x")}},
	}
	of41 = []x4.NfsArgop4{
		&x4.NfsArgop4_OP_GETDEVICEINFO{}, &x4.NfsArgop4_OP_GETDEVICELIST{},
		&x4.NfsArgop4_OP_LAYOUTCOMMIT{Oplayoutcommit: x4.Layoutcommit4args{LocaLastWriteOffset: &x4.Newoffset4_TRUE{
			NoOffset: 1,
		}, LocaTimeModify: &x4.Newtime4_FALSE{}}},
		&x4.NfsArgop4_OP_LAYOUTGET{}, &x4.NfsArgop4_OP_LAYOUTRETURN{Oplayoutreturn: x4.Layoutreturn4args{
			LoraLayoutreturn: &x4.Layoutreturn4_default{LrReturntype: x4.LAYOUTRETURN4_ALL},
		}},
		&x4.NfsArgop4_OP_SET_SSV{OpsetSsv: x4.SetSsv4args{SsaSsv: []byte("abc")}},
	}
	of42 = []x4.NfsArgop4{
		&x4.NfsArgop4_OP_COPY_NOTIFY{OpoffloadNotify: x4.CopyNotify4args{CnaDestinationServer: &x4.Netloc4_NL4_NAME{
			NlName: "there",
		}}},
		&x4.NfsArgop4_OP_LAYOUTERROR{}, &x4.NfsArgop4_OP_LAYOUTSTATS{},
		&x4.NfsArgop4_OP_WRITE_SAME{OpwriteSame: x4.WriteSame4args{WsaAdb: x4.AppDataBlock4{AdbPattern: []byte("abcde")}}},
	}
)

// extents are the operations of version 4.2 on data.
func extents(t *testing.T, r *rig) {
	s := r.session(2, "extents")
	dir := s.handle("data")
	from, fromID := s.open(dir, "from")
	to, toID := s.open(dir, "to")
	s.one(putFH(from), writeOp(fromID, 0, x4.UNSTABLE4, "some data here"))
	pair := []x4.NfsArgop4{putFH(from), &x4.NfsArgop4_OP_SAVEFH{}, putFH(to)}
	c := get[*x4.Copy4res_NFS4_OK](t, s.one(append(slices.Clone(pair), &x4.NfsArgop4_OP_COPY{Opcopy: x4.Copy4args{
		CaSrcStateid: fromID, CaDstStateid: toID, CaSrcOffset: 5, CaDstOffset: 1, CaCount: 4, CaConsecutive: true,
		CaSynchronous: true,
	}})...)).CrResok4
	if c.CrResponse.WrCount != 4 || len(c.CrResponse.WrCallbackId) != 0 || !c.CrRequirements.CrConsecutive ||
		!c.CrRequirements.CrSynchronous {
		t.Errorf("%+v", c)
	}
	if got := get[*x4.Read4res_NFS4_OK](t, s.one(putFH(to), readOp(toID, 0, 10))).Resok4; string(got.Data) != "\x00data" {
		t.Errorf("%q", got.Data)
	}
	// From another server, by all three ways to name one.
	s.fails(x4.NFS4ERR_NOTSUPP, append(slices.Clone(pair),
		&x4.NfsArgop4_OP_COPY{Opcopy: x4.Copy4args{CaSynchronous: true, CaSourceServer: []x4.Netloc4{
			&x4.Netloc4_NL4_NAME{NlName: "a"}, &x4.Netloc4_NL4_URL{NlUrl: "nfs://b"},
			&x4.Netloc4_NL4_NETADDR{NlAddr: x4.Netaddr4{NaRNetid: "tcp6", NaRAddr: "::1.8.1"}},
		}}})...)
	s.fails(x4.NFS4ERR_NOTSUPP, append(slices.Clone(pair),
		&x4.NfsArgop4_OP_CLONE{Opclone: x4.Clone4args{ClSrcStateid: fromID, ClDstStateid: toID, ClCount: 4}})...)
	s.one(putFH(to), &x4.NfsArgop4_OP_ALLOCATE{Opallocate: x4.Allocate4args{
		AaStateid: toID, AaOffset: 0,
		AaLength: 1 << 20,
	}})
	s.one(putFH(to), writeOp(toID, 512<<10, x4.FILE_SYNC4, "middle"))
	s.one(putFH(to), &x4.NfsArgop4_OP_DEALLOCATE{Opdeallocate: x4.Deallocate4args{
		DaStateid: toID, DaOffset: 0,
		DaLength: 256 << 10,
	}})
	advice := get[*x4.IoAdvise4res_NFS4_OK](t,
		s.one(putFH(to), &x4.NfsArgop4_OP_IO_ADVISE{OpioAdvise: x4.IoAdvise4args{
			IaaStateid: toID, IaaCount: 10,
			IaaHints: bitmap(1, 2, 3),
		}}))
	if len(numbers(advice.Resok4.IorHints)) > 3 {
		t.Errorf("%+v", advice)
	}
	seek := func(off uint64, what x4.DataContent4) x4.SeekRes4 {
		return get[*x4.Seek4res_NFS4_OK](t,
			s.one(putFH(to), &x4.NfsArgop4_OP_SEEK{Opseek: x4.Seek4args{SaStateid: toID, SaOffset: off, SaWhat: what}})).Resok4
	}
	hole, data := seek(0, x4.NFS4_CONTENT_HOLE), seek(0, x4.NFS4_CONTENT_DATA)
	if hole.SrEof && hole.SrOffset < 1<<20 || data.SrEof || data.SrOffset > 512<<10 {
		t.Errorf("hole %+v, data %+v", hole, data)
	}
	s.fails(x4.NFS4ERR_NXIO, putFH(to), &x4.NfsArgop4_OP_SEEK{Opseek: x4.Seek4args{SaStateid: toID, SaOffset: 1 << 30}})
	// Data and holes, from 0 to the end without a gap; the data is as READ has it.
	var whole []byte
	for {
		got := get[*x4.ReadPlus4res_NFS4_OK](t, s.one(putFH(to), &x4.NfsArgop4_OP_READ_PLUS{OpreadPlus: x4.ReadPlus4args{
			RpaStateid: toID, RpaOffset: uint64(len(whole)), RpaCount: 300 << 10,
		}})).RpResok4
		before := len(whole)
		for _, part := range got.RprContents {
			switch p := part.(type) {
			case *x4.ReadPlusContent_NFS4_CONTENT_DATA:
				if p.RpcData.DOffset != uint64(len(whole)) {
					t.Fatalf("data at %d instead of %d", p.RpcData.DOffset, len(whole))
				}
				whole = append(whole, p.RpcData.DData...)
			case *x4.ReadPlusContent_NFS4_CONTENT_HOLE:
				if p.RpcHole.DiOffset != uint64(len(whole)) {
					t.Fatalf("a hole at %d instead of %d", p.RpcHole.DiOffset, len(whole))
				}
				whole = append(whole, make([]byte, p.RpcHole.DiLength)...)
			default:
				t.Fatalf("%+v", part)
			}
		}
		if got.RprEof {
			break
		}
		if len(whole) == before {
			t.Fatal("no progress")
		}
	}
	if len(whole) != 1<<20 || string(whole[512<<10:512<<10+6]) != "middle" {
		t.Errorf("%d bytes", len(whole))
	}
}

// without sends every operation of version 4.0, which has no sessions, as it has no client;
// see TestVersion40. Versions that there are not have no results.
func without(t *testing.T, r *rig) {
	s := r.session(1, "handles")
	data := s.handle("data")
	for _, op := range slices.Concat(of40, every40) {
		res := r.compound(0, putFH(data), op)
		if res.Status == x4.NFS4ERR_MINOR_VERS_MISMATCH && len(res.Resarray) != 0 {
			t.Errorf("%T: %d results", op, len(res.Resarray))
		}
	}
	for minor := uint32(3); minor < 1<<31; minor = minor*5 + 1 {
		if res := r.compound(minor, putFH(data)); res.Status != x4.NFS4ERR_MINOR_VERS_MISMATCH || len(res.Resarray) != 0 {
			t.Errorf("version 4.%d: %+v", minor, res)
		}
	}
}

// every40 are the other operations of version 4.0, with arguments that are hardly any.
var every40 = []x4.NfsArgop4{
	&x4.NfsArgop4_OP_ACCESS{}, &x4.NfsArgop4_OP_CLOSE{}, &x4.NfsArgop4_OP_COMMIT{},
	createOp(&x4.Createtype4_default{}, "x"),
	&x4.NfsArgop4_OP_DELEGRETURN{}, &x4.NfsArgop4_OP_GETATTR{}, &x4.NfsArgop4_OP_GETFH{}, &x4.NfsArgop4_OP_LINK{},
	lockOp(x4.READ_LT, 0, 1, byOpen(x4.Stateid4{}, "x")),
	&x4.NfsArgop4_OP_LOCKT{Oplockt: x4.Lockt4args{Locktype: x4.READ_LT, Length: 1}},
	&x4.NfsArgop4_OP_LOCKU{Oplocku: x4.Locku4args{Locktype: x4.READ_LT, Length: 1}}, lookup("x"),
	&x4.NfsArgop4_OP_LOOKUPP{}, &x4.NfsArgop4_OP_NVERIFY{},
	openOp(1, 0, noCreate, &x4.OpenClaim4_CLAIM_NULL{File: "x"}), &x4.NfsArgop4_OP_OPEN_DOWNGRADE{}, putFH(nil),
	&x4.NfsArgop4_OP_PUTPUBFH{},
	&x4.NfsArgop4_OP_PUTROOTFH{}, &x4.NfsArgop4_OP_READ{}, &x4.NfsArgop4_OP_READDIR{}, &x4.NfsArgop4_OP_READLINK{},
	&x4.NfsArgop4_OP_REMOVE{},
	&x4.NfsArgop4_OP_RENAME{}, &x4.NfsArgop4_OP_RESTOREFH{}, &x4.NfsArgop4_OP_SAVEFH{}, &x4.NfsArgop4_OP_SECINFO{},
	&x4.NfsArgop4_OP_SETATTR{},
	&x4.NfsArgop4_OP_VERIFY{}, &x4.NfsArgop4_OP_WRITE{}, &x4.NfsArgop4_OP_ILLEGAL{},
}
