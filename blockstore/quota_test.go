package blockstore

import "testing"

func TestQuotaLeft(t *testing.T) {
	q := Quota{Used: 100}
	for _, c := range []struct{ limit, avail, want uint64 }{
		{0, 7, 7}, {100, 1000, 0}, {99, 1000, 0}, {150, 1000, 50}, {150, 30, 30}, {1<<64 - 1, 10, 10},
	} {
		if got := q.Left(c.limit, c.avail); got != c.want {
			t.Errorf("limit %d, %d free: %d", c.limit, c.avail, got)
		}
	}
}
