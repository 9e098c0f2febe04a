package verbs

import (
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestRecent: equal requests are one entry, and the oldest entries make room.
func TestRecent(t *testing.T) {
	var r recent
	if got := r.list(); len(got) != 0 {
		t.Fatalf("nothing happened: %+v", got)
	}
	for i := range 3 {
		r.add(Request{At: rdma.Time(10 + i), Op: rdma.WCWrite, Bytes: 100})
	}
	r.add(Request{At: 20, Op: rdma.WCSend, Bytes: 7})
	r.add(Request{At: 30, Did: Received, Op: rdma.WCRecv, Bytes: 5})
	r.add(Request{At: 40, Did: Failed, Op: rdma.WCWrite, Status: rdma.RetryExcErr, Vendor: 0x81})
	r.add(Request{At: 41, Did: Failed, Op: rdma.WCWrite, Status: rdma.RemAccessErr})
	want := []Request{
		{At: 10, Op: rdma.WCWrite, Bytes: 300, Count: 3},
		{At: 20, Op: rdma.WCSend, Bytes: 7, Count: 1},
		{At: 30, Did: Received, Op: rdma.WCRecv, Bytes: 5, Count: 1},
		{At: 40, Did: Failed, Op: rdma.WCWrite, Status: rdma.RetryExcErr, Vendor: 0x81, Count: 1},
		{At: 41, Did: Failed, Op: rdma.WCWrite, Status: rdma.RemAccessErr, Count: 1},
	}
	got := r.list()
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d: %+v, not %+v", i, got[i], want[i])
		}
	}
	for i := range 2 * recentMax {
		r.add(Request{At: rdma.Time(100 + i), Op: rdma.WCOp(i % 2)})
	}
	if got = r.list(); len(got) != recentMax || got[0].At != 100+recentMax || got[recentMax-1].At != 100+2*recentMax-1 {
		t.Errorf("of %d: %d, from %d to %d", 2*recentMax+5, len(got), got[0].At, got[len(got)-1].At)
	}
}
