package oracle

import (
	"bytes"
	"errors"
	"sync"
	"testing"

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
}

// Alive implements rpc.Caller.
func (*callee) Alive() bool { return true }

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
	res := x4.CbCompound4res{Tag: a.Tag, Resarray: []x4.NfsCbResop4{&x4.NfsCbResop4_OP_CB_SEQUENCE{Opcbsequence: &x4.CbSequence4res_NFS4_OK{
		CsrResok4: x4.CbSequence4resok{
			CsrSessionid: c.last.CsaSessionid, CsrSequenceid: c.last.CsaSequenceid, CsrSlotid: c.last.CsaSlotid,
		},
	}}}}
	for _, op := range a.Argarray[1:] {
		c.calls = append(c.calls, op)
		if op.GetArgop() == x4.OP_CB_RECALL {
			res.Resarray = append(res.Resarray, &x4.NfsCbResop4_OP_CB_RECALL{})
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
			got := get[*x4.Open4res_NFS4_OK](t, s.one(putFH(fh), openOp(access|want, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))).Resok4
			var deleg x4.Stateid4
			switch d := got.Delegation.(type) {
			case *x4.OpenDelegation4_OPEN_DELEGATE_READ:
				deleg = d.Read.Stateid
				if write || d.Read.Recall {
					t.Errorf("%+v", d)
				}
			case *x4.OpenDelegation4_OPEN_DELEGATE_WRITE:
				deleg = d.Write.Stateid
				if limit, ok := d.Write.SpaceLimit.(*x4.NfsSpaceLimit4_NFS_LIMIT_SIZE); !write || d.Write.Recall || !ok || limit.Filesize != 0 {
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
			if !ok || recall.Opcbrecall.Stateid != deleg || !bytes.Equal(recall.Opcbrecall.Fh, fh) || recall.Opcbrecall.Truncate {
				t.Errorf("%+v", k.calls[0])
			}
			if lists := k.last.CsaReferringCallLists; k.last.CsaSessionid != s.id || len(lists) != 1 || lists[0].RclSessionid != s.id ||
				len(lists[0].RclReferringCalls) != 1 || lists[0].RclReferringCalls[0].RcSlotid != 2 {
				t.Errorf("%+v", k.last)
			}
			k.mu.Unlock()
			s.one(putFH(fh), &x4.NfsArgop4_OP_DELEGRETURN{Opdelegreturn: x4.Delegreturn4args{DelegStateid: deleg}})
			other.one(putFH(fh), openOp(2, 0, noCreate, &x4.OpenClaim4_CLAIM_FH{}))
		}
	}
}
