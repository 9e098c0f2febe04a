package state

import (
	"bytes"
	"encoding/gob"
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestSnapshotGoesOn: what clients hold, and what they were answered.
func TestSnapshotGoesOn(t *testing.T) {
	s, w := fullServer(t)
	c := s.sortedClients()[0]
	var id SessionID
	for id = range c.sessions {
	}
	next := restored(t, s, w, 0)
	now := begin.Add(time.Second)
	seq := func(slot, n uint32, digest uint64) (Use, Verdict, nfs.Status) {
		return next.Sequence(now, &Request{Session: id, Slot: slot, Sequence: n, Digest: digest, Minor: 2})
	}
	if u, v, st := seq(0, 1, 11); st != nfs.OK || v != Replay || string(u.Reply) != "reply" {
		t.Errorf("%q %v %v", u.Reply, v, st)
	}
	if _, _, st := seq(0, 1, 12); st != nfs.ErrSeqFalseRetry {
		t.Error(st)
	}
	if _, v, st := seq(2, 2, 13); st != nfs.OK || v != Uncached {
		t.Errorf("%v %v", v, st)
	}
	if _, _, st := seq(0, 3, 1); st != nfs.ErrSeqMisordered {
		t.Error(st)
	}
	x := next.Session(id)
	u, v, st := seq(0, 2, 14)
	if st != nfs.OK || v != Execute {
		t.Fatalf("%v %v", v, st)
	}
	u.Finish(nil)
	// What was under way, and what was lost, go first, each in its slot with its number.
	for i, want := range []uint32{2, 1} {
		a, ok := x.Back.Begin("news")
		if !ok || a.Slot != uint32(i) || a.Sequence != want || a.Path != rpc.Caller(w.paths[0]) || a.Cred.Machine != "m" {
			t.Fatalf("%+v %v", a, ok)
		}
		switch what := a.What.(type) {
		case *Recall:
			if i != 0 || what.File != testFile(10) || what.Client != x.Client {
				t.Errorf("recall %+v", what)
			}
			next.Recalled(what, true)
		case string:
			if i != 1 || what != "what is it" {
				t.Error(what)
			}
		}
		x.Back.End(&a, Executed)
	}
	if next.Free(now, testFile(10), nil, true) {
		t.Error("a file that is delegated is free")
	}
	if _, _, st := x.Client.lock(&Lock{}, 0); st == nfs.OK {
		t.Error("a lock by nothing")
	}
	// Another client is denied what the first has locked, and has reserved.
	y := next.sortedClients()[1]
	o, st := y.Open(now, &Open{Owner: []byte("q"), File: testFile(40), Access: Read})
	if st != nfs.OK {
		t.Fatal(st)
	}
	if _, st := y.Open(now, &Open{Owner: []byte("q"), File: testFile(40), Access: Write}); st != nfs.ErrShareDenied {
		t.Error(st)
	}
	if st := y.Close(o.ID, testFile(40)); st != nfs.OK {
		t.Error(st)
	}
	// The revoked delegation is there until it is given up.
	if y.anyRevoked.Load() != true {
		t.Error("nothing is revoked")
	}
}

// TestSnapshot40: numbers and last answers of owners.
func TestSnapshot40(t *testing.T) {
	s, w := fullServer(t)
	next := restored(t, s, w, 0)
	var c *Client
	for _, x := range next.sortedClients() {
		if x.v40 != nil {
			c = x
		}
	}
	if _, proven := c.Path().usable(); !proven {
		t.Error("it is not known that the client answers")
	}
	old := c.openID(t, "open")
	if tn, r, st := c.BeginState(begin, old, OfOpen, 7, 77); tn != nil || st != nfs.OK || string(r.Result) != "done" {
		t.Errorf("%v %+v %v", tn, r, st)
	}
	tn, _, st := c.BeginState(begin, old, OfOpen, 8, 88)
	if st != nfs.OK {
		t.Fatal(st)
	}
	if st := tn.Locker([]byte("locker"), 2); st != nfs.OK {
		t.Error(st)
	}
	tn.End(&Answer{Status: nfs.OK})
	for num := range c.v40.closed {
		if tn, r, st := c.BeginState(begin, c.stateid(num, 3), OfOpen, 7, 77); tn != nil || st != nfs.OK ||
			string(r.Result) != "done" {
			t.Errorf("CLOSE again: %v %+v %v", tn, r, st)
		}
	}
	if id := c.openID(t, "fresh"); c.IO(begin, id, testFile(52), false) != nfs.ErrBadStateID {
		t.Error("an open that was not confirmed counts")
	}
	if len(c.v40.pending) != 1 || len(c.v40.idle) != 1 {
		t.Errorf("%d pending, %d idle", len(c.v40.pending), len(c.v40.idle))
	}
}

// TestSnapshotEmptyOwner: an owner of version 4.0 may have an empty name (open_owner4 is
// opaque<1024>).
func TestSnapshotEmptyOwner(t *testing.T) {
	s := New(Config{Boot: 7, Lease: 90 * time.Second})
	got, _ := s.SetClientID(begin, &SetClientID{Owner: []byte("four"), Verifier: verifier(1), Principal: user})
	c, _, st := s.ConfirmClientID(begin, got.Client, got.Confirm, user)
	if st != nfs.OK {
		t.Fatal(st)
	}
	t1, _, _ := c.BeginOpen(begin, nil, 5, 55, false)
	if _, st = c.Open(begin, &Open{File: testFile(1), Access: Read, Turn: t1}); st != nfs.OK {
		t.Fatal(st)
	}
	t1.End(&Answer{Status: nfs.OK})
	next := restored(t, s, new(wire), 0)
	if n := next.Counts(); n.Opens != 1 {
		t.Errorf("%+v", n)
	}
}

func (c *Client) openID(t *testing.T, owner string) Stateid {
	for k, o := range c.opens {
		if k.Owner == owner {
			return c.stateid(o.Num, o.Seq)
		}
	}
	t.Fatalf("%s has nothing open", owner)
	return Stateid{}
}

// TestSnapshotOfBusy: who is not quiet has no snapshot.
func TestSnapshotOfBusy(t *testing.T) {
	s := testServer()
	_, x := join(t, s, begin, "one")
	u, _, _ := s.Sequence(begin, &Request{Session: x.ID, Slot: 0, Sequence: 1, Minor: 1})
	if _, err := s.Snapshot(begin, SnapshotFuncs{}); !errors.Is(err, errBusy) {
		t.Error(err)
	}
	u.Cancel()
	b, err := s.Snapshot(begin, SnapshotFuncs{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(b, begin, RestoreFuncs{}); err == nil {
		t.Error("a server with clients was restored")
	}
}

// TestLostConnection: a session whose connection did not come along says so.
func TestLostConnection(t *testing.T) {
	s, w := fullServer(t)
	b, err := s.Snapshot(begin, w.snapshotFuncs())
	if err != nil {
		t.Fatal(err)
	}
	next := New(Config{Boot: 1})
	by := w.restoreFuncs()
	by.Connection = func(uint64) rpc.Caller { return nil }
	if err := next.Restore(b, begin, by); err != nil {
		t.Fatal(err)
	}
	for _, x := range next.sortedClients() {
		for _, y := range x.sessions {
			if n := y.Notices(); !n.PathDown || !n.SessionPathDown {
				t.Errorf("%+v", n)
			}
		}
	}
}

// TestSnapshotOfAnother: fields that are not known are nothing, and those that are missing are
// zero.
func TestSnapshotOfAnother(t *testing.T) {
	type client struct {
		ID    uint64
		Owner string
		News  []string
	}
	var b bytes.Buffer
	enc := gob.NewEncoder(&b)
	err := enc.Encode(struct {
		Boot uint32
		News []string
	}{5, []string{"x"}})
	one := client{ID: 5<<32 | 3, Owner: "one", News: []string{"y"}}
	if err := errors.Join(err, enc.Encode(one), enc.Encode(client{})); err != nil {
		t.Fatal(err)
	}
	s := New(Config{Boot: 1})
	if err := s.Restore(b.Bytes(), begin, RestoreFuncs{}); err != nil || s.client(5<<32|3) == nil {
		t.Error(err)
	}
}

// FuzzRestore: a snapshot is refused, or makes a server that can be used.
func FuzzRestore(f *testing.F) {
	s, w := fullServer(f)
	b, err := s.Snapshot(begin, w.snapshotFuncs())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		s := New(Config{Boot: 99, Lease: 90 * time.Second})
		w := new(wire)
		if s.Restore(b, begin, w.restoreFuncs()) != nil {
			return
		}
		s.Counts()
		s.Sessions()
		s.Clients(begin)
		s.DelegationList(100)
		if _, err := s.Snapshot(begin, w.snapshotFuncs()); err != nil {
			t.Fatal(err)
		}
		for _, c := range s.sortedClients() {
			if c.v40 != nil {
				c.mu.Lock()
				c.reap(begin.Add(time.Hour))
				c.mu.Unlock()
			}
			s.remove(c)
		}
	})
}

// TestStandStill: while the list of clients is handed over it does not change, whatever time it
// is, and nobody who only looks waits.
func TestStandStill(t *testing.T) {
	d := &disk{list: []string{"gone"}}
	s := d.boot(3, begin)
	late := begin.Add(time.Hour)
	s.Freeze(true)
	if !s.Grace(late) || len(d.list) != 1 {
		t.Errorf("the list is %v", d.list)
	}
	if _, err := s.Snapshot(late, SnapshotFuncs{}); err != nil {
		t.Error(err)
	}
	s.Freeze(false)
	if s.Grace(late) || len(d.list) != 0 {
		t.Errorf("the list is %v", d.list)
	}
	c, _ := join(t, s, late, "one")
	if _, st := tryOpen(c, late, false, 0); st != nfs.OK {
		t.Fatal(st)
	}
	s.Freeze(true)
	done := make(chan bool)
	go func() { done <- s.Evict(c.ID) }()
	if b, err := s.Snapshot(late, SnapshotFuncs{}); err != nil || len(b) == 0 {
		t.Error(err)
	}
	s.Freeze(false)
	if !<-done || len(d.list) != 0 {
		t.Errorf("the list is %v", d.list)
	}
	if n := s.Exports(); len(n) != 0 {
		t.Errorf("something of the exports %v", n)
	}
	full, _ := fullServer(t)
	if n := full.Exports(); len(n) != 1 || n[0] != 1 || len(full.cfg.Locks.Exports()) != 1 {
		t.Errorf("exports %v", n)
	}
}
