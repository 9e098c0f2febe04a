package oracle

import (
	"fmt"
	"slices"
	"testing"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"
)

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
	}
)

// extents are the operations of version 4.2 on data.
func extents(t *testing.T, r *rig) {
	s := r.session(2, "extents")
	dir := s.handle("data")
	from, fromID := s.open(dir, "from")
	to, toID := s.open(dir, "to")
	s.one(putFH(from), writeOp(fromID, 0, x4.UNSTABLE4, "some data here"))
	same := get[*x4.WriteSame4res_NFS4_OK](t, s.one(putFH(to), &x4.NfsArgop4_OP_WRITE_SAME{OpwriteSame: x4.WriteSame4args{
		WsaStateid: toID, WsaStable: x4.FILE_SYNC4, WsaAdb: x4.AppDataBlock4{
			AdbOffset: 1, AdbBlockSize: 6, AdbBlockCount: 2, AdbReloffBlocknum: 2, AdbBlockNum: 1 << 24,
			AdbPattern: []byte("ab"),
		},
	}})).Resok4
	if same.WrCount != 12 || len(same.WrCallbackId) != 0 || same.WrCommitted != x4.FILE_SYNC4 {
		t.Errorf("%+v", same)
	}
	if got := get[*x4.Read4res_NFS4_OK](t, s.one(putFH(to), readOp(toID, 0, 20))).Resok4; string(got.Data) !=
		"\x00ab\x01\x00\x00\x00ab\x01\x00\x00\x01" {
		t.Errorf("%q", got.Data)
	}
	s.one(putFH(to), &x4.NfsArgop4_OP_SETATTR{Opsetattr: x4.Setattr4args{
		Stateid: toID, ObjAttributes: fattr(t, bitmap(x4.FATTR4_SIZE), uint64Of(0)),
	}})
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
	s.fails(x4.NFS4ERR_OFFLOAD_DENIED, append(slices.Clone(pair),
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
