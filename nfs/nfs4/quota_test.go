package nfs4

import (
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// TestQuotas: the caller's quota, where there is one.
func TestQuotas(t *testing.T) {
	const kib = 1 << 10
	r := newRig(t)
	x := r.session(2, "o")
	fh := x.file("f")
	for _, n := range []int{AttrQuotaHard, AttrQuotaSoft, AttrQuotaUsed} {
		p := x.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(n))).ok(OpPutFH).ok(OpGetAttr)
		if got, _ := DecodeBitmap(p.Decoder); !got.empty() {
			t.Errorf("attribute %d of a store without quotas", n)
		}
		x.do(op(OpPutFH, fh), op(OpVerify, BitmapOf(n), "12345678")).ok(OpPutFH).fails(OpVerify, nfs.ErrAttrNotSupp)
	}
	for _, c := range []struct {
		q                blockstore.Quota
		hard, soft, used uint64 // 0: what the file system has
	}{
		{blockstore.Quota{Used: kib, Soft: 3 * kib, Hard: 4 * kib}, 3*kib - 7, 2*kib - 7, kib + 7},
		{blockstore.Quota{Used: 5 * kib, Soft: 3 * kib, Hard: 1 << 60}, 0, 1, 5*kib + 7},
		{blockstore.Quota{}, 0, 0, 7},
	} {
		r.fs.quota = &c.q
		r.uid = 7
		avail := x.attr(fh, AttrSpaceAvail).Uint64()
		want := func(v uint64, limit uint64) uint64 {
			switch {
			case limit == 0 || v == 0:
				return avail
			case v == 1:
				return 0
			}
			return v
		}
		if got := x.attr(fh, AttrQuotaHard).Uint64(); got != want(c.hard, c.q.Hard) {
			t.Errorf("%+v: hard %d", c.q, got)
		}
		if got := x.attr(fh, AttrQuotaSoft).Uint64(); got != want(c.soft, c.q.Soft) {
			t.Errorf("%+v: soft %d", c.q, got)
		}
		if got := x.attr(fh, AttrQuotaUsed).Uint64(); got != c.used {
			t.Errorf("%+v: used %d", c.q, got)
		}
		x.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous,
			attrs(BitmapOf(AttrQuotaUsed), uint64(1)))).ok(OpPutFH).fails2(OpSetAttr, nfs.ErrInval, 4)
	}
}

// TestAttributesOfNobody: those that there is nothing to say of are not supported, in any
// file system here.
func TestAttributesOfNobody(t *testing.T) {
	const (
		archive, hidden, mimetype, system, timeBackup             = 14, 25, 32, 46, 49
		dirNotifDelay, direntNotifDelay, dacl, sacl, changePolicy = 56, 57, 58, 59, 60
		fsStatus, fsLayoutType, layoutHint, layoutType            = 61, 62, 63, 64
		layoutBlksize, layoutAlign, mdsThreshold                  = 65, 66, 68
		retentionGet, retentionSet, retentEvtGet, retentEvtSet    = 69, 70, 71, 72
		retentionHold, modeSetMasked, spaceFreed, secLabel        = 73, 74, 78, 80
	)
	r := newRig(t)
	r.fs.clones, r.fs.quota = true, &blockstore.Quota{}
	x := r.session(2, "o")
	for _, fh := range [][]byte{x.handle(), x.handle("one"), x.file("f")} {
		all, _ := DecodeBitmap(x.attr(fh, AttrSupported))
		for _, n := range []int{
			archive, hidden, mimetype, system, timeBackup, dirNotifDelay, direntNotifDelay, dacl, sacl, changePolicy,
			fsStatus,
			fsLayoutType, layoutHint, layoutType, layoutBlksize, layoutAlign, mdsThreshold, retentionGet,
			retentionSet,
			retentEvtGet, retentEvtSet, retentionHold, modeSetMasked, spaceFreed, secLabel,
		} {
			p := x.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(n))).ok(OpPutFH).ok(OpGetAttr)
			if got, _ := DecodeBitmap(p.Decoder); !got.empty() || all.Has(n) {
				t.Errorf("attribute %d", n)
			}
		}
	}
}

// TestCaseInsensitive: as the store has it.
func TestCaseInsensitive(t *testing.T) {
	r := newRig(t)
	x := r.session(1, "o")
	for _, r.fs.folds = range []bool{false, true} {
		if got := x.attr(x.handle("one"), AttrCaseInsens).Bool(); got != r.fs.folds {
			t.Errorf("%v instead of %v", got, r.fs.folds)
		}
	}
}

// TestTimeCreate: when an object was made. Clients may send it with other attributes, as those of
// macOS do after an exclusive create; it is not set, and the reply says so.
func TestTimeCreate(t *testing.T) {
	r := newRig(t)
	x := r.session(1, "o")
	fh := x.file("f")
	made, ok := decodeTime(x.attr(fh, AttrTimeCreate))
	if want, err := r.fs.Birth(nil, r.file(fh).Handle); !ok || err != nil || !made.Equal(want) {
		t.Errorf("made at %v instead of %v, %v", made, want, err)
	}
	both, mode := BitmapOf(AttrMode, AttrTimeCreate), BitmapOf(AttrMode)
	to := attrs(both, uint32(0o640), timeArgs(made.Add(-time.Hour)))
	p := x.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, to)).ok(OpPutFH).ok(OpSetAttr)
	if set, _ := DecodeBitmap(p.Decoder); set != mode {
		t.Errorf("set %v", set)
	}
	if again, _ := decodeTime(x.attr(fh, AttrTimeCreate)); !again.Equal(made) {
		t.Errorf("made at %v, said to be %v", made, again)
	}
	if m := x.attr(fh, AttrMode).Uint32(); m != 0o640 {
		t.Errorf("mode %o", m)
	}
	bad := part(uint64(1), uint32(1_000_000_000))
	x.do(op(OpPutFH, fh), op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrTimeCreate), bad))).ok(
		OpPutFH).fails2(OpSetAttr, nfs.ErrInval, 4)
	all, _ := DecodeBitmap(x.attr(x.handle(), AttrSupported))
	if all.Has(AttrTimeCreate) {
		t.Error("the pseudo file system knows when it was made")
	}
}
