package state

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

var (
	hostA = netip.MustParseAddr("10.0.0.1")
	hostB = netip.MustParseAddr("10.0.0.2")
)

// TestForeignShares tries every reservation of another protocol beside every open, in
// both orders, and what becomes of those who have none.
func TestForeignShares(t *testing.T) {
	who := lock.Owner{Client: "10.0.0.1 a", ID: "p"}
	for a := uint32(1); a <= Both; a++ {
		for d := uint32(0); d <= Both; d++ {
			for b := uint32(0); b <= Both; b++ {
				for e := uint32(0); e <= Both; e++ {
					want := nfs.OK
					if a&e != 0 || d&b != 0 {
						want = nfs.ErrShareDenied
					}
					s := testServer()
					c, _ := join(t, s, begin, "one")
					got, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: a, Deny: d})
					if st != nfs.OK {
						t.Fatal(st)
					}
					if st := s.Reserve(begin, fileA, who, hostA, b, e); st != want {
						t.Errorf("access %d deny %d, then %d %d of another protocol: %v", a, d, b, e, st)
					}
					if st := s.Reserve(begin, fileB, who, hostA, b, e); st != nfs.OK {
						t.Errorf("another file: %v", st)
					}
					denied := d
					if want == nfs.OK {
						denied |= e
					}
					for _, mode := range []uint32{Read, Write} {
						if got := s.Denied(begin, fileA, hostB, mode == Write, true); got != (denied&mode != 0) {
							t.Errorf("deny %d and %d: mode %d denied is %v", d, e, mode, got)
						}
						if got := s.Denied(begin, fileA, hostA, mode == Write, true); got != (d&mode != 0) {
							t.Errorf("deny %d and one's own %d: mode %d denied is %v", d, e, mode, got)
						}
						wantIO := nfs.OK
						if denied&mode != 0 {
							wantIO = nfs.ErrLocked
						}
						if st := c.IO(begin, Anonymous, fileA, mode == Write); st != wantIO {
							t.Errorf("anonymous, deny %d and %d, mode %d: %v", d, e, mode, st)
						}
					}
					s.UnreserveAll("10.0.0.1 b")
					s.UnreserveAll(who.Client)
					if st := c.Close(got.ID, fileA); st != nfs.OK {
						t.Fatal(st)
					}
					if s.Denying() || s.shares.foreign.Load() != 0 {
						t.Fatalf("%d denials, %d reservations are left", s.shares.denials.Load(), s.shares.foreign.Load())
					}
					if st := s.Reserve(begin, fileA, who, hostA, b, e); st != nfs.OK {
						t.Errorf("of a file that nobody has open: %v", st)
					}
					if _, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: a, Deny: d}); st != want {
						t.Errorf("%d %d of another protocol, then access %d deny %d: %v", b, e, a, d, st)
					}
				}
			}
		}
	}
}

// TestDenialsCounted: whatever becomes of an open, none is counted that is not there.
func TestDenialsCounted(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *Server, c *Client, id Stateid)
	}{
		{"close", func(_ *Server, c *Client, id Stateid) { c.Close(id, fileA) }},
		{"downgrade", func(_ *Server, c *Client, id Stateid) { c.Downgrade(id, fileA, Read, 0) }},
		{"evicted", func(s *Server, c *Client, _ Stateid) { s.Evict(c.ID) }},
		{"export", func(s *Server, _ *Client, _ Stateid) { s.DropExport(fileA.Export) }},
		{"expired", func(s *Server, _ *Client, _ Stateid) {
			later := begin.Add(91 * time.Second)
			if !s.Denied(later, fileA, hostA, true, false) {
				t.Error("taken away where that must not be")
			}
			if s.Denied(later, fileA, hostA, true, true) {
				t.Error("still denied")
			}
		}},
		{"wanted", func(s *Server, _ *Client, _ Stateid) {
			later := begin.Add(91 * time.Second)
			if st := s.Reserve(later, fileA, lock.Owner{Client: "x"}, hostA, Write, 0); st != nfs.OK {
				t.Errorf("%v", st)
			}
		}},
	} {
		s := testServer()
		x, _ := join(t, s, begin, "o")
		if _, st := x.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read}); st != nfs.OK {
			t.Fatal(st)
		}
		got, st := x.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read, Deny: Write})
		if st != nfs.OK || !s.Denying() {
			t.Fatalf("%v, denying %v", st, s.Denying())
		}
		x.Revert(&got)
		if s.Denying() {
			t.Errorf("%s: denied after it was taken back", c.name)
		}
		if got, st = x.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Read, Deny: Write}); st != nfs.OK {
			t.Fatal(st)
		}
		c.end(s, x, got.ID)
		if n := s.shares.denials.Load(); n != 0 {
			t.Errorf("%s: %d denials", c.name, n)
		}
	}
}

// TestForeignBounds: an owner has one reservation of a file, all of them are bounded, and
// those of an export go with it.
func TestForeignBounds(t *testing.T) {
	s := testServer()
	who := lock.Owner{Client: "c", ID: "p"}
	for _, deny := range []uint32{Write, 0, Both, Both} {
		if st := s.Reserve(begin, fileA, who, hostA, Read, deny); st != nfs.OK {
			t.Fatal(st)
		}
		if s.Denying() != (deny != 0) {
			t.Errorf("deny %d: denying %v", deny, s.Denying())
		}
	}
	if n := s.shares.denials.Load(); n != 1 {
		t.Errorf("%d denials", n)
	}
	f := fileA
	for i := 1; i <= foreignMax; i++ {
		f.Handle.Len, f.Handle.B[1], f.Handle.B[2] = 3, byte(i), byte(i>>8)
		want := nfs.OK
		if i == foreignMax {
			want = nfs.ErrResource
		}
		if st := s.Reserve(begin, f, who, hostA, Read, Write); st != want {
			t.Fatalf("%d: %v", i, st)
		}
	}
	s.Unreserve(fileA, who)
	if st := s.Reserve(begin, f, who, hostA, Read, Write); st != nfs.OK {
		t.Errorf("when there is room again: %v", st)
	}
	s.DropExport(fileA.Export)
	if s.Denying() || s.shares.foreign.Load() != 0 {
		t.Error("they outlive their export")
	}
}

func BenchmarkDenied(b *testing.B) {
	s := testServer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if s.Denied(begin, fileA, hostA, true, true) {
				b.Error("denied")
			}
		}
	})
}
