package state

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestRevoked: who does not return a delegation within a lease loses it, and hears of
// that. Who is writing gets more time, but not for ever.
func TestRevoked(t *testing.T) {
	d := delegServer(t, Config{})
	a, x, _ := d.callable(begin, "a")
	id := d.give(a, begin, fileA, true)
	other := d.give(a, begin, fileB, false)
	now := begin
	d.Free(now, fileA, nil, false)
	d.recalls(true)
	alive := func(step time.Duration) {
		now = now.Add(step)
		a.renew(now)
	}
	alive(80 * time.Second)
	if st := a.IO(now, id, fileA, true); st != nfs.OK {
		t.Fatal(st)
	}
	alive(80 * time.Second)
	if d.Free(now, fileA, nil, false) {
		t.Error("taken away from a client that is writing")
	}
	for range 10 {
		a.IO(now, id, fileA, true)
		alive(40 * time.Second)
	}
	if n := x.Notices(); n.Revoked {
		t.Error("revoked before somebody wanted it")
	}
	if !d.Free(now, fileA, nil, false) {
		t.Error("never taken away")
	}
	if n := x.Notices(); !n.Revoked || n.PathDown || n.SessionPathDown || n.Fault {
		t.Errorf("%+v", n)
	}
	for what, st := range map[string]nfs.Status{
		"TEST_STATEID": a.TestStateid(id), "WRITE": a.IO(now, id, fileA, true), "READ": a.IO(now, id, fileA, false),
		"DELEGRETURN": a.ReturnDelegation(id, fileA),
	} {
		if st != nfs.ErrDelegRevoked {
			t.Errorf("%s: %v", what, st)
		}
	}
	if st := a.TestStateid(other); st != nfs.OK {
		t.Errorf("the other delegation: %v", st)
	}
	if st := a.FreeStateid(other); st != nfs.ErrLocksHeld {
		t.Errorf("FREE_STATEID of one that is in use: %v", st)
	}
	if st := a.FreeStateid(id); st != nfs.OK {
		t.Error(st)
	}
	if n := x.Notices(); n.Revoked {
		t.Error("still told after FREE_STATEID")
	}
	if st := a.TestStateid(id); st != nfs.ErrBadStateID {
		t.Error(st)
	}
	if n := d.Delegations(); n.Now != 1 || n.Revoked != 1 {
		t.Errorf("%+v", n)
	}
	// A client that is silent loses everything instead.
	if !d.Free(now.Add(91*time.Second), fileB, nil, true) || a.TestStateid(other) != nfs.ErrExpired {
		t.Error("a silent client keeps its delegations")
	}
	if n := d.Delegations(); n.Now != 0 || d.delegs.writes.Load() != 0 {
		t.Errorf("%+v", n)
	}
}

func TestDelegationBounds(t *testing.T) {
	d := delegServer(t, Config{Delegations: 5, ClientDelegations: 3})
	a, _, _ := d.callable(begin, "a")
	b, _, _ := d.callable(begin, "b")
	given := func(c *Client, from byte) (n int) {
		for i := range byte(10) {
			if _, why := c.Delegate(begin, &Delegate{File: testFile(from + i)}); why == Given {
				n++
			} else if why != WhyResource {
				t.Errorf("why %d", why)
			}
		}
		return n
	}
	if n, m := given(a, 1), given(b, 100); n != 3 || m != 2 {
		t.Errorf("%d and %d", n, m)
	}
	d.DropExport(1)
	if n := d.Counts(); n.Delegations != 0 || d.Delegations().Now != 0 {
		t.Errorf("%+v", n)
	}
	if n := given(b, 100); n != 3 {
		t.Errorf("%d", n)
	}
	d.remove(b)
	if n := d.Delegations().Now; n != 0 {
		t.Errorf("%d are left of a client that is gone", n)
	}
}

// TestReclaimedDelegation: in the grace period it is enough that there is a connection.
func TestReclaimedDelegation(t *testing.T) {
	s := New(Config{Boot: 8, Known: []string{"a"}, GraceUntil: begin.Add(90 * time.Second)})
	c := arrive(t, s, begin, "a")
	for _, x := range c.sessions {
		x.Back = NewBackchannel(backAttr, 1, nil)
		s.Bind(x, new(path))
	}
	if _, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Both, Reclaim: true}); st != nfs.OK {
		t.Fatal(st)
	}
	if _, why := c.Delegate(begin, &Delegate{File: fileA, Write: true}); why != WhyResource {
		t.Errorf("a new one: %d", why)
	}
	got, why := c.Delegate(begin, &Delegate{File: fileA, Write: true, Reclaim: true})
	if why != Given || !got.Write {
		t.Errorf("%+v %d", got, why)
	}
	if st := c.HasDelegation(got.ID, fileA); st != nfs.OK {
		t.Error(st)
	}
}

// TestBackchannel: slots, and connections that end.
func TestBackchannel(t *testing.T) {
	b := NewBackchannel(Channel{MaxRequest: 4096, MaxOps: 2, MaxSlots: 2}, 5, nil)
	if _, ok := b.Begin("a"); ok || b.Status() != (BackStatus{}) {
		t.Fatal("something without a connection")
	}
	p, q := new(path), new(path)
	b.Bind(p)
	b.Bind(q)
	first, ok := b.Begin("a")
	if !ok || first.Path != rpc.Caller(q) || first.Sequence != 1 || first.Slot != 0 || first.Program != 5 {
		t.Fatalf("%+v", first)
	}
	second, _ := b.Begin("b")
	if second.Slot != 1 || second.Highest != 1 {
		t.Fatalf("%+v", second)
	}
	if _, ok := b.Begin("c"); ok {
		t.Fatal("more than there are slots")
	}
	b.End(&first, Refused) // its sequence number is not used up
	if s := b.Status(); !s.Proven || !s.Live {
		t.Errorf("%+v", s)
	}
	first, _ = b.Begin("c")
	if first.Sequence != 1 || first.What != "c" {
		t.Errorf("%+v", first)
	}
	b.End(&first, Executed)
	// The reply is lost with its connection: the same again, on the other one, before
	// anything else.
	b.End(&second, Lost)
	if s := b.Status(); !s.Live || !s.Proven {
		t.Errorf("one connection is left: %+v", s)
	}
	again, _ := b.Begin("d")
	if again.What != "b" || again.Sequence != 1 || again.Slot != 1 || again.Path != rpc.Caller(p) {
		t.Errorf("%+v", again)
	}
	then, _ := b.Begin("d")
	if then.What != "d" || then.Sequence != 2 || then.Slot != 0 {
		t.Errorf("%+v", then)
	}
	p.gone.Store(true)
	if s := b.Status(); s.Live || s.Proven || !s.Down {
		t.Errorf("%+v", s)
	}
	b.End(&again, Executed)
	b.End(&then, Misordered)
	b.Bind(new(path))
	a, ok := b.Begin("e")
	if !ok || a.Slot != 1 || a.Sequence != 2 {
		t.Errorf("%+v", a)
	}
	b.End(&a, Misordered) // no slot is left
	if s := b.Status(); !s.Fault || s.Proven {
		t.Errorf("%+v", s)
	}
	if _, ok := b.Begin("f"); ok {
		t.Error("a slot that the client is not at one with was used")
	}
	for range 3 * pathsMax {
		b.Bind(new(path))
	}
	if len(b.paths) != pathsMax {
		t.Errorf("%d connections", len(b.paths))
	}
}

// TestDelegationModel: clients open, close, change and return at random; no client has
// a delegation that an open of another, or a change going on, contradicts.
func TestDelegationModel(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		d := delegServer(t, Config{})
		now := begin
		const clients, files = 3, 3
		var cs [clients]*Client
		var has [clients][files]*Delegated
		var opens [clients][files]struct {
			id     Stateid
			access uint32
		}
		held := make(map[lock.File]int)
		for i := range cs {
			cs[i], _, _ = d.callable(now, fmt.Sprint(i))
		}
		for range 600 {
			now = now.Add(time.Duration(r.IntN(3)) * time.Second)
			for i := range cs {
				cs[i].renew(now)
			}
			i, j := r.IntN(clients), r.IntN(files)
			c, f := cs[i], testFile(byte(j+1))
			contradicts := func(change bool) bool {
				for k := range cs {
					if k != i && has[k][j] != nil && (change || has[k][j].Write) {
						return true
					}
				}
				return false
			}
			switch r.IntN(6) {
			case 0:
				access := 1 + r.Uint32N(3)
				got, st := c.Open(now, &Open{Owner: []byte("p"), File: f, Access: access})
				if (st == nfs.OK) == contradicts(access&Write != 0) {
					t.Fatalf("seed %d: open of %d: %v with %+v", seed, access, st, has)
				}
				if st == nfs.OK {
					opens[i][j].id = got.ID
					opens[i][j].access |= access
				}
			case 1:
				if opens[i][j].access != 0 {
					if st := c.Close(opens[i][j].id, f); st != nfs.OK {
						t.Fatal(st)
					}
					opens[i][j].access = 0
				}
			case 2:
				write := r.IntN(2) == 0
				got, why := c.Delegate(now, &Delegate{File: f, Write: write})
				if why != Given {
					break
				}
				if contradicts(write) || has[i][j] != nil || held[f] > 0 {
					t.Fatalf("seed %d: delegated against %+v", seed, has)
				}
				for k := range cs {
					if k != i && (opens[k][j].access&Write != 0 || write && opens[k][j].access != 0) {
						t.Fatalf("seed %d: delegated against an open", seed)
					}
				}
				has[i][j] = &got
			case 3:
				h, ok := d.BeginChange(now, f, c)
				if ok == contradicts(true) || h != ok {
					t.Fatalf("seed %d: hold %v %v", seed, h, ok)
				}
				if h {
					held[f]++
				}
			case 4:
				if held[f] > 0 {
					d.EndChange(f)
					held[f]--
				}
			case 5:
				for _, rc := range d.recalls(true) {
					for k := range cs {
						for l := range files {
							if g := has[k][l]; g != nil && rc.Client == cs[k] && rc.ID == g.ID {
								if st := cs[k].ReturnDelegation(g.ID, testFile(byte(l+1))); st != nfs.OK {
									t.Fatalf("seed %d: %v", seed, st)
								}
								has[k][l] = nil
							}
						}
					}
				}
			}
			// What is asked for long enough is taken away; the clients find out.
			for k := range cs {
				for l := range files {
					if g := has[k][l]; g != nil && cs[k].TestStateid(g.ID) == nfs.ErrDelegRevoked {
						if st := cs[k].FreeStateid(g.ID); st != nfs.OK {
							t.Fatal(st)
						}
						has[k][l] = nil
					}
				}
			}
		}
		n := 0
		for k := range cs {
			for l := range files {
				if has[k][l] != nil {
					n++
				}
			}
		}
		if got := d.Delegations().Now; got != n {
			t.Errorf("seed %d: %d delegations, not %d", seed, got, n)
		}
	}
}

// TestDelegationsInParallel: clients that give back what they are asked for, at once, and
// others that come and go; in the end the tables agree.
func TestDelegationsInParallel(t *testing.T) {
	var s *Server
	var returning sync.WaitGroup
	s = New(Config{Boot: 7, Recall: func(list []Recall) {
		for i := range list {
			r := &list[i]
			returning.Go(func() {
				s.Recalled(r, true)
				r.Client.ReturnDelegation(r.ID, r.File) // unless it is gone
			})
		}
	}})
	d := &delegs{Server: s, t: t}
	const clients, files = 4, 3
	var cs [clients]*Client
	for i := range cs {
		cs[i], _, _ = d.callable(begin, fmt.Sprint(i))
	}
	var work sync.WaitGroup
	for i := range cs {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			c := cs[i]
			for n := range 2000 {
				now := begin.Add(time.Duration(n) * recentTime)
				f := testFile(byte(r.IntN(files) + 1))
				c.renew(now)
				switch r.IntN(5) {
				case 0:
					if got, st := c.Open(now, &Open{Owner: []byte("p"), File: f, Access: 1 + r.Uint32N(3)}); st == nfs.OK {
						c.Close(got.ID, f)
					}
				case 1, 2:
					c.Delegate(now, &Delegate{File: f, Write: r.IntN(2) == 0})
				case 3:
					if held, _ := s.BeginChange(now, f, c); held {
						s.EndChange(f)
					}
				case 4:
					if ch := s.Watch(f); ch != nil && s.Free(now, f, c, true) {
						<-ch // whoever is waited for is gone
					}
				}
			}
		})
	}
	work.Wait()
	returning.Wait()
	n := 0
	for _, c := range cs {
		n += len(c.delegs)
	}
	if got := s.Delegations(); got.Now != n || got.Given == 0 || got.Recalls == 0 {
		t.Errorf("%+v, the clients have %d", got, n)
	}
	for _, c := range cs {
		s.remove(c)
	}
	if got := s.Delegations().Now; got != 0 || s.delegs.writes.Load() != 0 {
		t.Errorf("%d are left", got)
	}
	for i := range s.files {
		if h := &s.files[i].deleg; len(h.m)+len(h.changing)+len(h.watch) > 0 {
			t.Errorf("left in a shard: %+v", h)
		}
	}
}
