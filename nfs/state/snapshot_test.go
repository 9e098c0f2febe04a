package state

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// successor is a server that goes on from a snapshot of this one.
func (d *disk) successor(s *Server, now time.Time) (*Server, error) {
	locks := lock.New(0)
	b, err := s.cfg.Locks.Snapshot()
	if err == nil {
		err = locks.Restore(b, nil)
	}
	if err != nil {
		return nil, err
	}
	next := New(Config{
		Boot: 4711, Lease: s.cfg.Lease, Locks: locks, Known: d.list, GraceUntil: now.Add(90 * time.Second),
		Journal: d,
	})
	if b, err = s.Snapshot(now, SnapshotFuncs{}); err == nil {
		err = next.Restore(b, now, RestoreFuncs{})
	}
	return next, err
}

// wire is the rooms around a server: connections with numbers, callbacks that are words.
type wire struct {
	paths  []*line
	leased []string
	left   int
	copies map[uint32]string
}

type line struct{ dead bool }

func (p *line) Call(b *rpc.BackwardCall) { b.Done(nil, rpc.ErrClosed) }
func (p *line) Connected() bool          { return !p.dead }

func (w *wire) path() *line {
	w.paths = append(w.paths, new(line))
	return w.paths[len(w.paths)-1]
}

func (w *wire) snapshotFuncs() SnapshotFuncs {
	return SnapshotFuncs{
		Connection: func(c rpc.Caller) (uint64, bool) {
			i := slices.Index(w.paths, c.(*line))
			return uint64(i), i >= 0
		},
		Callback: func(what any) PendingCallback {
			switch v := what.(type) {
			case *Recall:
				return PendingCallback{Recall: v.Number(), Op: 4}
			case PendingCallback: // of the process of before
				return v
			}
			return PendingCallback{Op: 99, Args: []byte(what.(string)), Origin: &Origin{Slot: 3}}
		},
		Copy: func(o *Offload) ([]byte, error) { return []byte(w.copies[o.num]), nil },
	}
}

func (w *wire) restoreFuncs() RestoreFuncs {
	return RestoreFuncs{
		Connection: func(id uint64) rpc.Caller {
			if id >= uint64(len(w.paths)) {
				return nil
			}
			return w.paths[id]
		},
		Callback: func(a *PendingCallback, r *Recall) any {
			if r != nil {
				return r
			}
			return string(a.Args)
		},
		Copy: func(o *Offload, b []byte) error {
			if w.copies == nil {
				w.copies = make(map[uint32]string)
			}
			w.copies[o.num] = string(b)
			return nil
		},
		Leased: func(f lock.File, write, _ bool) func() {
			w.leased = append(w.leased, fmt.Sprint(f.Handle.B[0], write))
			return func() { w.left++ }
		},
		Connect: func(*Callback) rpc.Caller { return w.path() },
	}
}

// fullServer has something of everything.
func fullServer(t testing.TB) (*Server, *wire) {
	w := &wire{copies: make(map[uint32]string)}
	s := New(Config{Boot: 7, Lease: 90 * time.Second, Known: []string{"lost", "one"}, GraceUntil: begin.Add(time.Second)})
	if err := s.EndGrace(begin); err != nil {
		t.Fatal(err)
	}
	must := func(st nfs.Status) {
		t.Helper()
		if st != nfs.OK {
			t.Fatal(st)
		}
	}
	for i, name := range []string{"one", "two"} {
		got, st := s.ExchangeID(begin, &ExchangeID{Owner: []byte(name), Verifier: verifier(1), Principal: user})
		must(st)
		back := NewBackchannel(Channel{MaxRequest: 4096, MaxResponse: 4096, MaxOps: 8, MaxSlots: 2}, 0x40000000,
			&rpc.Cred{Flavor: rpc.AuthSys, Machine: "m", Groups: []uint32{4}})
		_, st = s.CreateSession(begin,
			&CreateSession{
				Client: got.Client, Sequence: got.Sequence, Principal: user, Minor: 2, Fore: channel, Back: back,
				Path: w.path(),
			})
		must(st)
		c, _ := s.Client(got.Client)
		must(c.ReclaimComplete())
		a, ok := back.Begin("null")
		if !ok {
			t.Fatal("it cannot be called")
		}
		back.End(&a, Executed)
		f := testFile(byte(10 + i))
		o, st := c.Open(begin, &Open{Owner: []byte("p"), File: f, Access: Both, Deny: uint32(i)})
		must(st)
		d, why := c.Delegate(begin, &Delegate{File: f, Write: i == 0, Change: 5, Origin: Origin{Slot: 1, Sequence: 2}})
		if why != Given {
			t.Fatal(why)
		}
		c.Leased(d.ID, f, func() { w.left++ })
		_, _, st = c.Lock(begin, &Lock{
			ByOpen: true, ID: o.ID, Owner: []byte("l"), File: f, Range: Range{0, 10},
			Exclusive: true,
		})
		must(st)
		x, ok := c.Offload(f, Origin{Slot: 1, Sequence: 9})
		if !ok {
			t.Fatal("no copy")
		}
		w.copies[x.num] = "copy of " + name
		x.Add(77)
		if i == 1 {
			x.Finish(nfs.ErrNoSpc)
		}
	}
	// A recall that was sent, and one callback of which nobody knows what became.
	if s.Free(begin, testFile(10), nil, true) {
		t.Fatal("it is free")
	}
	c := s.sortedClients()[0]
	for _, x := range c.sessions {
		r := c.delegs[testFile(10)].recall()
		if _, ok := x.Back.Begin(&r); !ok {
			t.Fatal("it cannot be called")
		}
		a, _ := x.Back.Begin("what is it")
		x.Back.End(&a, Lost)
		x.Back.Bind(w.paths[0])
		for _, r := range []Request{{Slot: 0, Sequence: 1, Digest: 11}, {Slot: 2, Sequence: 1, Digest: 12}} {
			r.Session, r.Minor = x.ID, 2
			u, v, st := s.Sequence(begin, &r)
			must(st)
			if v != Execute {
				t.Fatal(v)
			}
			if u.Finish([]byte("reply")); r.Slot == 2 {
				r.Sequence, r.Digest = 2, 13
				u, _, _ = s.Sequence(begin, &r)
				u.Finish(nil)
			}
		}
	}
	// A delegation that was taken away.
	c = s.sortedClients()[1]
	d, why := c.Delegate(begin, &Delegate{File: testFile(30)})
	if why != Given {
		t.Fatal(why)
	}
	c.revoke(c.states[uint32(d.ID.Other[11])].(*deleg))

	must(s.Reserve(begin, testFile(40), lock.Owner{Client: "dos", ID: "x"}, netip.MustParseAddr("192.0.2.7"), Read, Write))
	full40(t, s, w)
	if _, st := s.ExchangeID(begin,
		&ExchangeID{Owner: []byte("one"), Verifier: verifier(2), Principal: user}); st != nfs.OK {
		t.Fatal(st)
	}
	return s, w
}

// full40 makes a client of version 4.0 with owners of all kinds.
func full40(t testing.TB, s *Server, w *wire) {
	must := func(st nfs.Status) {
		t.Helper()
		if st != nfs.OK {
			t.Fatal(st)
		}
	}
	cb := Callback{
		Program: 0x40000001, Ident: 3, Netid: "tcp", Addr: "10.0.0.1.2.3",
		To: netip.MustParseAddrPort("10.0.0.1:515"), Cred: &rpc.Cred{UID: 4},
		Secure: &Secure{Flavor: rpc.AuthKrb5p, Client: "host/c@R", Acceptor: "nfs/s@R"},
	}
	a := &SetClientID{Owner: []byte("four"), Verifier: verifier(1), Principal: user, Callback: cb}
	got, st := s.SetClientID(begin, a)
	must(st)
	c, _, st := s.ConfirmClientID(begin, got.Client, got.Confirm, user)
	must(st)
	c.SetPath(&Path{Callback: cb, Caller: w.path()})
	c.Path().Probe(begin, time.Second)
	c.Path().Answered(true)
	_, st = s.SetClientID(begin, a)
	must(st)
	for i, name := range []string{"open", "closed", "fresh"} {
		f := testFile(byte(50 + i))
		t1, _, st := c.BeginOpen(begin, []byte(name), 5, 55, false)
		must(st)
		o, st := c.Open(begin, &Open{Owner: []byte(name), File: f, Access: Both, Turn: t1})
		must(st)
		t1.End(&Answer{Status: nfs.OK, Result: []byte("opened"), File: f})
		if name == "fresh" {
			continue
		}
		t1, _, st = c.BeginState(begin, o.ID, OfUnconfirmed, 6, 66)
		must(st)
		id, st := c.ConfirmOpen(o.ID, f)
		must(st)
		t1.End(&Answer{Status: nfs.OK, Result: []byte("confirmed")})
		t1, _, st = c.BeginState(begin, id, OfOpen, 7, 77)
		must(st)
		if name == "closed" {
			_, st = c.Close40(t1, id, f)
		} else {
			must(t1.Locker([]byte("locker"), 1))
			_, _, st = c.Lock(begin, &Lock{ByOpen: true, ID: id, Owner: []byte("locker"), File: f, Range: Range{5, 5}, Turn: t1})
		}
		must(st)
		t1.End(&Answer{Status: st, Result: []byte("done")})
	}
}

// readable is a snapshot as values, with times relative to its moment, in an order that does not
// depend on chance.
func readable(t testing.TB, b []byte) (h savedServer, clients []savedClient) {
	t.Helper()
	dec := gob.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&h); err != nil {
		t.Fatal(err)
	}
	r := &restorer{delta: time.Duration(-h.Now)}
	for {
		var c savedClient
		if err := dec.Decode(&c); err != nil {
			t.Fatal(err)
		}
		if c.ID == 0 {
			break
		}
		clients = append(clients, c)
	}
	h.Now, h.Swept, h.Grace.Until = 0, r.shift(h.Swept), r.shiftTime(h.Grace.Until)
	slices.Sort(h.Grace.Known)
	slices.Sort(h.Grace.Waiting)
	slices.Sort(h.Grace.List)
	for i := range h.Recalls {
		h.Recalls[i].At = r.shift(h.Recalls[i].At)
	}
	sortBy(h.Recalls)
	sortBy(h.Foreign)
	for i := range clients {
		c := &clients[i]
		c.Renewed, c.RecalledAny = r.shift(c.Renewed), r.shift(c.RecalledAny)
		for i := range c.Delegs {
			d := &c.Delegs[i]
			d.Record.Given, d.Record.Last, d.Until = r.shift(d.Record.Given), r.shift(d.Record.Last), r.shift(d.Until)
		}
		slices.SortFunc(c.Opens, func(a, b *open) int { return int(a.Num) - int(b.Num) })
		slices.SortFunc(c.Delegs, func(a, b savedDeleg) int { return int(a.Record.Num) - int(b.Record.Num) })
		slices.SortFunc(c.Offloads, func(a, b savedOffload) int { return int(a.Num) - int(b.Num) })
		slices.SortFunc(c.Sessions, func(a, b savedSession) int { return bytes.Compare(a.ID[:], b.ID[:]) })
		if v := c.V40; v != nil {
			v.V40.Reaped = r.shift(v.V40.Reaped)
			if v.Path != nil {
				v.Path.ProbedAt = r.shiftTime(v.Path.ProbedAt)
			}
			for _, o := range slices.Concat(v.OpenOwners, v.LockOwners) {
				o.Used = r.shift(o.Used)
			}
			slices.SortFunc(v.OpenOwners, func(a, b *seqOwner) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return h, clients
}

func sortBy[T any](l []T) {
	slices.SortFunc(l, func(a, b T) int { return bytes.Compare(fmt.Append(nil, a), fmt.Append(nil, b)) })
}

// restored is a server that goes on from another one's snapshot, later.
func restored(t testing.TB, s *Server, w *wire, pause time.Duration) *Server {
	t.Helper()
	b, err := s.Snapshot(begin, w.snapshotFuncs())
	if err != nil {
		t.Fatal(err)
	}
	locks, err := s.cfg.Locks.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	next := New(Config{Boot: 99, Lease: 90 * time.Second})
	if err := next.cfg.Locks.Restore(locks, nil); err != nil {
		t.Fatal(err)
	}
	if err := next.Restore(b, begin.Add(pause), w.restoreFuncs()); err != nil {
		t.Fatal(err)
	}
	return next
}

// TestSnapshot: a server that was restored has the same snapshot, whatever time has passed, and
// so has the one of before.
func TestSnapshot(t *testing.T) {
	s, w := fullServer(t)
	before, err := s.Snapshot(begin, w.snapshotFuncs())
	if err != nil {
		t.Fatal(err)
	}
	const pause = 7 * time.Second
	next := restored(t, s, w, pause)
	for name, x := range map[string]*Server{"the next server": next, "the server itself": s} {
		at := begin
		if x == next {
			at = at.Add(pause)
		}
		after, err := x.Snapshot(at, w.snapshotFuncs())
		if err != nil {
			t.Fatal(err)
		}
		h1, c1 := readable(t, before)
		h2, c2 := readable(t, after)
		if !reflect.DeepEqual(h1, h2) {
			t.Errorf("%s:\n%+v\n%+v", name, h1, h2)
		}
		for i := range c1 {
			// The callback that was under way is now one whose answer was lost, which is the same.
			if i >= len(c2) || !reflect.DeepEqual(c1[i], c2[i]) {
				t.Errorf("%s, client %d:\n%+v\n%+v", name, i, c1[i], c2[i])
			}
		}
	}
	if n, m := s.Counts(), next.Counts(); n != m || n.Delegations != 2 || n.Locks != 3 || n.Opens != 4 {
		t.Errorf("%+v and %+v", n, m)
	}
	if n, m := s.Memory(), next.Memory(); n != m || n.Bytes == 0 {
		t.Errorf("%+v and %+v", n, m)
	}
	if n, m := s.Delegations(), next.Delegations(); n != m {
		t.Errorf("%+v and %+v", n, m)
	}
	if s.Offloads() != next.Offloads() || s.Denying() != next.Denying() {
		t.Error("other counts")
	}
	slices.Sort(w.leased)
	if fmt.Sprint(w.leased) != "[10 true 11 false]" || w.left != 0 {
		t.Errorf("leases of %v, %d given up", w.leased, w.left)
	}
	for _, c := range next.sortedClients() {
		next.remove(c)
	}
	if w.left != 2 || next.Offloads() != 0 || next.delegs.all.Load() != 0 || next.delegs.writes.Load() != 0 {
		t.Errorf("%d leases were given up; %d copies, %d delegations are left", w.left, next.Offloads(),
			next.delegs.all.Load())
	}
	if n := next.Memory().Bytes; n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	next.UnreserveAll("dos")
	if next.Denying() {
		t.Error("a reservation of nobody is left")
	}
}
