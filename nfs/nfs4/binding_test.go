package nfs4

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestSessionsOfOthers: who is another by TLS, partition, address or user cannot use, bind or end
// a session, nor end its client. What ends nothing else the client itself still can.
func TestSessionsOfOthers(t *testing.T) {
	tls := rpc.Peer{Security: rpc.MutualTLS, Name: "one.example"}
	for _, c := range []struct {
		name        string
		owner, from rpc.Peer // of the connections
		peer        string   // of the other
		uid         uint32
		use, bind   nfs.Status // what the other is answered
	}{
		{
			"another name", tls,
			rpc.Peer{Security: rpc.MutualTLS, Name: "two.example"},
			friend, 0, nfs.ErrBadSession,
			nfs.ErrBadSession,
		},
		{
			"another name and address", tls,
			rpc.Peer{Security: rpc.MutualTLS, Name: "two.example"},
			reader, 0,
			nfs.ErrBadSession, nfs.ErrBadSession,
		},
		{"no certificate", tls, rpc.Peer{Security: rpc.TLS}, friend, 0, nfs.ErrBadSession, nfs.ErrBadSession},
		{"no TLS", tls, rpc.Peer{}, friend, 0, nfs.ErrBadSession, nfs.ErrBadSession},
		{"TLS", rpc.Peer{}, tls, friend, 0, nfs.ErrBadSession, nfs.ErrBadSession},
		{
			"another partition",
			rpc.Peer{PKey: 0x8001},
			rpc.Peer{PKey: 0x8002},
			friend, 0, nfs.ErrBadSession,
			nfs.ErrBadSession,
		},
		{"no partition", rpc.Peer{PKey: 0x8001}, rpc.Peer{}, friend, 0, nfs.ErrBadSession, nfs.ErrBadSession},
		{"another user", rpc.Peer{}, rpc.Peer{}, friend, 1000, nfs.OK, nfs.ErrBadSession},
		{"another address and user", rpc.Peer{}, rpc.Peer{}, reader, 1000, nfs.ErrConnNotBound, nfs.ErrBadSession},
		{"a limited member, another port", rpc.Peer{PKey: 0x8001}, rpc.Peer{PKey: 0x0001}, "10.0.0.1:701", 0, nfs.OK, nfs.OK},
		{"the default partition and TCP", rpc.Peer{PKey: 0xffff}, rpc.Peer{}, friend, 0, nfs.OK, nfs.OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.conn = c.owner
			x := r.session(2, "owner")
			mine := func() { r.conn, r.peer, r.uid = c.owner, friend, 0 }
			other := func() { r.conn, r.peer, r.uid = c.from, c.peer, c.uid }
			other()
			if got := r.compound(2, x.sequence(x.seq+1, 0)).status; got != c.use {
				t.Errorf("SEQUENCE: %v, not %v", got, c.use)
			} else if got == nfs.OK {
				x.seq++
			}
			if got := r.compound(2, op(OpBindConnToSession, x.id, uint32(bindFore), false)).status; got != c.bind {
				t.Errorf("BIND_CONN_TO_SESSION: %v, not %v", got, c.bind)
			}
			if c.bind != nfs.OK {
				if got := r.compound(2, op(OpDestroySession, x.id)).status; got != nfs.ErrBadSession {
					t.Errorf("DESTROY_SESSION: %v", got)
				}
				again := op(OpCreateSession, x.client, uint32(1), uint32(2), channelArgs(4096, 4096, 0, 2, 16),
					channelArgs(4096, 4096, 0, 2, 16), uint32(0), uint32(1), uint32(0))
				if got := r.compound(2, again).status; got == nfs.OK || got == nfs.ErrSeqMisordered {
					t.Errorf("CREATE_SESSION, as a retry that would be told the session: %v", got)
				}
				if r.s.Faults()["nfs4_sessions_denied"] == 0 {
					t.Error("nothing was counted")
				}
				mine()
				x.do()
			}
			mine()
			if got := r.compound(2, op(OpDestroySession, x.id)).status; got != nfs.OK {
				t.Errorf("DESTROY_SESSION of its own: %v", got)
			}
			other()
			if got := r.compound(2, op(OpDestroyClientID, x.client)).status; c.bind != nfs.OK && got != nfs.ErrStaleClientID {
				t.Errorf("DESTROY_CLIENTID: %v", got)
			}
			mine()
			if got := r.compound(2, op(OpDestroyClientID, x.client)).status; c.bind != nfs.OK && got != nfs.OK {
				t.Errorf("DESTROY_CLIENTID of its own: %v", got)
			}
		})
	}
}

// TestOwnerStringsOfOthers: over another identity the same owner string is another client's, in all
// minor versions.
func TestOwnerStringsOfOthers(t *testing.T) {
	r := newRig(t)
	r.conn = rpc.Peer{Security: rpc.MutualTLS, Name: "one.example"}
	x := r.session(1, "owner")
	f := r.client40("four", 1)
	r.conn.Name = "two.example"
	r.session(1, "owner")
	if id, _, _ := r.exchange("owner", 9); id == x.client {
		t.Error("a client is told another's ID")
	}
	if got := r.compound(0, op(OpRenew, f.id)).status; got != nfs.ErrStaleClientID {
		t.Errorf("RENEW of another's: %v", got)
	}
	r.client40("four", 7)
	r.conn.Name = "one.example"
	x.do()
	if got := r.compound(0, op(OpRenew, f.id)).status; got != nfs.OK {
		t.Errorf("RENEW: %v", got)
	}
	for _, c := range r.s.state.Clients(r.now) {
		if c.Owner != "owner" && c.Owner != "four" {
			t.Errorf("a client is shown as %q", c.Owner)
		}
	}
}

// TestClientMoves: a client that comes from another address keeps its session, once it has bound it
// from there or has named its verifier.
func TestClientMoves(t *testing.T) {
	for _, how := range []string{"BIND_CONN_TO_SESSION", "EXCHANGE_ID", "CREATE_SESSION"} {
		r := newRig(t)
		x := r.session(1, "owner")
		r.peer = reader
		if got := r.compound(1, x.sequence(x.seq+1, 0)).status; got != nfs.ErrConnNotBound {
			t.Fatalf("SEQUENCE from elsewhere: %v", got)
		}
		create := op(OpCreateSession, x.client, uint32(2), uint32(2), channelArgs(4096, 4096, 512, 8, 8),
			channelArgs(4096, 4096, 0, 2, 16), uint32(0), uint32(1), uint32(0))
		switch how {
		case "BIND_CONN_TO_SESSION":
			r.compound(1, op(OpBindConnToSession, x.id, uint32(bindFore), false)).ok(OpBindConnToSession)
		case "CREATE_SESSION":
			// The Linux kernel says EXCHANGE_ID after DELAY.
			r.compound(1, create).fails(OpCreateSession, nfs.ErrJukebox)
			fallthrough
		case "EXCHANGE_ID":
			if id, _, flags := r.exchange("owner", 1); id != x.client || flags&exchConfirmed == 0 {
				t.Errorf("%s: another client, %x", how, flags)
			}
			r.compound(1, create).ok(OpCreateSession)
		}
		for _, r.peer = range []string{reader, friend} {
			x.peer = r.peer // it is not bound once more
			x.do()
		}
		for i := range 40 { // addresses of a client are bounded
			r.peer = fmt.Sprintf("10.1.0.%d:700", i)
			r.compound(1, op(OpBindConnToSession, x.id, uint32(bindFore), false)).ok(OpBindConnToSession)
		}
		x.peer = r.peer
		x.do()
		r.peer = friend
		if got := r.compound(1, x.sequence(x.seq+1, 0)).status; got != nfs.ErrConnNotBound {
			t.Errorf("%s: the oldest of 40 addresses: %v", how, got)
		}
	}
	r := newRig(t)
	x := r.session(1, "owner")
	r.peer = reader
	r.now = r.now.Add(time.Hour)
	r.compound(1, op(OpCreateSession, x.client, uint32(2), uint32(2), channelArgs(4096, 4096, 512, 8, 8),
		channelArgs(4096, 4096, 0, 2, 16), uint32(0), uint32(1), uint32(0))).
		fails(OpCreateSession, nfs.ErrStaleClientID)
}

// TestSessionIDsAreRandom: nothing of one tells another one.
func TestSessionIDsAreRandom(t *testing.T) {
	r := newRig(t)
	one, two := r.session(1, "one"), r.session(1, "two")
	same := 0
	for i := 4; i < len(one.id); i++ {
		if one.id[i] == two.id[i] {
			same++
		}
	}
	if same > 6 {
		t.Errorf("%x and %x have %d bytes of 12 in common", one.id, two.id, same)
	}
}

// TestStrangersAreAudited: with who it was, and not each of many.
func TestStrangersAreAudited(t *testing.T) {
	r := newRig(t)
	var b strings.Builder
	r.s.cfg.Audit = slog.New(slog.NewTextHandler(&b, nil))
	x := r.session(1, "owner")
	b.Reset()
	r.peer, r.uid = stranger, 1000
	for range 100 {
		r.compound(1, op(OpDestroySession, x.id))
	}
	if n := strings.Count(b.String(), "nfs4_session_denied"); n != 1 ||
		!strings.Contains(b.String(), "client=192.0.2.1") || !strings.Contains(b.String(), "operation=DESTROY_SESSION") {
		t.Errorf("%d lines: %s", n, b.String())
	}
	r.now = r.now.Add(2 * time.Second)
	r.compound(1, op(OpDestroySession, x.id))
	if n := strings.Count(b.String(), "nfs4_session_denied"); n > 2 {
		t.Errorf("%d lines", n)
	}
}

// TestBindingOutlivesUpgrades: the process that takes over knows whose a session is.
func TestBindingOutlivesUpgrades(t *testing.T) {
	r := newRig(t)
	r.conn = rpc.Peer{PKey: 0x8001}
	x := r.session(1, "owner")
	x.do()
	r.succeed()
	r.conn.PKey = 0x8002
	if got := r.compound(1, x.sequence(x.seq+1, 0)).status; got != nfs.ErrBadSession {
		t.Errorf("another partition: %v", got)
	}
	r.conn.PKey, r.peer = 0x8001, reader
	if got := r.compound(1, x.sequence(x.seq+1, 0)).status; got != nfs.ErrConnNotBound {
		t.Errorf("another address: %v", got)
	}
	r.peer = friend
	x.do()
}

// TestMemoryByExports: who may make the server remember how much depends on whether an export
// admits him.
func TestMemoryByExports(t *testing.T) {
	r := newRig(t)
	r.limits.Memory = 16 << 20
	if err := r.table.Remove("/deep/two"); err != nil { // it is for everybody
		t.Fatal(err)
	}
	r.start(8)
	b := new(strings.Builder)
	r.s.cfg.Logger = slog.New(slog.NewTextHandler(b, nil))
	r.peer = stranger
	refused := 0
	for i := range 200 {
		p := r.compound(1, exchangeArgs(fmt.Sprint("stranger", i), 1, 0))
		if p.status != nfs.OK {
			p.fails(OpExchangeID, nfs.ErrJukebox)
			refused++
		}
	}
	if n := r.s.state.Memory().Bytes; refused == 0 || n > 16<<20/64 {
		t.Errorf("%d were refused, %d bytes", refused, n)
	}
	if n := strings.Count(b.String(), "nfs4_memory"); n != 1 || r.s.Faults()["nfs4_memory_refused"] == 0 {
		t.Errorf("%d lines in the log, %v", n, r.s.Faults())
	}
	r.peer = friend
	for i := range 10 {
		r.session(1, fmt.Sprint("friend", i)).do()
	}
	r.client40("friend of old", 1)
}
