package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
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

// TestSlotWraps: sequence numbers go around.
func TestSlotWraps(t *testing.T) {
	s := testServer()
	_, x := join(t, s, begin, "o")
	r := Request{Session: x.ID, Sequence: 1, Digest: 5, Minor: 1}
	u, _, _ := s.Sequence(begin, &r)
	u.Finish([]byte("x"))
	x.slots[0].Seq = 1<<32 - 1
	for _, seq := range []uint32{0, 1} {
		r.Sequence = seq
		u, v, st := s.Sequence(begin, &r)
		if v != Execute || st != nfs.OK {
			t.Fatalf("%d: %d %v", seq, v, st)
		}
		u.Finish([]byte("x"))
		if _, v, st := s.Sequence(begin, &r); v != Replay || st != nfs.OK {
			t.Fatalf("%d again: %d %v", seq, v, st)
		}
	}
}

func TestStateids(t *testing.T) {
	s := testServer()
	c, _ := join(t, s, begin, "o")
	open := func() Opened {
		got, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read})
		if st != nfs.OK {
			t.Fatal(st)
		}
		return got
	}
	one, two := open(), open()
	if !one.New || two.New || one.ID.Other != two.ID.Other || one.ID.Seq != 1 || two.ID.Seq != 2 {
		t.Fatalf("%+v %+v", one, two)
	}
	id := two.ID
	with := func(f func(*Stateid)) Stateid {
		x := id
		f(&x)
		return x
	}
	for _, x := range []struct {
		name  string
		id    Stateid
		write bool
		want  nfs.Status
	}{
		{"itself", id, false, nfs.OK},
		{"whatever is latest", with(func(x *Stateid) { x.Seq = 0 }), false, nfs.OK},
		{"old", one.ID, false, nfs.ErrOldStateID},
		{"of the future", with(func(x *Stateid) { x.Seq++ }), false, nfs.ErrBadStateID},
		{"of another start", with(func(x *Stateid) { x.Other[0]++ }), false, nfs.ErrStaleStateID},
		{"of another client", with(func(x *Stateid) { x.Other[7]++ }), false, nfs.ErrBadStateID},
		{"unknown", with(func(x *Stateid) { x.Other[11]++ }), false, nfs.ErrBadStateID},
		{"invalid", Invalid, false, nfs.ErrBadStateID},
		{"current, not resolved", Current, false, nfs.ErrBadStateID},
		{"anonymous", Anonymous, false, nfs.OK},
		{"anonymous, writing", Anonymous, true, nfs.OK},
		{"bypass", Bypass, false, nfs.OK},
		{"writing what is open for reading", id, true, nfs.ErrOpenMode},
	} {
		if st := c.IO(begin, x.id, fileA, x.write); st != x.want {
			t.Errorf("%s: %v, not %v", x.name, st, x.want)
		}
	}
	if st := c.IO(begin, id, fileB, false); st != nfs.ErrBadStateID {
		t.Errorf("on another file: %v", st)
	}
	other, _ := join(t, s, begin, "other")
	if st := other.IO(begin, id, fileA, false); st != nfs.ErrBadStateID {
		t.Errorf("by another client: %v", st)
	}
	if st := c.TestStateid(one.ID); st != nfs.ErrOldStateID {
		t.Errorf("test: %v", st)
	}
	if st := c.FreeStateid(id); st != nfs.ErrLocksHeld {
		t.Errorf("an open was freed: %v", st)
	}
	if st := c.Close(one.ID, fileA); st != nfs.ErrOldStateID {
		t.Errorf("close: %v", st)
	}
	if st := c.Close(id, fileA); st != nfs.OK {
		t.Error(st)
	}
	if st := c.Close(id, fileA); st != nfs.ErrBadStateID {
		t.Errorf("closed twice: %v", st)
	}
	if n := s.Counts(); n.Opens != 0 {
		t.Errorf("%+v", n)
	}
}

// TestSeqWraps: the seqid of a stateid skips 0.
func TestSeqWraps(t *testing.T) {
	s := testServer()
	c, _ := join(t, s, begin, "o")
	got, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read})
	got.o.Seq = 1<<32 - 1
	old := got.ID
	old.Seq = 1<<32 - 1
	next, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read})
	if next.ID.Seq != 1 {
		t.Fatalf("%d", next.ID.Seq)
	}
	if st := c.IO(begin, old, fileA, false); st != nfs.ErrOldStateID {
		t.Errorf("the one before: %v", st)
	}
}

// TestShares tries every pair of reservations.
func TestShares(t *testing.T) {
	for a := uint32(1); a <= Both; a++ {
		for d := uint32(0); d <= Both; d++ {
			for b := uint32(1); b <= Both; b++ {
				for e := uint32(0); e <= Both; e++ {
					sameOwner(t, a, d, b, e)
					s := testServer()
					one, _ := join(t, s, begin, "one")
					two, _ := join(t, s, begin, "two")
					if _, st := one.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: a, Deny: d}); st != nfs.OK {
						t.Fatal(st)
					}
					want := nfs.OK
					if a&e != 0 || d&b != 0 {
						want = nfs.ErrShareDenied
					}
					for _, c := range []*Client{one, two} {
						if _, st := c.Open(begin, &Open{Owner: []byte("q"), File: fileA, Access: b, Deny: e}); st != want {
							t.Errorf("access %d deny %d, then access %d deny %d: %v", a, d, b, e, st)
						} else if st == nfs.OK {
							want = nfs.OK
							if b&e != 0 || e&b != 0 {
								want = nfs.ErrShareDenied // the first q is in the way of the second
							}
						}
					}
					if _, st := two.Open(begin, &Open{Owner: []byte("q"), File: fileB, Access: b, Deny: e}); st != nfs.OK {
						t.Errorf("another file: %v", st)
					}
					wantIO := nfs.OK
					if d&Read != 0 {
						wantIO = nfs.ErrLocked
					}
					if st := two.IO(begin, Anonymous, fileA, false); want == nfs.ErrShareDenied && a&e|d&b != 0 && st != wantIO {
						t.Errorf("anonymous READ of deny %d: %v", d, st)
					}
				}
			}
		}
	}
}

// sameOwner opens a file twice for one owner. What it denies it denies itself, and what it denies
// must not be what it has opened (RFC 8881 section 9.7); what is refused changes nothing.
func sameOwner(t *testing.T, a, d, b, e uint32) {
	t.Helper()
	s := testServer()
	c, _ := join(t, s, begin, "one")
	first, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: a, Deny: d})
	if st != nfs.OK {
		t.Fatal(st)
	}
	want := nfs.OK
	if a&e != 0 || d&b != 0 {
		want = nfs.ErrShareDenied
	}
	again, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: b, Deny: e})
	if st != want {
		t.Errorf("access %d deny %d, then access %d deny %d of the same owner: %v", a, d, b, e, st)
	}
	if st == nfs.OK {
		if again.ID.Seq != first.ID.Seq+1 {
			t.Errorf("stateid %v after %v", again.ID, first.ID)
		}
	} else if _, st := c.Downgrade(first.ID, fileA, a, d); st != nfs.OK {
		t.Errorf("access %d deny %d, after an OPEN that was refused: %v", a, d, st)
	}
}

func TestDowngrade(t *testing.T) {
	s := testServer()
	c, _ := join(t, s, begin, "o")
	type step struct {
		access, deny uint32
		want         nfs.Status
	}
	for _, x := range []struct {
		owner string
		file  lock.File
		opens [][2]uint32 // access and deny
		steps []step
		write nfs.Status // of a WRITE in the end
	}{
		{"p", fileA, [][2]uint32{{Read, 0}, {Write, 0}}, []step{
			{Read, Both, nfs.ErrInval},
			{Both, 0, nfs.OK},
			{Both, Write, nfs.ErrInval},
			{Read, 0, nfs.OK},
			{Write, 0, nfs.ErrInval}, // it was given up
			{Both, 0, nfs.ErrInval},
		}, nfs.ErrOpenMode},
		{"q", fileB, [][2]uint32{{Read, 0}, {Both, Write}, {Read, 0}}, []step{
			{Both, Both, nfs.ErrInval},
			{Both, Write, nfs.OK},
			{Both, 0, nfs.OK},
			{Both, Write, nfs.ErrInval}, // it was given up
		}, nfs.OK},
	} {
		var id Stateid
		for _, o := range x.opens {
			got, st := c.Open(begin, &Open{Owner: []byte(x.owner), File: x.file, Access: o[0], Deny: o[1]})
			if st != nfs.OK {
				t.Fatalf("access %d, deny %d: %v", o[0], o[1], st)
			}
			id = got.ID
		}
		for _, y := range x.steps {
			next, st := c.Downgrade(id, x.file, y.access, y.deny)
			if st != y.want {
				t.Errorf("to access %d, deny %d: %v", y.access, y.deny, st)
			}
			if st == nfs.OK {
				if next.Seq != id.Seq+1 {
					t.Errorf("seqid %d after %d", next.Seq, id.Seq)
				}
				id = next
			}
		}
		if st := c.IO(begin, id, x.file, true); st != x.write {
			t.Errorf("writing after the downgrade: %v", st)
		}
	}
	// Opened for both at once, there is no going back to one.
	got, _ := c.Open(begin, &Open{Owner: []byte("r"), File: fileB, Access: Both})
	if _, st := c.Downgrade(got.ID, fileB, Read, 0); st != nfs.ErrInval {
		t.Errorf("half of one OPEN: %v", st)
	}
}

func TestRevert(t *testing.T) {
	s := testServer()
	c, _ := join(t, s, begin, "o")
	one, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read})
	two, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Write, Deny: Write})
	if st != nfs.OK {
		t.Fatal(st)
	}
	c.Revert(&two)
	if st := c.IO(begin, one.ID, fileA, false); st != nfs.OK {
		t.Errorf("the stateid of before: %v", st)
	}
	if st := c.IO(begin, one.ID, fileA, true); st != nfs.ErrOpenMode {
		t.Errorf("writing: %v", st)
	}
	c.Revert(&two) // it is not the last any more
	c.Revert(&one)
	if n := s.Counts(); n.Opens != 0 {
		t.Errorf("%+v", n)
	}
}

func TestLocks(t *testing.T) {
	s := testServer()
	c, _ := join(t, s, begin, "one")
	d, _ := join(t, s, begin, "two")
	open := func(c *Client, access uint32) Stateid {
		got, st := c.Open(begin, &Open{Owner: []byte(fmt.Sprint("p", access)), File: fileA, Access: access})
		if st != nfs.OK {
			t.Fatal(st)
		}
		return got.ID
	}
	mine, his, readOnly := open(c, Both), open(d, Both), open(c, Read)
	byOpen := func(id Stateid, owner string, r Range, exclusive bool) *Lock {
		return &Lock{ByOpen: true, ID: id, Owner: []byte(owner), File: fileA, Range: r, Exclusive: exclusive}
	}
	id, _, st := c.Lock(begin, byOpen(mine, "x", Range{0, 10}, true))
	if st != nfs.OK || id.Seq != 1 || id.Other == mine.Other {
		t.Fatal(id, st)
	}
	for _, x := range []struct {
		name string
		c    *Client
		a    *Lock
		want nfs.Status
	}{
		{"overlapping", d, byOpen(his, "x", Range{9, 5}, false), nfs.ErrDenied},
		{"to the end", d, byOpen(his, "x", Range{0, lock.ToEnd}, false), nfs.ErrDenied},
		{"beside", d, byOpen(his, "x", Range{10, 5}, true), nfs.OK},
		{"of another owner of the client", c, byOpen(mine, "y", Range{0, 1}, true), nfs.ErrDenied},
		{"of length 0", c, byOpen(mine, "x", Range{0, 0}, true), nfs.ErrInval},
		{"beyond 64 bits", c, byOpen(mine, "x", Range{3, lock.ToEnd - 1}, true), nfs.ErrInval},
		{
			"to the last byte but not to the end", c, byOpen(mine, "x", Range{1 << 40, lock.ToEnd - 1<<40 + 1}, true),
			nfs.ErrInval,
		},
		{"to the last byte but one", c, byOpen(mine, "x", Range{1 << 40, lock.ToEnd - 1<<40}, true), nfs.OK},
		{"exclusive on what is open for reading", c, byOpen(readOnly, "z", Range{50, 1}, true), nfs.ErrOpenMode},
		{"of an unknown open", c, byOpen(Stateid{Seq: 1, Other: mine.Other}, "z", Range{50, 1}, true), nfs.OK},
		{"of a lock as an open", c, byOpen(id, "z", Range{50, 1}, true), nfs.ErrOldStateID},
	} {
		_, holder, st := x.c.Lock(begin, x.a)
		if st != x.want {
			t.Errorf("%s: %v", x.name, st)
		}
		if (holder != nil) != (st == nfs.ErrDenied) {
			t.Errorf("%s: %+v", x.name, holder)
		}
		if holder != nil && (holder.Client != c.ID || holder.Owner != "x" || !holder.Exclusive ||
			holder.Range != Range{0, 10}) {
			t.Errorf("%s: held by %+v", x.name, holder)
		}
	}
	id.Seq = 0
	if st := c.FreeStateid(id); st != nfs.ErrLocksHeld {
		t.Errorf("freed with locks: %v", st)
	}
	if holder, st := d.TestLock(begin, byOpen(his, "x", Range{5, 1}, false)); st != nfs.ErrDenied ||
		holder.Client != c.ID {
		t.Errorf("test: %+v %v", holder, st)
	}
	if holder, st := c.TestLock(begin, byOpen(mine, "x", Range{5, 1}, false)); st != nfs.OK || holder != nil {
		t.Errorf("test of one's own: %+v %v", holder, st)
	}
	for _, r := range []Range{{0, 10}, {1 << 40, lock.ToEnd}} {
		next, st := c.Unlock(&Lock{ID: id, File: fileA, Range: r})
		if st != nfs.OK {
			t.Fatal(st)
		}
		id = next
	}
	if _, st := c.Unlock(&Lock{
		ID: Stateid{Seq: id.Seq - 1, Other: id.Other}, File: fileA,
		Range: Range{0, 1},
	}); st != nfs.ErrOldStateID {
		t.Errorf("unlock by an old stateid: %v", st)
	}
	if st := c.FreeStateid(id); st != nfs.OK {
		t.Errorf("freed without locks: %v", st)
	}
	if st := c.TestStateid(id); st != nfs.ErrBadStateID {
		t.Errorf("after it was freed: %v", st)
	}
	// Closing a file gives its locks up.
	if _, _, st := c.Lock(begin, byOpen(mine, "x", Range{0, 10}, true)); st != nfs.OK {
		t.Fatal(st)
	}
	if st := c.Close(Stateid{Other: mine.Other}, fileA); st != nfs.OK {
		t.Fatal(st)
	}
	if _, _, st := d.Lock(begin, byOpen(his, "x", Range{0, 10}, true)); st != nfs.OK {
		t.Errorf("after the close: %v", st)
	}
}

// TestCourtesy: a silent client keeps what it has until somebody wants it.
func TestCourtesy(t *testing.T) {
	s := testServer()
	late := begin.Add(91 * time.Second)
	c, x := join(t, s, begin, "silent")
	got, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Both, Deny: Write})
	if _, _, st := c.Lock(begin, &Lock{
		ByOpen: true, ID: got.ID, Owner: []byte("l"), File: fileA, Range: Range{0, 1},
		Exclusive: true,
	}); st != nfs.OK {
		t.Fatal(st)
	}
	kept, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileB, Access: Both})
	if _, _, st := c.Lock(begin, &Lock{
		ByOpen: true, ID: kept.ID, Owner: []byte("l"), File: fileB, Range: Range{0, 1},
		Exclusive: true,
	}); st != nfs.OK {
		t.Fatal(st)
	}
	d, y := join(t, s, late, "other")
	if _, st := d.Open(late, &Open{Owner: []byte("p"), File: fileA, Access: Read}); st != nfs.OK {
		t.Errorf("an open that is not in the way: %v", st)
	}
	if st := c.IO(late, got.ID, fileA, true); st != nfs.OK {
		t.Errorf("silent, and nobody wants what it has: %v", st)
	}
	if n := s.Counts(); n.Clients != 2 || n.Opens != 3 || n.Locks != 2 {
		t.Errorf("%+v", n)
	}
	if _, st := d.Open(late, &Open{Owner: []byte("p"), File: fileA, Access: Write}); st != nfs.OK {
		t.Errorf("an open that is in the way: %v", st)
	}
	if st := c.IO(late, kept.ID, fileB, true); st != nfs.ErrExpired {
		t.Errorf("afterwards: %v", st)
	}
	if s.Session(x.ID) != nil {
		t.Error("the session is still there")
	}
	o, _ := d.Open(late, &Open{Owner: []byte("p"), File: fileB, Access: Write})
	if _, holder, st := d.Lock(late,
		&Lock{ByOpen: true, ID: o.ID, Owner: []byte("l"), File: fileB, Range: Range{0, 1}, Exclusive: true}); st != nfs.OK {
		t.Errorf("the lock: %+v %v", holder, st)
	}
	// A call renews the lease.
	later := late.Add(80 * time.Second)
	u, _, st := s.Sequence(later, &Request{Session: y.ID, Sequence: 1, Digest: 1, Ops: 1, Minor: 1})
	if st != nfs.OK {
		t.Fatal(st)
	}
	u.Finish(nil)
	e, _ := join(t, s, later.Add(80*time.Second), "third")
	if _, st := e.Open(later.Add(80*time.Second),
		&Open{Owner: []byte("p"), File: fileB, Access: Read, Deny: Write}); st != nfs.ErrShareDenied {
		t.Errorf("against a client that was heard of: %v", st)
	}
	if holder, st := e.TestLock(later.Add(91*time.Second),
		&Lock{Owner: []byte("l"), File: fileB, Range: Range{0, 1}}); st != nfs.OK {
		t.Errorf("against a silent one: %+v %v", holder, st)
	}
}

// TestOtherProtocols: their locks are in the same table.
func TestOtherProtocols(t *testing.T) {
	reclaiming := true
	table := lock.New(0)
	s := New(Config{Boot: 7, Locks: table, OthersReclaim: func() bool { return reclaiming }})
	c, _ := join(t, s, begin, "one")
	got, _ := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Both})
	ask := func() nfs.Status {
		_, _, st := c.Lock(begin, &Lock{
			ByOpen: true, ID: got.ID, Owner: []byte("l"), File: fileA, Range: Range{0, 1},
			Exclusive: true,
		})
		return st
	}
	test := Lock{Owner: []byte("l"), File: fileA, Range: Range{0, 1}, Exclusive: true}
	if st := ask(); st != nfs.ErrGrace {
		t.Errorf("while others reclaim: %v", st)
	}
	if _, st := c.TestLock(begin, &test); st != nfs.ErrGrace {
		t.Errorf("LOCKT while others reclaim: %v", st)
	}
	reclaiming = false
	if _, st := c.TestLock(begin, &test); st != nfs.OK {
		t.Errorf("LOCKT: %v", st)
	}
	if st := ask(); st != nfs.OK {
		t.Error(st)
	}
	other := lock.Lock{Owner: lock.Owner{Client: "10.0.0.1 host", ID: "x"}, Exclusive: true}
	holder, free := table.Test(fileA, other)
	if free || s.EndExpired(begin, holder.Owner.Client) {
		t.Error("a client that is there gave way")
	}
	if s.EndExpired(begin.Add(91*time.Second), other.Owner.Client) {
		t.Error("a client of another protocol was taken for one of this")
	}
	if !s.EndExpired(begin.Add(91*time.Second), holder.Owner.Client) {
		t.Error("a silent client did not give way")
	}
	if _, free := table.Test(fileA, other); !free {
		t.Error("its lock is still there")
	}
}

// TestDropExport: what was open of an export goes with it, and nothing else.
func TestDropExport(t *testing.T) {
	table := lock.New(0)
	s := New(Config{Boot: 7, Locks: table})
	c, _ := join(t, s, begin, "one")
	other := fileA
	other.Export = 2
	for _, f := range []lock.File{fileA, fileB, other} {
		got, _ := c.Open(begin, &Open{Owner: []byte("p"), File: f, Access: Both})
		if _, _, st := c.Lock(begin, &Lock{
			ByOpen: true, ID: got.ID, Owner: []byte("l"), File: f, Range: Range{0, 1},
			Exclusive: true,
		}); st != nfs.OK {
			t.Fatal(st)
		}
	}
	s.DropExport(1)
	if n := s.Counts(); n.Opens != 1 || n.Locks != 1 {
		t.Errorf("left: %+v", n)
	}
	if held, _ := table.Count(); held != 1 {
		t.Errorf("%d locks are left", held)
	}
}

// BenchmarkOpens opens many files by one client, and tells the memory of one.
func BenchmarkOpens(b *testing.B) {
	const files = 200_000
	for b.Loop() {
		s := testServer()
		c, _ := join(b, s, begin, "o")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		for i := range files {
			f := testFile(1)
			f.Handle.Len = 16
			binary.BigEndian.PutUint64(f.Handle.B[8:], uint64(i))
			if _, st := c.Open(begin, &Open{Owner: []byte("open id: of 24 bytes...."), File: f, Access: Both}); st != nfs.OK {
				b.Fatal(st)
			}
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/files, "ns/open")
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/files, "B/open")
		runtime.KeepAlive(s)
	}
}

// BenchmarkSequence is SEQUENCE by several clients at once, each with its session.
func BenchmarkSequence(b *testing.B) {
	s := testServer()
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		_, x := join(b, s, begin, fmt.Sprint(n.Add(1)))
		reply := make([]byte, 150)
		for seq := uint32(1); pb.Next(); seq++ {
			u, v, st := s.Sequence(begin, &Request{Session: x.ID, Sequence: seq, Digest: 1, Ops: 3, Size: 200, Minor: 1})
			if v != Execute || st != nfs.OK {
				b.Error(v, st)
				return
			}
			u.Finish(reply)
		}
	})
}

func TestReclaimComplete(t *testing.T) {
	s := testServer()
	got, _ := s.ExchangeID(begin, &ExchangeID{Owner: []byte("o"), Verifier: verifier(1), Principal: root})
	if _, st := s.Client(got.Client); st != nfs.ErrStaleClientID {
		t.Errorf("not confirmed: %v", st)
	}
	_, _ = s.CreateSession(begin, &CreateSession{
		Client: got.Client, Sequence: got.Sequence, Principal: root,
		Fore: channel,
	})
	c, _ := s.Client(got.Client)
	ask := func() nfs.Status {
		_, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read})
		return st
	}
	if st := ask(); st != nfs.ErrGrace {
		t.Errorf("before: %v", st)
	}
	if st := errors.Join(c.ReclaimComplete().Err(), ask().Err()); st != nil {
		t.Error(st)
	}
	if st := c.ReclaimComplete(); st != nfs.ErrCompleteAlready {
		t.Errorf("twice: %v", st)
	}
}

// TestBounds: tables do not grow beyond their limits, and make room where they can.
func TestBounds(t *testing.T) {
	s := New(Config{Boot: 7, Clients: 3, Sessions: 2, States: 2})
	var list []*Client
	for i := range 3 {
		c, _ := join(t, s, begin, fmt.Sprint(i))
		list = append(list, c)
	}
	ask := func(now time.Time) nfs.Status {
		_, st := s.ExchangeID(now, &ExchangeID{Owner: []byte("one more"), Principal: root})
		return st
	}
	if st := ask(begin); st != nfs.ErrJukebox {
		t.Errorf("a fourth client: %v", st)
	}
	c := list[0]
	for i, want := range []nfs.Status{nfs.OK, nfs.OK, nfs.ErrJukebox} {
		if _, st := c.Open(begin, &Open{Owner: []byte("p"), File: testFile(byte(i)), Access: Read}); st != want {
			t.Errorf("open %d: %v", i, st)
		}
	}
	for i, want := range []nfs.Status{nfs.OK, nfs.ErrJukebox} {
		if _, st := s.CreateSession(begin,
			&CreateSession{Client: c.ID, Sequence: uint32(2 + i), Principal: root, Fore: channel}); st != want {
			t.Errorf("session %d: %v", i+2, st)
		}
	}
	if st := ask(begin.Add(time.Hour)); st != nfs.OK {
		t.Errorf("after the others went silent: %v", st)
	}
	if n := s.Counts(); n.Opens != 0 || n.Clients != 1 {
		t.Errorf("%+v", n)
	}
}

// TestRandomClients has clients do random things at once, some of them silent, and
// looks whether everything is given up in the end.
func TestRandomClients(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	table := lock.New(0)
	s := New(Config{Boot: 7, Locks: table})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(g)))
			now := begin
			var c *Client
			var ids []Stateid
			for i := range 3000 {
				if c == nil || rnd.IntN(200) == 0 {
					got, st := s.ExchangeID(now, &ExchangeID{
						Owner: []byte(fmt.Sprint(g)), Verifier: verifier(byte(i)),
						Principal: root,
					})
					if st != nfs.OK {
						t.Errorf("EXCHANGE_ID: %v", st)
						return
					}
					if _, st := s.CreateSession(now,
						&CreateSession{
							Client: got.Client, Sequence: got.Sequence, Principal: root,
							Fore: channel,
						}); st == nfs.ErrStaleClientID {
						continue // their clocks differ: another one took it for silent
					} else if st != nfs.OK {
						t.Errorf("CREATE_SESSION: %v", st)
						return
					}
					c, _ = s.Client(got.Client)
					if c == nil {
						continue
					}
					_ = c.ReclaimComplete()
					ids = nil
				}
				now = now.Add(time.Duration(rnd.IntN(3)) * time.Second)
				c.renew(now)
				f := testFile(byte(rnd.IntN(3)))
				switch rnd.IntN(5) {
				case 0, 1:
					got, st := c.Open(now, &Open{
						Owner: []byte{byte(rnd.IntN(2))}, File: f, Access: uint32(1 + rnd.IntN(3)),
						Deny: uint32(rnd.IntN(8) / 5),
					})
					if st == nfs.OK {
						ids = append(ids, got.ID)
					}
				case 2:
					if len(ids) > 0 {
						_ = c.Close(Stateid{Other: ids[rnd.IntN(len(ids))].Other}, f)
					}
				case 3:
					if len(ids) > 0 {
						_, _, _ = c.Lock(now, &Lock{
							ByOpen: true, ID: Stateid{Other: ids[rnd.IntN(len(ids))].Other},
							Owner: []byte{byte(rnd.IntN(2))}, File: f, Range: Range{uint64(rnd.IntN(10)), 5}, Exclusive: rnd.IntN(2) == 0,
						})
					}
				case 4:
					_ = c.IO(now, Anonymous, f, true)
				}
			}
		})
	}
	wg.Wait()
	s.mu.RLock()
	var all []*Client
	for _, c := range s.clients {
		all = append(all, c)
	}
	s.mu.RUnlock()
	for _, c := range all {
		s.remove(c)
	}
	if n := s.Counts(); n != (Counts{}) {
		t.Errorf("left: %+v", n)
	}
	for i := range s.files {
		if len(s.files[i].m) > 0 || len(s.sessions[i].m) > 0 {
			t.Errorf("shard %d: %d files, %d sessions", i, len(s.files[i].m), len(s.sessions[i].m))
		}
	}
	if held, _ := table.Count(); held != 0 {
		t.Errorf("%d locks are left", held)
	}
	if len(s.owners) != 0 {
		t.Errorf("%d owners are left", len(s.owners))
	}
	if n := s.Memory().Bytes; n != 0 || len(s.mem.hosts) != 0 {
		t.Errorf("%d bytes of %d hosts are left", n, len(s.mem.hosts))
	}
}
