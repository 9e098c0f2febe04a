// Package oracle holds the version 4 server and client against an XDR codec that others
// wrote: go-xdr, whose Go code is generated from the .x files of RFC 7531, RFC 5662 and
// RFC 7863. Requests are made by it, replies are taken apart by it to the last byte and
// must come out the same when it puts them together again.
//
// It knows the operations up to CLONE. Those of RFC 8276 (GETXATTR, SETXATTR, LISTXATTRS,
// REMOVEXATTR), its attribute xattr_support, and mode_umask of RFC 8275 are beyond it: a
// compound that has one is not looked at here. It checks no enumeration that no union is
// made of, so that a file type or a lock type that does not exist passes it.
package oracle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"
	"github.com/buildbarn/go-xdr/pkg/protocols/rpcv2"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// rig is a server with an export of memory at /data, where root is root.
type rig struct {
	t    testing.TB
	s    *nfs4.Server
	srv  *rpc.Server
	now  time.Time
	back rpc.Caller // of the connection; nil: it has none

	uid  uint32
	xid  uint32
	sent map[x4.NfsOpnum4]map[uint32]bool // operations, by minor version
}

func newRig(t testing.TB) *rig {
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{
		ID: 1, Path: "/srv/data", Pseudo: "/data", FS: memfs.New(memfs.Options{FSID: 77, MaxBytes: 64 << 20}),
		Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Squash: nfs.NoRootSquash}},
	}); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, now: time.Unix(1_700_000_000, 0), sent: make(map[x4.NfsOpnum4]map[uint32]bool)}
	r.s = nfs4.New(nfs4.Config{
		Config:   nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("secret"))},
		Identity: []byte("id"), Boot: 7, Locks: lock.New(0), Now: func() time.Time { return r.now },
	})
	r.srv = rpc.NewServer(rpc.ServerConfig{Programs: r.s.Programs(), Workers: 1})
	t.Cleanup(r.srv.Close)
	return r
}

// bytesOf is v as go-xdr writes it.
func bytesOf(t testing.TB, v io.WriterTo) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := v.WriteTo(&b); err != nil {
		t.Fatalf("%T: %v", v, err)
	}
	return b.Bytes()
}

// call is an RPC call of COMPOUND but for its arguments.
func (r *rig) call() []byte {
	r.xid++
	sys := bytesOf(r.t, &rpcv2.AuthsysParms{Machinename: "oracle", Uid: r.uid})
	return bytesOf(r.t, &rpcv2.RpcMsg{Xid: r.xid, Body: &rpcv2.RpcMsgBody_CALL{Cbody: rpcv2.CallBody{
		Rpcvers: 2, Prog: nfs4.Program, Vers: nfs4.Version, Proc: nfs4.ProcCompound,
		Cred: rpcv2.OpaqueAuth{Flavor: rpcv2.AUTH_SYS, Body: sys},
	}}})
}

// send sends the arguments of a COMPOUND as they are. accepted is false where RPC refused
// them; otherwise the results are returned.
func (r *rig) send(args []byte) (res []byte, accepted bool) {
	r.t.Helper()
	msg := append(r.call(), args...)
	done := make(chan []byte, 1)
	c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort("10.0.0.1:700")}, BulkMax: -1, Back: r.back}
	c.Reply = func(c *rpc.Call, _ bool) { done <- c.Res.AppendFlat(nil) }
	r.srv.Dispatch(c, xdr.NewDecoder(msg), false)
	var raw []byte
	select {
	case raw = <-done:
	case <-time.After(30 * time.Second):
		r.t.Fatal("no reply")
	}
	in := bytes.NewReader(raw)
	var m rpcv2.RpcMsg
	if _, err := m.ReadFrom(in); err != nil {
		r.t.Fatalf("the reply %x is not one of RPC: %v", raw, err)
	}
	if m.Xid != r.xid {
		r.t.Errorf("transaction %d instead of %d", m.Xid, r.xid)
	}
	reply, ok := m.Body.(*rpcv2.RpcMsgBody_REPLY)
	if !ok {
		r.t.Fatalf("a %T", m.Body)
	}
	a, ok := reply.Rbody.(*rpcv2.ReplyBody_MSG_ACCEPTED)
	if !ok {
		r.t.Fatalf("denied: %v", reply.Rbody)
	}
	if stat := a.Areply.ReplyData.GetStat(); stat != rpcv2.SUCCESS {
		if stat != rpcv2.GARBAGE_ARGS || in.Len() != 0 {
			r.t.Errorf("accept status %v with %d bytes", stat, in.Len())
		}
		return nil, false
	}
	return raw[len(raw)-in.Len():], true
}

// parse takes results apart. It fails where go-xdr sees others than those bytes.
func parse(t testing.TB, raw []byte) *x4.Compound4res {
	t.Helper()
	in := bytes.NewReader(raw)
	res := new(x4.Compound4res)
	if _, err := res.ReadFrom(in); err != nil {
		t.Fatalf("the results %x do not decode: %v", raw, err)
	}
	if in.Len() != 0 {
		t.Fatalf("%d bytes are left of the results %x", in.Len(), raw)
	}
	if again := bytesOf(t, res); !bytes.Equal(again, raw) {
		t.Fatalf("the results are\n%x, and put together again\n%x", raw, again)
	}
	// The first operation that fails is the last, and its status that of the whole.
	for i, op := range res.Resarray {
		want := x4.NFS4_OK
		if i == len(res.Resarray)-1 {
			want = res.Status
		}
		if st := statusOf(t, op); st != want {
			t.Errorf("result %d of %d: %v, %v in all", i, len(res.Resarray), st, res.Status)
		}
	}
	return res
}

// statusOf is the status of a result.
func statusOf(t testing.TB, op x4.NfsResop4) x4.Nfsstat4 {
	t.Helper()
	return x4.Nfsstat4(binary.BigEndian.Uint32(bytesOf(t, op)[4:]))
}

// compound sends operations and takes the results apart.
func (r *rig) compound(minor uint32, ops ...x4.NfsArgop4) *x4.Compound4res {
	r.t.Helper()
	for _, op := range ops {
		n := op.GetArgop()
		if r.sent[n] == nil {
			r.sent[n] = make(map[uint32]bool)
		}
		r.sent[n][minor] = true
	}
	raw, ok := r.send(bytesOf(r.t, &x4.Compound4args{Tag: "täg", Minorversion: minor, Argarray: ops}))
	if !ok {
		r.t.Fatalf("refused: %v", ops)
	}
	res := parse(r.t, raw)
	if res.Tag != "täg" || len(res.Resarray) > len(ops) || res.Status == x4.NFS4_OK && len(res.Resarray) != len(ops) {
		r.t.Errorf("tag %q, %d results of %d operations, %v", res.Tag, len(res.Resarray), len(ops), res.Status)
	}
	for i, got := range res.Resarray {
		if got.GetResop() != ops[i].GetArgop() {
			r.t.Errorf("a result of %v for %v", got.GetResop(), ops[i].GetArgop())
		}
	}
	return res
}

// get is the only field of a result, which must be a T.
func get[T any](t testing.TB, op x4.NfsResop4) T {
	t.Helper()
	f := reflect.ValueOf(op).Elem().Field(0).Interface()
	v, ok := f.(T)
	if !ok {
		t.Fatalf("a %T instead of a %T (status %v)", f, v, statusOf(t, op))
	}
	return v
}

// sess is a session of a client.
type sess struct {
	*rig
	minor  uint32
	client uint64
	id     [16]byte
	seq    uint32
	cache  bool
}

func channel(req, resp, cached, ops, slots uint32) x4.ChannelAttrs4 {
	return x4.ChannelAttrs4{
		CaMaxrequestsize: req, CaMaxresponsesize: resp, CaMaxresponsesizeCached: cached, CaMaxoperations: ops,
		CaMaxrequests: slots,
	}
}

// session makes a client with a session, and says that it has nothing to reclaim.
func (r *rig) session(minor uint32, owner string) *sess {
	r.t.Helper()
	ei := r.compound(minor, &x4.NfsArgop4_OP_EXCHANGE_ID{OpexchangeId: x4.ExchangeId4args{
		EiaClientowner: x4.ClientOwner4{CoVerifier: [8]byte{1}, CoOwnerid: []byte(owner)},
		EiaFlags:       x4.EXCHGID4_FLAG_USE_NON_PNFS, EiaStateProtect: &x4.StateProtect4A_SP4_NONE{},
		EiaClientImplId: []x4.NfsImplId4{{
			NiiDomain: "example.org", NiiName: "oracle",
			NiiDate: x4.Nfstime4{Seconds: -1, Nseconds: 5},
		}},
	}})
	id := get[*x4.ExchangeId4res_NFS4_OK](r.t, ei.Resarray[0]).EirResok4
	if id.EirFlags != x4.EXCHGID4_FLAG_USE_NON_PNFS || len(id.EirServerImplId) != 1 ||
		id.EirServerImplId[0].NiiName != "rstored" {
		r.t.Errorf("%+v", id)
	}
	if _, ok := id.EirStateProtect.(*x4.StateProtect4R_SP4_NONE); !ok ||
		!slices.Equal(id.EirServerOwner.SoMajorId, id.EirServerScope) {
		r.t.Errorf("%+v", id)
	}
	var flags uint32
	if r.back != nil {
		flags = x4.CREATE_SESSION4_FLAG_CONN_BACK_CHAN
	}
	asked := channel(1<<20, 1<<20, 4096, 32, 4)
	asked.CaRdmaIrd = []uint32{7}
	cs := r.compound(minor, &x4.NfsArgop4_OP_CREATE_SESSION{OpcreateSession: x4.CreateSession4args{
		CsaClientid: id.EirClientid, CsaSequence: id.EirSequenceid, CsaFlags: flags,
		CsaForeChanAttrs: asked, CsaBackChanAttrs: channel(4096, 4096, 0, 4, 2), CsaCbProgram: 0x40000000,
		CsaSecParms: []x4.CallbackSecParms4{
			&x4.CallbackSecParms4_RPCSEC_GSS{CbspGssHandles: x4.GssCbHandles4{
				GcbpService: x4.RPC_GSS_SVC_NONE, GcbpHandleFromServer: []byte("abc"), GcbpHandleFromClient: []byte("d"),
			}},
			&x4.CallbackSecParms4_AUTH_SYS{CbspSysCred: rpcv2.AuthsysParms{
				Machinename: "host", Uid: 1, Gid: 2,
				Gids: []uint32{3, 4},
			}},
			&x4.CallbackSecParms4_AUTH_NONE{},
		},
	}})
	got := get[*x4.CreateSession4res_NFS4_OK](r.t, cs.Resarray[0]).CsrResok4
	if f := got.CsrForeChanAttrs; got.CsrSequence != id.EirSequenceid || got.CsrFlags != flags ||
		f.CaMaxrequestsize != 1<<20 || f.CaMaxoperations != 32 || f.CaMaxrequests != 4 {
		r.t.Errorf("%+v", got)
	}
	s := &sess{rig: r, minor: minor, client: id.EirClientid, id: got.CsrSessionid}
	s.one(&x4.NfsArgop4_OP_RECLAIM_COMPLETE{})
	return s
}

// try sends operations in a slot, and returns the results behind SEQUENCE, and the status.
func (s *sess) try(ops ...x4.NfsArgop4) ([]x4.NfsResop4, x4.Nfsstat4) {
	s.t.Helper()
	s.seq++
	head := x4.Sequence4args{SaSessionid: s.id, SaSequenceid: s.seq, SaSlotid: 2, SaHighestSlotid: 3, SaCachethis: s.cache}
	res := s.compound(s.minor, append([]x4.NfsArgop4{&x4.NfsArgop4_OP_SEQUENCE{Opsequence: head}}, ops...)...)
	got := get[*x4.Sequence4res_NFS4_OK](s.t, res.Resarray[0]).SrResok4
	if got.SrSessionid != s.id || got.SrSequenceid != s.seq || got.SrSlotid != 2 || got.SrHighestSlotid != 3 ||
		got.SrTargetHighestSlotid != 3 {
		s.t.Errorf("%+v", got)
	}
	return res.Resarray[1:], res.Status
}

// do is try for operations that have to succeed.
func (s *sess) do(ops ...x4.NfsArgop4) []x4.NfsResop4 {
	s.t.Helper()
	res, st := s.try(ops...)
	if st != x4.NFS4_OK {
		s.t.Fatalf("%T: %v", ops[len(res)-1], name(st))
	}
	return res
}

// one is the result of the last of some operations.
func (s *sess) one(ops ...x4.NfsArgop4) x4.NfsResop4 {
	s.t.Helper()
	res := s.do(ops...)
	return res[len(res)-1]
}

// fails is for operations of which the last has to fail so.
func (s *sess) fails(want x4.Nfsstat4, ops ...x4.NfsArgop4) x4.NfsResop4 {
	s.t.Helper()
	res, st := s.try(ops...)
	if st != want || len(res) != len(ops) {
		s.t.Errorf("%T, number %d of %d: %v instead of %v", ops[len(res)-1], len(res), len(ops), name(st), name(want))
	}
	return res[len(res)-1]
}

func name(st x4.Nfsstat4) string {
	if n := x4.Nfsstat4_name[st]; n != "" {
		return n
	}
	return fmt.Sprint(int32(st))
}

func putFH(fh []byte) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_PUTFH{Opputfh: x4.Putfh4args{Object: fh}}
}

func lookup(n string) x4.NfsArgop4 {
	return &x4.NfsArgop4_OP_LOOKUP{Oplookup: x4.Lookup4args{Objname: n}}
}

// handle walks from the root to a file handle.
func (s *sess) handle(path ...string) []byte {
	s.t.Helper()
	ops := []x4.NfsArgop4{&x4.NfsArgop4_OP_PUTROOTFH{}}
	for _, n := range path {
		ops = append(ops, lookup(n))
	}
	return get[*x4.Getfh4res_NFS4_OK](s.t, s.one(append(ops, &x4.NfsArgop4_OP_GETFH{})...)).Resok4.Object
}
