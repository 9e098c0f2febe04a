package oracle

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// callee is a client that answers callbacks by go-xdr.
type callee struct {
	t  testing.TB
	mu sync.Mutex
	// calls are the operations behind CB_SEQUENCE, of all calls.
	calls []x4.NfsCbArgop4
	last  x4.CbSequence4args

	locks        chan *x4.CbNotifyLock4args
	offloads     chan *x4.CbOffload4args
	change, size uint64 // what CB_GETATTR is told
}

// Connected implements rpc.Caller.
func (*callee) Connected() bool { return true }

// Call implements rpc.Caller.
func (c *callee) Call(b *rpc.BackwardCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := bytes.NewReader(b.Args)
	var a x4.CbCompound4args
	if _, err := a.ReadFrom(in); err != nil || in.Len() != 0 || len(a.Argarray) == 0 {
		c.t.Errorf("a callback of %x: %v, %d bytes are left", b.Args, err, in.Len())
		b.Done(nil, errors.New("no callback"))
		return
	}
	if again := bytesOf(c.t, &a); !bytes.Equal(again, b.Args) {
		c.t.Errorf("a callback of\n%x, which put together again is\n%x", b.Args, again)
	}
	seq, ok := a.Argarray[0].(*x4.NfsCbArgop4_OP_CB_SEQUENCE)
	if !ok {
		c.t.Errorf("it begins with a %T", a.Argarray[0])
		return
	}
	c.last = seq.Opcbsequence
	res := x4.CbCompound4res{
		Tag: a.Tag,
		Resarray: []x4.NfsCbResop4{&x4.NfsCbResop4_OP_CB_SEQUENCE{Opcbsequence: &x4.CbSequence4res_NFS4_OK{
			CsrResok4: x4.CbSequence4resok{
				CsrSessionid: c.last.CsaSessionid, CsrSequenceid: c.last.CsaSequenceid, CsrSlotid: c.last.CsaSlotid,
			},
		}}},
	}
	for _, op := range a.Argarray[1:] {
		c.calls = append(c.calls, op)
		switch op := op.(type) {
		case *x4.NfsCbArgop4_OP_CB_RECALL:
			res.Resarray = append(res.Resarray, &x4.NfsCbResop4_OP_CB_RECALL{})
		case *x4.NfsCbArgop4_OP_CB_NOTIFY:
			res.Resarray = append(res.Resarray, &x4.NfsCbResop4_OP_CB_NOTIFY{})
		case *x4.NfsCbArgop4_OP_CB_OFFLOAD:
			res.Resarray = append(res.Resarray, &x4.NfsCbResop4_OP_CB_OFFLOAD{})
			c.offloads <- &op.Opcboffload
		case *x4.NfsCbArgop4_OP_CB_NOTIFY_LOCK:
			res.Resarray = append(res.Resarray, &x4.NfsCbResop4_OP_CB_NOTIFY_LOCK{})
			c.locks <- &op.OpcbnotifyLock
		case *x4.NfsCbArgop4_OP_CB_GETATTR:
			// What it has written is known here alone.
			vals := append(bytesOf(c.t, uint64Of(c.change)), bytesOf(c.t, uint64Of(c.size))...)
			res.Resarray = append(res.Resarray, &x4.NfsCbResop4_OP_CB_GETATTR{Opcbgetattr: &x4.CbGetattr4res_NFS4_OK{
				Resok4: x4.CbGetattr4resok{ObjAttributes: x4.Fattr4{
					Attrmask: bitmap(x4.FATTR4_CHANGE, x4.FATTR4_SIZE),
					AttrVals: vals,
				}},
			}})
		default:
			c.t.Errorf("a callback of %T", op)
		}
	}
	d := xdr.NewDecoder(bytesOf(c.t, &res))
	b.Done(&d, nil)
}

// TestDelegations: a delegation, its recall, and its return.
func TestDelegations(t *testing.T) {
	for _, minor := range []uint32{1, 2} {
		r := newRig(t)
		other := r.session(minor, "other")
		k := &callee{t: t}
		r.back = k
		s := r.session(minor, "owner")
		s.one(&x4.NfsArgop4_OP_PUTROOTFH{}) // now the server has tried the backchannel
		dir := s.handle("data")
		for i, write := range []bool{false, true} {
			file := []string{"read", "written"}[i]
			fh, id := other.open(dir, file)
			other.one(putFH(fh), closeOp(id))
			access, want := uint32(1), uint32(x4.OPEN4_SHARE_ACCESS_WANT_READ_DELEG)
			if write {
				access, want = 3, x4.OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG
			}
			got := get[*x4.Open4res_NFS4_OK](t,
				s.one(putFH(fh), openOp(access|want, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))).Resok4
			var deleg x4.Stateid4
			switch d := got.Delegation.(type) {
			case *x4.OpenDelegation4_OPEN_DELEGATE_READ:
				deleg = d.Read.Stateid
				if write || d.Read.Recall {
					t.Errorf("%+v", d)
				}
			case *x4.OpenDelegation4_OPEN_DELEGATE_WRITE:
				deleg = d.Write.Stateid
				if limit, ok := d.Write.SpaceLimit.(*x4.NfsSpaceLimit4_NFS_LIMIT_SIZE); !write || d.Write.Recall || !ok ||
					limit.Filesize != 0 {
					t.Errorf("%+v", d)
				}
			default:
				t.Fatalf("version 4.%d, %s: %+v", minor, file, d)
			}
			s.one(putFH(dir), openOp(access|x4.OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0, noCreate, &x4.OpenClaim4_CLAIM_DELEGATE_CUR{
				DelegateCurInfo: x4.OpenClaimDelegateCur4{DelegateStateid: deleg, File: file},
			}))
			if got := get[*x4.Read4res_NFS4_OK](t, s.one(putFH(fh), readOp(deleg, 0, 10))).Resok4; !got.Eof {
				t.Errorf("%+v", got)
			}
			k.calls = nil
			other.fails(x4.NFS4ERR_DELAY, putFH(fh), openOp(2, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))
			k.mu.Lock()
			if len(k.calls) != 1 {
				t.Fatalf("%d callbacks", len(k.calls))
			}
			recall, ok := k.calls[0].(*x4.NfsCbArgop4_OP_CB_RECALL)
			if !ok || recall.Opcbrecall.Stateid != deleg || !bytes.Equal(recall.Opcbrecall.Fh, fh) ||
				recall.Opcbrecall.Truncate {
				t.Errorf("%+v", k.calls[0])
			}
			if lists := k.last.CsaReferringCallLists; k.last.CsaSessionid != s.id || len(lists) != 1 ||
				lists[0].RclSessionid != s.id ||
				len(lists[0].RclReferringCalls) != 1 || lists[0].RclReferringCalls[0].RcSlotid != 2 {
				t.Errorf("%+v", k.last)
			}
			k.mu.Unlock()
			s.one(putFH(fh), &x4.NfsArgop4_OP_DELEGRETURN{Opdelegreturn: x4.Delegreturn4args{DelegStateid: deleg}})
			other.one(putFH(fh), openOp(2, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))
		}
	}
}

// TestOffload: a copy that goes on after its reply, and the callback when it is done.
func TestOffload(t *testing.T) {
	r := newRig(t)
	k := &callee{t: t, offloads: make(chan *x4.CbOffload4args, 10)}
	r.back = k
	s := r.session(2, "owner")
	s.one(&x4.NfsArgop4_OP_PUTROOTFH{})
	dir := s.handle("data")
	from, fromID := s.open(dir, "from")
	to, toID := s.open(dir, "to")
	const size = 20 << 20
	s.one(putFH(from), &x4.NfsArgop4_OP_SETATTR{Opsetattr: x4.Setattr4args{
		Stateid:       fromID,
		ObjAttributes: fattr(t, bitmap(x4.FATTR4_SIZE), uint64Of(size)),
	}})
	c := get[*x4.Copy4res_NFS4_OK](t,
		s.one(putFH(from), &x4.NfsArgop4_OP_SAVEFH{}, putFH(to), &x4.NfsArgop4_OP_COPY{Opcopy: x4.Copy4args{
			CaSrcStateid: fromID, CaDstStateid: toID, CaConsecutive: true,
		}})).CrResok4
	if len(c.CrResponse.WrCallbackId) != 1 || c.CrRequirements.CrSynchronous {
		t.Fatalf("%+v", c)
	}
	id := c.CrResponse.WrCallbackId[0]
	res, st := s.try(putFH(to), &x4.NfsArgop4_OP_OFFLOAD_STATUS{OpoffloadStatus: x4.OffloadStatus4args{OsaStateid: id}})
	if st == x4.NFS4_OK {
		if got := get[*x4.OffloadStatus4res_NFS4_OK](t, res[1]).OsrResok4; got.OsrCount > size || len(got.OsrComplete) > 1 {
			t.Errorf("%+v", got)
		}
	}
	select {
	case done := <-k.offloads:
		w, ok := done.CoaOffloadInfo.(*x4.OffloadInfo4_NFS4_OK)
		if !ok || done.CoaStateid != id || !bytes.Equal(done.CoaFh, to) || w.CoaResok4.WrCount != size ||
			len(w.CoaResok4.WrCallbackId) != 0 {
			t.Errorf("%+v", done)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no CB_OFFLOAD")
	}
	if a := s.getAttr(to, x4.FATTR4_SIZE); a[x4.FATTR4_SIZE] != uint64(size) {
		t.Errorf("%v", a)
	}
}

// TestNotifyLock: a client that waits for a lock is called when it is free.
func TestNotifyLock(t *testing.T) {
	for _, minor := range []uint32{1, 2} {
		r := newRig(t)
		holder := r.session(minor, "holder")
		k := &callee{t: t, locks: make(chan *x4.CbNotifyLock4args, 10)}
		r.back = k
		s := r.session(minor, "waiter")
		s.one(&x4.NfsArgop4_OP_PUTROOTFH{})
		fh, his := holder.open(holder.handle("data"), "file")
		got := get[*x4.Open4res_NFS4_OK](t, s.one(putFH(fh),
			openOp(3|x4.OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))).Resok4
		if got.Rflags&x4.OPEN4_RESULT_MAY_NOTIFY_LOCK == 0 {
			t.Errorf("version 4.%d: flags %x", minor, got.Rflags)
		}
		locked := get[*x4.Lock4res_NFS4_OK](t,
			holder.one(putFH(fh), lockOp(x4.WRITE_LT, 0, 1<<64-1, byOpen(his, "holder")))).Resok4.LockStateid
		wait := lockOp(x4.WRITEW_LT, 5, 10, byOpen(got.Stateid, "waiter"))
		s.fails(x4.NFS4ERR_DENIED, putFH(fh), wait)
		holder.one(putFH(fh), &x4.NfsArgop4_OP_LOCKU{Oplocku: x4.Locku4args{
			Locktype: x4.WRITE_LT, LockStateid: locked, Length: 1<<64 - 1,
		}})
		select {
		case n := <-k.locks:
			if !bytes.Equal(n.CnlaFh, fh) || n.CnlaLockOwner.Clientid != s.client ||
				string(n.CnlaLockOwner.Owner) != "waiter" {
				t.Errorf("%+v", n)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no CB_NOTIFY_LOCK")
		}
		denied := get[*x4.Lock4res_NFS4ERR_DENIED](t,
			holder.fails(x4.NFS4ERR_DENIED, putFH(fh), lockOp(x4.READ_LT, 0, 9, byOpen(his, "holder")))).Denied
		if denied.Offset != 5 || denied.Length != 10 || string(denied.Owner.Owner) != "waiter" {
			t.Errorf("reserved: %+v", denied)
		}
		s.one(putFH(fh), wait)
	}
}

// TestGetAttrOfWhatIsDelegated: what a client has written under its delegation the server
// asks it for.
func TestGetAttrOfWhatIsDelegated(t *testing.T) {
	r := newRig(t)
	other := r.session(2, "other")
	k := &callee{t: t}
	r.back = k
	s := r.session(2, "owner")
	s.one(&x4.NfsArgop4_OP_PUTROOTFH{})
	fh, id := other.open(other.handle("data"), "file")
	other.one(putFH(fh), closeOp(id))
	got := get[*x4.Open4res_NFS4_OK](t,
		s.one(putFH(fh), openOp(3|x4.OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))).Resok4
	if _, ok := got.Delegation.(*x4.OpenDelegation4_OPEN_DELEGATE_WRITE); !ok {
		t.Fatalf("%+v", got.Delegation)
	}
	change := other.getAttr(fh, x4.FATTR4_TYPE)[x4.FATTR4_TYPE]
	if change != x4.NF4REG || len(k.calls) != 0 {
		t.Errorf("%v, %d callbacks for what the client does not change", change, len(k.calls))
	}
	k.change, k.size = 1<<62, 4242
	a := other.getAttr(fh, x4.FATTR4_SIZE, x4.FATTR4_CHANGE)
	if a[x4.FATTR4_SIZE] != uint64(4242) {
		t.Errorf("%v", a)
	}
	if len(k.calls) != 1 {
		t.Fatalf("%d callbacks", len(k.calls))
	}
	ask, ok := k.calls[0].(*x4.NfsCbArgop4_OP_CB_GETATTR)
	if !ok || !bytes.Equal(ask.Opcbgetattr.Fh, fh) || len(numbers(ask.Opcbgetattr.AttrRequest)) != 2 {
		t.Errorf("%+v", k.calls[0])
	}
}

// TestOpenXORDelegation: a delegation in the place of an open (RFC 9754), which go-xdr knows by the
// numbers of its flags alone.
func TestOpenXORDelegation(t *testing.T) {
	const wantXOR, noOpen = 0x200000, 0x10
	r := newRig(t)
	other := r.session(2, "other")
	fh, id := other.open(other.handle("data"), "file")
	other.one(putFH(fh), closeOp(id))
	r.back = &callee{t: t}
	s := r.session(2, "owner")
	s.one(&x4.NfsArgop4_OP_PUTROOTFH{})
	got := get[*x4.Open4res_NFS4_OK](t,
		s.one(putFH(fh), openOp(1|wantXOR, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))).Resok4
	d, ok := got.Delegation.(*x4.OpenDelegation4_OPEN_DELEGATE_READ)
	if !ok || got.Rflags&noOpen == 0 || got.Stateid != (x4.Stateid4{}) {
		t.Fatalf("%+v", got)
	}
	s.one(putFH(fh), readOp(d.Read.Stateid, 0, 10))
	s.one(putFH(fh), &x4.NfsArgop4_OP_DELEGRETURN{Opdelegreturn: x4.Delegreturn4args{DelegStateid: d.Read.Stateid}})
}
