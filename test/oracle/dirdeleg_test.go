package oracle

import (
	"bytes"
	"testing"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"
)

// extend is NOTIFY4_GFLAG_EXTEND, which RFC 8881 does not have.
const extend = 6

// TestDirDelegation: a directory is delegated, its changes are notified, and it is recalled by a
// change that is not to be notified.
func TestDirDelegation(t *testing.T) {
	for _, minor := range []uint32{1, 2} {
		r := newRig(t)
		other := r.session(minor, "other")
		k := &callee{t: t}
		r.back = k
		s := r.session(minor, "owner")
		s.one(&x4.NfsArgop4_OP_PUTROOTFH{}) // now the server has tried the backchannel
		dir := s.handle("data")
		fh, id := other.open(dir, "old")
		other.one(putFH(fh), closeOp(id))
		res := get[*x4.GetDirDelegation4res_NFS4_OK](t, s.one(putFH(dir), &x4.NfsArgop4_OP_GET_DIR_DELEGATION{
			OpgetDirDelegation: x4.GetDirDelegation4args{
				GddaNotificationTypes: bitmap(int(x4.NOTIFY4_ADD_ENTRY), int(x4.NOTIFY4_RENAME_ENTRY),
					int(x4.NOTIFY4_CHANGE_DIR_ATTRS), extend),
				GddaChildAttributes: bitmap(x4.FATTR4_SIZE),
			},
		}))
		ok, is := res.GddrResNonFatal4.(*x4.GetDirDelegation4resNonFatal_GDD4_OK)
		if !is {
			t.Fatalf("version 4.%d: %+v", minor, res)
		}
		got := ok.GddrnfResok4
		if n := got.GddrNotification; len(n) != 1 || n[0] != 1<<x4.NOTIFY4_ADD_ENTRY|1<<x4.NOTIFY4_RENAME_ENTRY|1<<extend {
			t.Errorf("notifications %x", n)
		}
		fh, id = other.open(dir, "new")
		other.one(putFH(fh), closeOp(id))
		other.do(putFH(dir), &x4.NfsArgop4_OP_SAVEFH{}, &x4.NfsArgop4_OP_RENAME{
			Oprename: x4.Rename4args{Oldname: "new", Newname: "old"},
		})
		other.fails(x4.NFS4ERR_DELAY, putFH(dir), &x4.NfsArgop4_OP_REMOVE{Opremove: x4.Remove4args{Target: "old"}})
		if len(k.calls) != 3 {
			t.Fatalf("version 4.%d: %d callbacks", minor, len(k.calls))
		}
		for i, kind := range []uint32{1 << x4.NOTIFY4_ADD_ENTRY, 1 << x4.NOTIFY4_RENAME_ENTRY} {
			n, is := k.calls[i].(*x4.NfsCbArgop4_OP_CB_NOTIFY)
			if !is || n.Opcbnotify.CnaStateid != got.GddrStateid || !bytes.Equal(n.Opcbnotify.CnaFh, dir) ||
				len(n.Opcbnotify.CnaChanges) != 1 {
				t.Fatalf("%+v", k.calls[i])
			}
			change := n.Opcbnotify.CnaChanges[0]
			if len(change.NotifyMask) != 1 || change.NotifyMask[0] != kind {
				t.Errorf("%+v", change)
			}
			in := bytes.NewReader(change.NotifyVals)
			var add x4.NotifyAdd4
			var err error
			if i == 0 {
				_, err = add.ReadFrom(in)
				if add.NadNewEntry.NeFile != "new" || len(add.NadOldEntry) != 0 {
					t.Errorf("%+v", add)
				}
			} else {
				var rename x4.NotifyRename4
				_, err = rename.ReadFrom(in)
				add = rename.NrnNewEntry
				if rename.NrnOldEntry.NrmOldEntry.NeFile != "new" || add.NadNewEntry.NeFile != "old" || len(add.NadOldEntry) != 1 ||
					add.NadOldEntry[0].NrmOldEntry.NeFile != "old" {
					t.Errorf("%+v", rename)
				}
			}
			if err != nil || in.Len() != 0 || len(add.NadNewEntry.NeAttrs.Attrmask) != 0 {
				t.Errorf("%v, %d bytes are left of %+v", err, in.Len(), change)
			}
		}
		recall, is := k.calls[2].(*x4.NfsCbArgop4_OP_CB_RECALL)
		if !is || recall.Opcbrecall.Stateid != got.GddrStateid || !bytes.Equal(recall.Opcbrecall.Fh, dir) {
			t.Errorf("%+v", k.calls[2])
		}
		s.one(putFH(dir), &x4.NfsArgop4_OP_DELEGRETURN{Opdelegreturn: x4.Delegreturn4args{DelegStateid: got.GddrStateid}})
		other.one(putFH(dir), &x4.NfsArgop4_OP_REMOVE{Opremove: x4.Remove4args{Target: "old"}})
	}
}
