package state

import (
	"fmt"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

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
