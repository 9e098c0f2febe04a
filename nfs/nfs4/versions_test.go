package nfs4

import (
	"testing"

	"github.com/rstored/rstored/nfs"
)

// TestMinors: a minor version that is switched off is as one that there is none of.
func TestMinors(t *testing.T) {
	for _, c := range []struct {
		list   []uint32
		serves map[uint32]bool
	}{
		{nil, map[uint32]bool{1: true, 2: true}},
		{[]uint32{1}, map[uint32]bool{1: true}},
		{[]uint32{2}, map[uint32]bool{2: true}},
		{[]uint32{}, nil},
		{[]uint32{1, 2, 3, 1 << 31}, map[uint32]bool{1: true, 2: true}},
	} {
		r := newRig(t)
		r.s.cfg.Minors = c.list
		for _, minor := range []uint32{1, 2, 3, 1 << 31, 1<<32 - 1} {
			want := nfs.ErrMinorVersMismatch
			if c.serves[minor] {
				want = nfs.OK
			}
			p := r.compound(minor, exchangeArgs("o", 1, 0))
			if p.status != want {
				t.Errorf("%v: version 4.%d: %v", c.list, minor, p.status)
			}
			if want != nfs.OK && (p.left != 0 || p.Remaining() != 0) {
				t.Errorf("%v: version 4.%d: results behind the status", c.list, minor)
			}
		}
	}
}

// TestUTF8: names are bytes, unless the server is told to take nothing but UTF-8.
func TestUTF8(t *testing.T) {
	const bad = "na\xffme"
	for _, strict := range []bool{false, true} {
		r := newRig(t)
		r.s.cfg.UTF8 = strict
		x := r.session(2, "o")
		dir := x.handle("one")
		x.file("f")
		mkdir := func(name string) args { return op(OpCreate, uint32(2), name, attrs(Bitmap{})) }
		put := op(OpPutFH, dir)
		for _, c := range []struct {
			what string
			code uint32
			ops  []args
			any  nfs.Status // where names are bytes
		}{
			{"LOOKUP", OpLookup, []args{op(OpLookup, bad)}, nfs.ErrNoEnt},
			{"SECINFO", OpSecInfo, []args{op(OpSecInfo, bad)}, nfs.ErrNoEnt},
			{"OPEN", OpOpen, []args{openOp(1, 0, "p", bad)}, nfs.ErrNoEnt},
			{"CREATE", OpCreate, []args{mkdir(bad)}, nfs.OK},
			{"REMOVE", OpRemove, []args{op(OpRemove, bad)}, nfs.OK},
		} {
			p := x.do(append([]args{put}, c.ops...)...).ok(OpPutFH)
			want := c.any
			if strict {
				want = nfs.ErrInval
			}
			if st := p.next(c.code); st != want {
				t.Errorf("strict %v: %s: %v", strict, c.what, st)
			}
		}
		for _, c := range []struct{ from, to string }{{"f", bad}, {bad, "f"}} {
			p := x.do(put, op(OpSaveFH), op(OpRename, c.from, c.to)).ok(OpPutFH).ok(OpSaveFH)
			want := nfs.OK
			if strict {
				want = nfs.ErrInval
			}
			if st := p.next(OpRename); st != want {
				t.Errorf("strict %v: RENAME of %q to %q: %v", strict, c.from, c.to, st)
			}
		}
		if p := x.do(put, op(OpLookup, "日本")).ok(OpPutFH); p.next(OpLookup) != nfs.ErrNoEnt {
			t.Errorf("strict %v: a name of UTF-8 is refused", strict)
		}
		want := uint32(1) // FSCHARSET_CAP4_CONTAINS_NON_UTF8
		if strict {
			want = 2
		}
		if got := x.attr(dir, AttrCharsetCap).Uint32(); got != want {
			t.Errorf("strict %v: fs_charset_cap %d", strict, got)
		}
	}
}

// TestNames: what a component of a path must not be, and the order in which that counts.
func TestNamesRefused(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "o")
	dir, file := x.handle("one"), x.file("f")
	long := make([]byte, 256)
	for i := range long {
		long[i] = 'x'
	}
	for _, c := range []struct {
		name string
		want nfs.Status
	}{
		{"", nfs.ErrInval},
		{".", nfs.ErrBadName},
		{"..", nfs.ErrBadName},
		{"a/b", nfs.ErrBadChar},
		{"a\x00b", nfs.ErrBadChar},
		{string(long), nfs.ErrNameTooLong},
		{string(long[:255]), nfs.ErrNoEnt},
		{"...", nfs.ErrNoEnt},
	} {
		for _, code := range []uint32{OpLookup, OpRemove, OpSecInfo} {
			if st := x.do(op(OpPutFH, dir), op(code, c.name)).ok(OpPutFH).next(code); st != c.want {
				t.Errorf("%s %.10q: %v", table[code].name, c.name, st)
			}
		}
	}
	for _, code := range []uint32{OpLookup, OpRemove} {
		if st := x.do(op(OpPutFH, file), op(code, "f")).ok(OpPutFH).next(code); st != nfs.ErrNotDir {
			t.Errorf("%s in a file: %v", table[code].name, st)
		}
	}
}
