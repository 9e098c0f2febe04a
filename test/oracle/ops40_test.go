package oracle

import (
	"testing"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"
)

// client40 is a client of version 4.0, with its number and the handle of /data.
type client40 struct {
	*rig
	id  uint64
	dir []byte
}

func setClientID(owner string, verf byte) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_SETCLIENTID{Opsetclientid: x4.Setclientid4args{
		Client:        x4.NfsClientId4{Verifier: [8]byte{verf}, Id: []byte(owner)},
		Callback:      x4.CbClient4{CbProgram: 0x40000000, CbLocation: x4.Netaddr4{NaRNetid: "tcp", NaRAddr: "10.0.0.1.3.4"}},
		CallbackIdent: 9,
	}}
}

// join40 makes a client of version 4.0.
func (r *rig) join40(owner string) *client40 {
	r.t.Helper()
	got := get[*x4.Setclientid4res_NFS4_OK](r.t, r.compound(0, setClientID(owner, 1)).Resarray[0]).Resok4
	c := &client40{rig: r, id: got.Clientid}
	c.ok(&x4.NfsArgop4_OP_SETCLIENTID_CONFIRM{OpsetclientidConfirm: x4.SetclientidConfirm4args(got)})
	c.dir = get[*x4.Getfh4res_NFS4_OK](r.t,
		c.ok(&x4.NfsArgop4_OP_PUTROOTFH{}, lookup("data"), &x4.NfsArgop4_OP_GETFH{})).Resok4.Object
	return c
}

// ok is the result of the last of some operations, all of which have to succeed.
func (c *client40) ok(ops ...x4.NfsArgop4) x4.NfsResop4 {
	c.t.Helper()
	return c.ends(x4.NFS4_OK, ops...)
}

// ends is the result of the last of some operations, which has to end so.
func (c *client40) ends(want x4.Nfsstat4, ops ...x4.NfsArgop4) x4.NfsResop4 {
	c.t.Helper()
	res := c.compound(0, ops...)
	if res.Status != want || len(res.Resarray) != len(ops) {
		c.t.Fatalf("%T, number %d of %d: %v instead of %v", ops[len(res.Resarray)-1], len(res.Resarray), len(ops),
			name(res.Status), name(want))
	}
	return res.Resarray[len(ops)-1]
}

func (c *client40) owner(name string) x4.StateOwner4 {
	return x4.StateOwner4{Clientid: c.id, Owner: []byte(name)}
}

// open40 makes a file, or opens it, and confirms its owner if that is asked for. The next
// seqid is returned.
func (c *client40) open40(who, file string, access, seq uint32) ([]byte, x4.Stateid4, uint32) {
	c.t.Helper()
	how := &x4.Openflag4_OPEN4_CREATE{How: &x4.Createhow4_UNCHECKED4{Createattrs: fattr(c.t, bitmap(x4.FATTR4_MODE),
		uint32Of(0o644))}}
	res := c.compound(0, putFH(c.dir), &x4.NfsArgop4_OP_OPEN{Opopen: x4.Open4args{
		Seqid: seq, ShareAccess: access, Owner: c.owner(who), Openhow: how, Claim: &x4.OpenClaim4_CLAIM_NULL{File: file},
	}}, &x4.NfsArgop4_OP_GETFH{})
	if res.Status != x4.NFS4_OK {
		c.t.Fatal(name(res.Status))
	}
	seq++
	got := get[*x4.Open4res_NFS4_OK](c.t, res.Resarray[1]).Resok4
	fh := get[*x4.Getfh4res_NFS4_OK](c.t, res.Resarray[2]).Resok4.Object
	if _, none := got.Delegation.(*x4.OpenDelegation4_OPEN_DELEGATE_NONE); !none {
		c.t.Errorf("%+v", got.Delegation)
	}
	id := got.Stateid
	if got.Rflags&x4.OPEN4_RESULT_CONFIRM != 0 {
		id = get[*x4.OpenConfirm4res_NFS4_OK](c.t,
			c.ok(putFH(fh), &x4.NfsArgop4_OP_OPEN_CONFIRM{OpopenConfirm: x4.OpenConfirm4args{
				OpenStateid: id, Seqid: seq,
			}})).Resok4.OpenStateid
		seq++
	}
	return fh, id, seq
}

// TestVersion40 is what version 4.0 has of its own: clients without sessions, owners with
// numbers.
func TestVersion40(t *testing.T) {
	r := newRig(t)
	c := r.join40("client")
	c.ok(&x4.NfsArgop4_OP_RENEW{Oprenew: x4.Renew4args{Clientid: c.id}})
	c.ends(x4.NFS4ERR_STALE_CLIENTID, &x4.NfsArgop4_OP_RENEW{Oprenew: x4.Renew4args{Clientid: c.id + 99}})
	fh, id, seq := c.open40("o", "file", 3, 1)
	if w := get[*x4.Write4res_NFS4_OK](t,
		c.ok(putFH(fh), writeOp(id, 0, x4.FILE_SYNC4, "some data"))).Resok4; w.Count != 9 || w.Committed != x4.FILE_SYNC4 {
		t.Errorf("%+v", w)
	}
	if got := get[*x4.Read4res_NFS4_OK](t, c.ok(putFH(fh), readOp(id, 5, 10))).Resok4; string(got.Data) != "data" ||
		!got.Eof {
		t.Errorf("%+v", got)
	}
	// It is in use by somebody else: the result says where he is.
	r.uid = 7
	used := get[*x4.Setclientid4res_NFS4ERR_CLID_INUSE](t,
		c.ends(x4.NFS4ERR_CLID_INUSE, setClientID("client", 2))).ClientUsing
	if used.NaRNetid == "" {
		t.Errorf("%+v", used)
	}
	r.uid = 0
	_, more, seq := c.open40("o", "file", 1, seq)
	if more.Other != id.Other || more.Seqid != id.Seqid+1 {
		t.Errorf("%v after %v", more, id)
	}
	down := get[*x4.OpenDowngrade4res_NFS4_OK](t,
		c.ok(putFH(fh), &x4.NfsArgop4_OP_OPEN_DOWNGRADE{OpopenDowngrade: x4.OpenDowngrade4args{
			OpenStateid: more, Seqid: seq, ShareAccess: 1,
		}})).Resok4.OpenStateid
	seq++
	lock := func(who string, off, lockSeq uint32) x4.NfsArgop4 {
		return &x4.NfsArgop4_OP_LOCK{Oplock: x4.Lock4args{
			Locktype: x4.READ_LT, Offset: uint64(off), Length: 10,
			Locker: &x4.Locker4_TRUE{
				OpenOwner: x4.OpenToLockOwner4{OpenSeqid: seq, OpenStateid: down, LockSeqid: lockSeq, LockOwner: c.owner(who)},
			},
		}}
	}
	locked := get[*x4.Lock4res_NFS4_OK](t, c.ok(putFH(fh), lock("l", 0, 1))).Resok4.LockStateid
	seq++
	denied := get[*x4.Lockt4res_NFS4ERR_DENIED](t,
		c.ends(x4.NFS4ERR_DENIED, putFH(fh), &x4.NfsArgop4_OP_LOCKT{Oplockt: x4.Lockt4args{
			Locktype: x4.WRITE_LT, Offset: 5, Length: 1, Owner: c.owner("other"),
		}})).Denied
	if denied.Offset != 0 || denied.Length != 10 || denied.Owner.Clientid != c.id || string(denied.Owner.Owner) != "l" {
		t.Errorf("%+v", denied)
	}
	again := get[*x4.Lock4res_NFS4_OK](t, c.ok(putFH(fh), &x4.NfsArgop4_OP_LOCK{Oplock: x4.Lock4args{
		Locktype: x4.READ_LT, Offset: 20, Length: 5,
		Locker: &x4.Locker4_FALSE{LockOwner: x4.ExistLockOwner4{LockStateid: locked, LockSeqid: 2}},
	}})).Resok4.LockStateid
	c.ends(x4.NFS4ERR_LOCKS_HELD, &x4.NfsArgop4_OP_RELEASE_LOCKOWNER{OpreleaseLockowner: x4.ReleaseLockowner4args{
		LockOwner: c.owner("l"),
	}})
	c.ok(putFH(fh), &x4.NfsArgop4_OP_LOCKU{Oplocku: x4.Locku4args{
		Locktype: x4.READ_LT, Seqid: 3, LockStateid: again,
		Length: 1<<64 - 1,
	}})
	c.ok(&x4.NfsArgop4_OP_RELEASE_LOCKOWNER{OpreleaseLockowner: x4.ReleaseLockowner4args{LockOwner: c.owner("l")}})
	// A retry of a CLOSE has the reply of the first; a number out of turn has none.
	for range 2 {
		c.ok(putFH(fh), &x4.NfsArgop4_OP_CLOSE{Opclose: x4.Close4args{Seqid: seq, OpenStateid: down}})
	}
	_, id, seq = c.open40("o", "file", 1, seq+1)
	c.ends(x4.NFS4ERR_BAD_SEQID, putFH(fh),
		&x4.NfsArgop4_OP_CLOSE{Opclose: x4.Close4args{Seqid: seq + 9, OpenStateid: id}})
	// Attributes are those of version 4.1 but for what that brought.
	a := get[*x4.Getattr4res_NFS4_OK](t,
		c.ok(putFH(fh), &x4.NfsArgop4_OP_GETATTR{Opgetattr: x4.Getattr4args{AttrRequest: bitmap(x4.FATTR4_SUPPORTED_ATTRS)}}))
	sup := attributes(t, &a.Resok4.ObjAttributes)[x4.FATTR4_SUPPORTED_ATTRS].([]uint32)
	var all []int
	for _, n := range numbers(sup) {
		if n > x4.FATTR4_MOUNTED_ON_FILEID {
			t.Errorf("attribute %d in version 4.0", n)
		}
		if n != x4.FATTR4_TIME_ACCESS_SET && n != x4.FATTR4_TIME_MODIFY_SET {
			all = append(all, n)
		}
	}
	a = get[*x4.Getattr4res_NFS4_OK](t,
		c.ok(putFH(fh), &x4.NfsArgop4_OP_GETATTR{Opgetattr: x4.Getattr4args{AttrRequest: bitmap(all...)}}))
	if got := attributes(t, &a.Resok4.ObjAttributes); got[x4.FATTR4_SIZE] != uint64(9) || len(got) != len(all) {
		t.Errorf("%v", got)
	}
}
