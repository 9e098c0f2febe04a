package state

import (
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

var (
	begin = time.Unix(1_700_000_000, 0)
	root  = Principal{Flavor: rpc.AuthSys}
	user  = Principal{Flavor: rpc.AuthSys, UID: 1000}
	fileA = testFile(1)
	fileB = testFile(2)
)

func testFile(n byte) lock.File {
	f := lock.File{Export: 1}
	f.Handle.Len = 1
	f.Handle.B[0] = n
	return f
}

func testServer() *Server { return New(Config{Boot: 7, Lease: 90 * time.Second}) }

func verifier(n byte) Verifier { return Verifier{n} }

// channel is that of a session with few slots.
var channel = Channel{MaxRequest: 4096, MaxResponse: 4096, MaxCached: 512, MaxOps: 8, MaxSlots: 4}

// join makes a client with a session that may open files.
func join(t testing.TB, s *Server, now time.Time, owner string) (*Client, *Session) {
	t.Helper()
	got, st := s.ExchangeID(now, &ExchangeID{Owner: []byte(owner), Verifier: verifier(1), Principal: root})
	if st != nfs.OK {
		t.Fatal(st)
	}
	made, st := s.CreateSession(now,
		&CreateSession{Client: got.Client, Sequence: got.Sequence, Principal: root, Minor: 1, Fore: channel})
	if st != nfs.OK {
		t.Fatal(st)
	}
	c, st := s.Client(got.Client)
	if st != nfs.OK {
		t.Fatal(st)
	}
	if st := c.ReclaimComplete(); st != nfs.OK {
		t.Fatal(st)
	}
	return c, s.Session(made.ID)
}

// TestExchangeID goes through the cases of RFC 8881 section 18.35.4.
func TestExchangeID(t *testing.T) {
	type ask struct {
		verf   byte
		who    Principal
		update bool
	}
	for _, c := range []struct {
		name  string
		state string // none, unconfirmed, confirmed, open, expired, nothing: confirmed, without a session
		ask   ask
		want  nfs.Status
		same  bool // the ID of before
	}{
		{"new owner", "none", ask{1, root, false}, nfs.OK, false},
		{"update of nothing", "none", ask{1, root, true}, nfs.ErrNoEnt, false},
		{"unconfirmed, again", "unconfirmed", ask{1, root, false}, nfs.OK, false},
		{"unconfirmed, restarted", "unconfirmed", ask{2, root, false}, nfs.OK, false},
		{"unconfirmed, other principal", "unconfirmed", ask{1, user, false}, nfs.OK, false},
		{"update of unconfirmed", "unconfirmed", ask{1, root, true}, nfs.ErrNoEnt, false},
		{"confirmed, again", "confirmed", ask{1, root, false}, nfs.OK, true},
		{"confirmed, restarted", "confirmed", ask{2, root, false}, nfs.OK, false},
		{"update", "confirmed", ask{1, root, true}, nfs.OK, true},
		{"update, other verifier", "confirmed", ask{2, root, true}, nfs.ErrNotSame, false},
		{"update, other principal", "confirmed", ask{1, user, true}, nfs.ErrPerm, false},
		{"other principal, neither session nor open", "nothing", ask{1, user, false}, nfs.OK, false},
		{"other principal and verifier, neither session nor open", "nothing", ask{2, user, false}, nfs.OK, false},
		{"other principal, a session", "confirmed", ask{1, user, false}, nfs.ErrClientIDInUse, false},
		{"other principal, something open", "open", ask{1, user, false}, nfs.ErrClientIDInUse, false},
		{"other principal, expired", "expired", ask{1, user, false}, nfs.OK, false},
	} {
		s, now := testServer(), begin
		var before uint64
		switch c.state {
		case "unconfirmed":
			got, _ := s.ExchangeID(now, &ExchangeID{Owner: []byte("o"), Verifier: verifier(1), Principal: root})
			before = got.Client
		case "confirmed", "open", "expired", "nothing":
			x, session := join(t, s, now, "o")
			before = x.ID
			switch c.state {
			case "nothing":
				if st := s.DestroySession(session.ID, &By{Principal: root}); st != nfs.OK {
					t.Fatal(st)
				}
			case "open", "expired":
				if _, st := x.Open(now, &Open{Owner: []byte("p"), File: fileA, Access: Read}); st != nfs.OK {
					t.Fatal(st)
				}
			}
			if c.state == "expired" {
				now = now.Add(91 * time.Second)
			}
		}
		got, st := s.ExchangeID(now, &ExchangeID{
			Owner: []byte("o"), Verifier: verifier(c.ask.verf), Principal: c.ask.who,
			Update: c.ask.update,
		})
		if st != c.want || st == nfs.OK && (got.Client == before) != c.same || got.Confirmed != c.same {
			t.Errorf("%s: %+v %v, before it was %x", c.name, got, st, before)
		}
		// Case 3: the record of before is gone at once, with its sessions and opens.
		if st == nfs.OK && c.ask.who != root && c.state != "unconfirmed" {
			if _, st := s.CreateSession(now,
				&CreateSession{Client: before, Sequence: 2, Principal: root, Minor: 1, Fore: channel}); st != nfs.ErrStaleClientID {
				t.Errorf("%s: a session of the client of before: %v", c.name, st)
			}
			if n := s.Counts(); n != (Counts{Clients: 1}) {
				t.Errorf("%s: %+v", c.name, n)
			}
			made, st := s.CreateSession(now,
				&CreateSession{Client: got.Client, Sequence: got.Sequence, Principal: user, Minor: 1, Fore: channel})
			if st != nfs.OK || s.Session(made.ID) == nil {
				t.Errorf("%s: a session of the new client: %v", c.name, st)
			}
		}
	}
}

// TestUnconfirmed: a client that is not confirmed within its lease is gone, whether or not anybody
// else comes.
func TestUnconfirmed(t *testing.T) {
	at := begin.Add(90*time.Second + 1)
	s := testServer()
	early, _ := s.ExchangeID(begin, &ExchangeID{Owner: []byte("early"), Verifier: verifier(1), Principal: root})
	late, _ := s.ExchangeID(begin, &ExchangeID{Owner: []byte("late"), Verifier: verifier(1), Principal: root})
	four, _ := s.SetClientID(begin, &SetClientID{Owner: []byte("four"), Verifier: verifier(1), Principal: root})
	create := func(x Exchanged, now time.Time) nfs.Status {
		_, st := s.CreateSession(now, &CreateSession{
			Client: x.Client, Sequence: x.Sequence, Principal: root, Minor: 1,
			Fore: channel,
		})
		return st
	}
	if st := create(early, begin.Add(90*time.Second)); st != nfs.OK {
		t.Errorf("within the lease: %v", st)
	}
	if st := create(late, at); st != nfs.ErrStaleClientID {
		t.Errorf("after the lease: %v", st)
	}
	if _, _, st := s.ConfirmClientID(at, four.Client, four.Confirm, root); st != nfs.ErrStaleClientID {
		t.Errorf("of version 4.0, after the lease: %v", st)
	}
	if list := s.Clients(at); len(list) != 1 || list[0].ID != early.Client {
		t.Errorf("listed: %+v", list)
	}
	s.Sweep(at)
	if n := s.Counts(); n != (Counts{Clients: 1, Sessions: 1}) {
		t.Errorf("%+v", n)
	}
	// The same owners come back.
	again, st := s.ExchangeID(at, &ExchangeID{Owner: []byte("late"), Verifier: verifier(1), Principal: root})
	if st != nfs.OK || again.Client == late.Client {
		t.Errorf("%+v %v", again, st)
	}
	if st := create(again, at); st != nfs.OK {
		t.Error(st)
	}
	four2, st := s.SetClientID(at, &SetClientID{Owner: []byte("four"), Verifier: verifier(1), Principal: root})
	if st != nfs.OK || four2.Client == four.Client {
		t.Errorf("%+v %v", four2, st)
	}
	if _, _, st := s.ConfirmClientID(at, four2.Client, four2.Confirm, root); st != nfs.OK {
		t.Error(st)
	}
}

// TestRestartedClient: what a client had goes when its new self is confirmed, and no
// sooner.
func TestRestartedClient(t *testing.T) {
	s := testServer()
	c, x := join(t, s, begin, "o")
	if _, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Both, Deny: Both}); st != nfs.OK {
		t.Fatal(st)
	}
	other, _ := join(t, s, begin, "other")
	try := func() nfs.Status {
		_, st := other.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read})
		return st
	}
	got, _ := s.ExchangeID(begin, &ExchangeID{Owner: []byte("o"), Verifier: verifier(2), Principal: root})
	if st := try(); st != nfs.ErrShareDenied {
		t.Errorf("before the new client is confirmed: %v", st)
	}
	if _, st := s.CreateSession(begin,
		&CreateSession{Client: got.Client, Sequence: got.Sequence, Principal: root, Fore: channel}); st != nfs.OK {
		t.Fatal(st)
	}
	if st := try(); st != nfs.OK {
		t.Errorf("after: %v", st)
	}
	if s.Session(x.ID) != nil {
		t.Error("the session of the old one is still there")
	}
	if _, st := s.Client(c.ID); st != nfs.ErrStaleClientID {
		t.Errorf("the old one is still there: %v", st)
	}
	if _, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileB, Access: Read}); st != nfs.ErrExpired {
		t.Errorf("the old one opens files: %v", st)
	}
}

func TestCreateSession(t *testing.T) {
	s := testServer()
	got, _ := s.ExchangeID(begin, &ExchangeID{Owner: []byte("o"), Verifier: verifier(1), Principal: root})
	ask := func(id uint64, seq uint32, who Principal) (Created, nfs.Status) {
		return s.CreateSession(begin, &CreateSession{Client: id, Sequence: seq, Principal: who, Fore: channel})
	}
	if _, st := ask(got.Client, got.Sequence-1, root); st != nfs.ErrSeqMisordered {
		t.Errorf("a replay of what never was: %v", st)
	}
	if _, st := ask(got.Client, got.Sequence+1, root); st != nfs.ErrSeqMisordered {
		t.Errorf("too far ahead: %v", st)
	}
	if _, st := ask(got.Client, got.Sequence, user); st != nfs.ErrClientIDInUse {
		t.Errorf("another principal: %v", st)
	}
	if _, st := ask(got.Client+1, got.Sequence, root); st != nfs.ErrStaleClientID {
		t.Errorf("an unknown client: %v", st)
	}
	if _, st := ask(got.Client^1<<40, got.Sequence, root); st != nfs.ErrStaleClientID {
		t.Errorf("a client of another start: %v", st)
	}
	one, st := ask(got.Client, got.Sequence, root)
	if st != nfs.OK {
		t.Fatal(st)
	}
	again, st := ask(got.Client, got.Sequence, root)
	if st != nfs.OK || again != one {
		t.Errorf("a retry: %+v %v, not %+v", again, st, one)
	}
	two, st := ask(got.Client, got.Sequence+1, root)
	if st != nfs.OK || two.ID == one.ID {
		t.Errorf("a second session: %+v %v", two, st)
	}
	if st := s.DestroyClient(got.Client, &By{Principal: root}); st != nfs.ErrClientIDBusy {
		t.Errorf("a client with sessions was destroyed: %v", st)
	}
	for _, id := range []SessionID{one.ID, two.ID} {
		if st := s.DestroySession(id, &By{Principal: root}); st != nfs.OK {
			t.Error(st)
		}
		if st := s.DestroySession(id, &By{Principal: root}); st != nfs.ErrBadSession {
			t.Errorf("destroyed twice: %v", st)
		}
	}
	if st := s.DestroyClient(got.Client, &By{Principal: root}); st != nfs.OK {
		t.Error(st)
	}
	if st := s.DestroyClient(got.Client, &By{Principal: root}); st != nfs.ErrStaleClientID {
		t.Errorf("destroyed twice: %v", st)
	}
	if n := s.Counts(); n != (Counts{}) {
		t.Errorf("left: %+v", n)
	}
}

// TestSlots is a story of one slot, step by step.
func TestSlots(t *testing.T) {
	s := testServer()
	_, x := join(t, s, begin, "o")
	type step struct {
		name    string
		seq     uint32
		slot    uint32
		digest  uint64
		mod     func(*Request)
		verdict Verdict
		want    nfs.Status
		reply   string // what to finish with: "-" not at all, "" uncached
	}
	for _, c := range []step{
		{name: "0 on a new slot", seq: 0, digest: 1, want: nfs.ErrSeqMisordered},
		{name: "2 on a new slot", seq: 2, digest: 1, want: nfs.ErrSeqMisordered},
		{name: "slot too high", seq: 1, slot: 4, digest: 1, want: nfs.ErrBadSlot},
		{name: "no such session", seq: 1, mod: func(r *Request) { r.Session[0]++ }, want: nfs.ErrBadSession},
		{name: "another minor version", seq: 1, mod: func(r *Request) { r.Minor = 2 }, want: nfs.ErrBadSession},
		{name: "too many operations", seq: 1, mod: func(r *Request) { r.Ops = 9 }, want: nfs.ErrTooManyOps},
		{name: "too long", seq: 1, mod: func(r *Request) { r.Size = 4097 }, want: nfs.ErrReqTooBig},
		{name: "first", seq: 1, digest: 1, reply: "one"},
		{name: "first again", seq: 1, digest: 1, verdict: Replay, reply: "one"},
		{name: "first with other content", seq: 1, digest: 2, want: nfs.ErrSeqFalseRetry},
		{name: "third", seq: 3, digest: 3, want: nfs.ErrSeqMisordered},
		{name: "second, not kept", seq: 2, digest: 2},
		{name: "second again", seq: 2, digest: 2, verdict: Uncached},
		{name: "first much later", seq: 1, digest: 1, want: nfs.ErrSeqMisordered},
		{name: "third, begun", seq: 3, digest: 3, reply: "-"},
		{name: "third again where it must not wait", seq: 3, digest: 3, verdict: Wait},
		{
			name: "third meanwhile, other content", seq: 3, digest: 4, mod: func(r *Request) { r.MayWait = true },
			want: nfs.ErrJukebox,
		},
		{name: "fourth meanwhile", seq: 4, digest: 4, want: nfs.ErrSeqMisordered},
		{name: "second meanwhile", seq: 2, digest: 2, want: nfs.ErrSeqMisordered},
		{name: "another slot meanwhile", seq: 1, slot: 3, digest: 1, reply: "other"},
	} {
		r := Request{Session: x.ID, Sequence: c.seq, Slot: c.slot, Digest: c.digest, Ops: 8, Size: 4096, Minor: 1}
		if c.mod != nil {
			c.mod(&r)
		}
		u, v, st := s.Sequence(begin, &r)
		if v != c.verdict || st != c.want {
			t.Fatalf("%s: verdict %d, %v", c.name, v, st)
		}
		switch {
		case st != nfs.OK || v == Wait:
		case v == Replay:
			if string(u.Reply) != c.reply {
				t.Fatalf("%s: %q", c.name, u.Reply)
			}
		case v == Execute && c.reply == "":
			u.Finish(nil)
		case v == Execute && c.reply != "-":
			u.Finish([]byte(c.reply))
		}
	}
	// The third is being executed: its retry waits, and has the reply.
	r := Request{Session: x.ID, Sequence: 3, Digest: 3, Ops: 1, Minor: 1, MayWait: true}
	u, v, st := s.Sequence(begin, &r)
	if v != Wait || st != nfs.OK || u.Done == nil {
		t.Fatal(v, st)
	}
	if _, _, st := s.Sequence(begin, &r); st != nfs.ErrJukebox {
		t.Errorf("a second retry waits too: %v", st)
	}
	(&Use{Session: x, Slot: 0}).Finish([]byte("three"))
	<-u.Done
	if u, v, st := s.Sequence(begin, &r); v != Replay || st != nfs.OK || string(u.Reply) != "three" {
		t.Errorf("%q %d %v", u.Reply, v, st)
	}
	// What was cancelled was never there.
	r = Request{Session: x.ID, Sequence: 4, Digest: 4, Ops: 1, Minor: 1}
	for range 3 {
		u, v, st := s.Sequence(begin, &r)
		if v != Execute || st != nfs.OK {
			t.Fatal(v, st)
		}
		u.Cancel()
	}
	r.Sequence, r.Digest = 3, 3
	if u, v, _ := s.Sequence(begin, &r); v != Replay || string(u.Reply) != "three" {
		t.Errorf("after a cancelled request: %d %q", v, u.Reply)
	}
}
