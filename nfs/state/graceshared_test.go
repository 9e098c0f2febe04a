package state

import (
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
)

// period is a Cluster.
type period struct{ on, undecided bool }

func (p *period) Grace() bool              { return p.on }
func (p *period) Undecided(time.Time) bool { return p.undecided }

// TestReclaimOfServedClient: a client that a server serves already reclaims there what it had at
// another one, which is lost. What it has here stays, in the journal, too.
func TestReclaimOfServedClient(t *testing.T) {
	var d disk
	p := new(period)
	s := New(Config{Boot: 7, Journal: &d, Cluster: p})
	c := arrive(t, s, begin, "both")
	idle := arrive(t, s, begin, "idle")
	for _, c := range []*Client{c, idle} {
		if st := c.ReclaimComplete(); st != nfs.OK {
			t.Fatal(st)
		}
		if _, st := c.Open(begin, &Open{Owner: []byte("p"), File: testFile(9), Access: Both}); st != nfs.OK {
			t.Fatal(st)
		}
	}
	p.undecided = true // the other server may be lost
	if _, st := tryOpen(c, begin, true, 0); st != nfs.ErrJukebox {
		t.Fatalf("a reclaim before the other server is declared lost: %v", st)
	}
	p.on, p.undecided = true, false
	s.BeginReclaim([]string{"both", "idle"}, begin.Add(time.Minute))
	if s.Recovered(begin) {
		t.Fatal("the server does not wait for clients that it serves already")
	}
	hold(t, c, begin, true)
	if st := c.ReclaimComplete(); st != nfs.OK {
		t.Fatalf("the second RECLAIM_COMPLETE: %v", st)
	}
	if _, st := tryOpen(c, begin, true, 0); st != nfs.ErrNoGrace {
		t.Fatalf("a reclaim after RECLAIM_COMPLETE: %v", st)
	}
	if st := c.ReclaimComplete(); st != nfs.ErrCompleteAlready {
		t.Fatalf("the third RECLAIM_COMPLETE: %v", st)
	}
	if s.Recovered(begin) || !s.Recovered(begin.Add(time.Minute)) {
		t.Fatal("the server waits for the other client for a minute")
	}
	if !slices.Equal(d.list, []string{"both", "idle"}) {
		t.Fatalf("%q may reclaim after the next start", d.list)
	}
	s.ForgetReclaims()
	p.on = false
	if _, st := tryOpen(idle, begin, true, 0); st != nfs.ErrNoGrace {
		t.Fatalf("a reclaim after the period: %v", st)
	}
	if _, st := tryOpen(idle, begin, false, 0); st != nfs.OK {
		t.Fatalf("an open after the period: %v", st)
	}
}
