package nfs4

import (
	"fmt"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// protectArgs is an EXCHANGE_ID with SP4_MACH_CRED as the Linux client has it.
func protectArgs(owner string, verf byte, flags uint32) args {
	enforce := []any{uint32(2), uint32(0), uint32(mustEnforce >> 32)}
	allow := []any{
		uint32(2), uint32(1<<OpClose | 1<<OpOpenDowngrade | 1<<OpLockU | 1<<OpDelegReturn | 1<<OpCommit),
		uint32(1<<(OpSecInfo-32) | 1<<(OpSecInfoNoName-32) | 1<<(OpLayoutReturn-32) | 1<<(OpTestStateID-32) |
			1<<(OpFreeStateID-32) | 1<<(OpWrite-32)),
	}
	list := append([]any{[8]byte{verf}, owner, flags, uint32(protectMachCred)}, enforce...)
	return op(OpExchangeID, append(append(list, allow...), uint32(0))...)
}

// proven is a caller with Kerberos.
func proven(flavor rpc.AuthFlavor, name string, uid uint32) *rpc.Cred {
	return &rpc.Cred{Flavor: flavor, Principal: name + "@REALM", UID: uid, Unmapped: uid == 0}
}

// protected makes a client with state protection and its session, as the machine.
func (r *rig) protected(owner string) *sess {
	r.t.Helper()
	p := r.compound(2, protectArgs(owner, 1, 0)).ok(OpExchangeID)
	id, seq := p.Uint64(), p.Uint32()
	p.Uint32()
	how := p.Uint32()
	enforce, allow := decodeOps(p.Decoder), decodeOps(p.Decoder)
	if how != protectMachCred || enforce != mustEnforce || allow != mayAllow {
		r.t.Fatalf("state protection %d, %#x, %#x", how, enforce, allow)
	}
	made := r.compound(2, op(OpCreateSession, id, seq, uint32(0), channelArgs(1<<20, 1<<20, 4096, 16, 4),
		channelArgs(0, 0, 0, 0, 0), uint32(0), uint32(0))).ok(OpCreateSession)
	x := &sess{r: r, minor: 2, client: id, id: DecodeSessionID(made.Decoder), peer: r.peer}
	x.do(op(OpReclaimComplete, false)).ok(OpReclaimComplete)
	return x
}

// TestStateProtection: the client and its sessions are changed by its machine alone, with the whole
// call protected. Users go on by the connections that the machine has bound. All of this stands
// over a live upgrade.
func TestStateProtection(t *testing.T) {
	r := newRig(t)
	machine := proven(rpc.AuthKrb5i, "host/client", 0)
	r.conn.Conn = 1
	for _, cred := range []*rpc.Cred{nil, proven(rpc.AuthKrb5, "host/client", 0)} {
		r.gss = cred
		r.compound(2, protectArgs("x", 1, 0)).fails(OpExchangeID, nfs.ErrInval)
	}
	r.gss = machine
	x := r.protected("one")
	strangers := map[string]*rpc.Cred{
		"AUTH_SYS": nil, "another machine": proven(rpc.AuthKrb5p, "host/other", 0),
		"a user": proven(rpc.AuthKrb5i, "games", 5), "the machine without integrity": proven(rpc.AuthKrb5, "host/client", 0),
	}
	create := op(OpCreateSession, x.client, uint32(2), uint32(0), channelArgs(4096, 4096, 512, 8, 1),
		channelArgs(0, 0, 0, 0, 0), uint32(0), uint32(0))
	bind := op(OpBindConnToSession, x.id, uint32(bindFore), false)
	for round := range 2 {
		for name, cred := range strangers {
			r.gss = cred
			for what, c := range map[string]struct {
				do   args
				want nfs.Status
			}{
				"EXCHANGE_ID":               {protectArgs("one", 1, 0), nfs.ErrClientIDInUse},
				"EXCHANGE_ID unprotected":   {exchangeArgs("one", 1, 0), nfs.ErrClientIDInUse},
				"EXCHANGE_ID of a restart":  {exchangeArgs("one", 2, 0), nfs.ErrClientIDInUse},
				"EXCHANGE_ID, an update":    {exchangeArgs("one", 1, exchUpdate), nfs.ErrPerm},
				"CREATE_SESSION":            {create, nfs.ErrWrongCred},
				"BIND_CONN_TO_SESSION":      {bind, nfs.ErrBadSession},
				"DESTROY_SESSION":           {op(OpDestroySession, x.id), nfs.ErrWrongCred},
				"DESTROY_CLIENTID":          {op(OpDestroyClientID, x.client), nfs.ErrWrongCred},
				"BIND_CONN_TO_SESSION both": {op(OpBindConnToSession, x.id, uint32(bindBackOrBoth), false), nfs.ErrBadSession},
			} {
				got := r.compound(2, c.do).status
				if (name == "AUTH_SYS" || cred != nil && cred.Flavor == rpc.AuthKrb5) && got == nfs.ErrInval &&
					what == "EXCHANGE_ID" {
					continue // these cannot ask for state protection
				}
				if got != c.want {
					t.Errorf("%s of %s: %v, not %v", what, name, got, c.want)
				}
			}
		}
		// A connection that the machine has not bound.
		r.conn.Conn = int64(10 + round)
		for _, cred := range []*rpc.Cred{machine, strangers["a user"]} {
			r.gss = cred
			r.compound(2, x.sequence(x.seq+1, 0)).fails(OpSequence, nfs.ErrConnNotBound)
		}
		r.gss = machine
		r.compound(2, bind).ok(OpBindConnToSession)
		for _, conn := range []int64{1, r.conn.Conn} {
			r.conn.Conn = conn
			for _, cred := range []*rpc.Cred{machine, strangers["a user"]} {
				r.gss = cred
				x.do(op(OpPutRootFH)).ok(OpPutRootFH)
			}
		}
		r.gss = machine
		if round == 0 {
			r.succeed()
		}
	}
	r.conn.Conn = 99 // the machine may end the session from anywhere
	r.compound(2, exchangeArgs("one", 1, exchUpdate)).ok(OpExchangeID)
	r.compound(2, create).ok(OpCreateSession)
	r.compound(2, op(OpDestroySession, x.id)).ok(OpDestroySession)
}

// TestCleanUp: the machine releases what users have, in exports that do not accept its flavor, and
// gets at nothing else there.
func TestCleanUp(t *testing.T) {
	for _, accepted := range []nfs.Flavors{nfs.FlavorKrb5, nfs.FlavorKrb5p} {
		t.Run(fmt.Sprint(accepted), func(t *testing.T) { testCleanUp(t, accepted) })
	}
}

func testCleanUp(t *testing.T, accepted nfs.Flavors) {
	r := newRig(t)
	machine := proven(rpc.AuthKrb5i, "host/client", 0)
	r.gss = machine
	x := r.protected("one")
	r.gss = nil
	dir := x.handle("one")
	fh, open := x.make(dir, "file")
	lock := DecodeStateid(x.do(op(OpPutFH, fh), op(OpLock, LockWrite, false, uint64(0), uint64(10), true, uint32(0), open,
		uint32(0), uint64(0), "o")).ok(OpPutFH).ok(OpLock).Decoder)
	for _, e := range r.table.Exports() {
		for i := range e.Clients {
			e.Clients[i].Flavors = accepted
		}
	}
	put, attr := op(OpPutFH, fh), op(OpGetAttr, BitmapOf(AttrSize))
	unlock := op(OpLockU, LockWrite, uint32(0), lock, uint64(0), uint64(10))
	closing := op(OpClose, uint32(0), open)
	reading := op(OpRead, state.Anonymous, uint64(0), uint32(10))
	for _, cred := range []*rpc.Cred{nil, proven(rpc.AuthKrb5i, "games", 5), proven(rpc.AuthKrb5i, "host/other", 0)} {
		r.gss = cred
		for _, do := range []args{closing, unlock} {
			x.do(put, do).fails(OpPutFH, nfs.ErrWrongSec)
		}
	}
	r.gss = machine
	for _, do := range []args{reading, op(OpLookup, "x"), attr, op(OpCommit, uint64(0), uint32(0))} {
		x.do(put, do).fails(OpPutFH, nfs.ErrWrongSec)
	}
	if p := x.do(put, unlock, reading).ok(OpPutFH).ok(OpLockU); p.status != nfs.ErrAcces {
		t.Errorf("READ behind LOCKU: %v", p.status)
	}
	lock.Seq++
	p := x.do(put, attr, closing, attr, reading)
	if p.status != nfs.ErrAcces {
		t.Errorf("READ behind CLOSE: %v", p.status)
	}
	x.do(put, closing).ok(OpPutFH).fails(OpClose, nfs.ErrBadStateID) // it was closed
	r.gss = proven(rpc.AuthKrb5, "games", 5)
	want := nfs.OK
	if accepted != nfs.FlavorKrb5 {
		want = nfs.ErrWrongSec
	}
	if got := x.do(put, attr).status; got != want {
		t.Errorf("GETATTR by krb5: %v", got)
	}
}

// TestCallbackFlavor40: a client of version 4.0 is called by the flavor of its SETCLIENTID, to the
// principal that it had there, and as the principal that it has named.
func TestCallbackFlavor40(t *testing.T) {
	for _, flavor := range []rpc.AuthFlavor{rpc.AuthKrb5, rpc.AuthKrb5i, rpc.AuthKrb5p} {
		r := newRig(t)
		back := &callee40{t: t}
		r.called40(back)
		r.gss = proven(flavor, "host/client", 0)
		r.gss.Acceptor = "nfs/server@REALM"
		c := r.client40("x", 1)
		want := state.Secure{Flavor: flavor, Client: "host/client@REALM", Acceptor: "nfs/server@REALM"}
		if back.secure == nil || *back.secure != want || back.null != 1 {
			t.Fatalf("%+v, %d probes", back.secure, back.null)
		}
		machine := r.gss
		r.gss = nil
		x := r.session(2, "later")
		dir := x.handle("one")
		x.file("file")
		r.gss = machine
		c.open(state.Read, 0, "o", "file")
		if _, o := c.open(state.Read, 0, "o", "file"); o.deleg != delegRead {
			t.Fatalf("delegation %d", o.deleg)
		}
		r.gss = nil
		x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrJukebox)
		if len(back.recall) != 1 {
			t.Errorf("%d recalls", len(back.recall))
		}
	}
}
