package state

import (
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// hostWith is a host on which a program has bytes 10 to 19 of every file.
type hostWith struct{ exclusive bool }

func (h hostWith) LockHost(_ blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	if start <= 19 && end >= 10 && (exclusive || h.exclusive) {
		return &blockstore.HostLock{Start: 10, End: 19, Exclusive: h.exclusive, PID: 4711}, nil
	}
	return nil, nil
}

func (h hostWith) TestHost(x blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	return h.LockHost(x, start, end, exclusive)
}
func (hostWith) UnlockHost(blockstore.Handle, uint64, uint64) {}
func (hostWith) ReleaseHost(blockstore.Handle)                {}

// TestHostInTheWay: a lock of the host denies LOCK and LOCKT, with an owner of no client, and
// keeps a file from being delegated to who would lock it without a word.
func TestHostInTheWay(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		d := delegServer(t, Config{})
		d.cfg.Locks.UseHost(func(uint32) (blockstore.HostLocker, bool) { return hostWith{exclusive}, true })
		c, _, _ := d.callable(begin, "a")
		got, st := c.Open(begin, &Open{Owner: []byte("p"), File: fileA, Access: Both})
		if st != nfs.OK {
			t.Fatal(st)
		}
		for _, a := range []struct {
			r    Range
			ex   bool
			free bool
		}{
			{Range{0, 10}, true, true},
			{Range{0, 11}, true, false},
			{Range{15, 1}, false, !exclusive},
			{Range{20, lock.ToEnd}, true, true},
		} {
			ask := Lock{ByOpen: true, ID: got.ID, Owner: []byte("l"), File: fileA, Range: a.r, Exclusive: a.ex}
			for _, what := range []string{"LOCKT", "LOCK"} {
				var by *Denied
				if what == "LOCKT" {
					by, st = c.TestLock(begin, &ask)
				} else {
					_, by, st = c.Lock(begin, &ask)
				}
				switch {
				case a.free && st == nfs.OK:
				case !a.free && st == nfs.ErrDenied && by.Range == Range{10, 10} && by.Exclusive == exclusive && by.Client == 0 &&
					strings.Contains(by.Owner, "4711"):
				default:
					t.Errorf("%s of %+v, exclusive %v beside %v: %v, %+v", what, a.r, a.ex, exclusive, st, by)
				}
			}
		}
		b, _, _ := d.callable(begin, "b")
		for _, write := range []bool{false, true} {
			want := Given
			if exclusive || write {
				want = WhyContention
			}
			if _, why := b.Delegate(begin, &Delegate{File: fileB, Write: write}); why != want {
				t.Errorf("write %v beside a lock, exclusive %v: %d", write, exclusive, why)
			}
		}
	}
}
