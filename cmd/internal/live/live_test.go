package live

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/measure"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func sample(up time.Duration, f func(*Sample)) *Sample {
	s := &Sample{Started: start, Taken: start.Add(up), UptimeNS: int64(up)}
	f(s)
	return s
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(1, math.Abs(b)) }

// TestRates: what happened between two samples, by the second.
func TestRates(t *testing.T) {
	before := sample(10*time.Second, func(s *Sample) {
		s.RDMAWritten, s.Retransmits = 500, 3
		s.Operations = []Point{{
			Name: "nfs4.READ", Transport: "rdma", In: 100, Out: 1000, TookNS: 50_000,
			Took: []uint64{10, 20},
		}}
		s.QPs = []QP{{QPN: 17, Device: "a", Remote: "b", PacketsIn: 5, PacketsOut: 6, Retransmits: 1, In: 10, Out: 20}}
	})
	after := sample(12*time.Second, func(s *Sample) {
		s.RDMAWritten, s.Retransmits = 1500, 7
		s.Operations = []Point{
			{
				Name: "nfs4.READ", Transport: "rdma", In: 300, Out: 9000, Failed: 2, TookNS: 3_050_000,
				Took: []uint64{10, 120, 0, 0, 0, 0, 0, 0, 0, 0, 1},
			},
			{Name: "nfs4.WRITE", Transport: "rdma", In: 8000, TookNS: 1_000_000, Took: []uint64{0, 0, 4}},
		}
		s.QPs = []QP{{
			QPN: 17, Device: "a", Remote: "b", PacketsIn: 25, PacketsOut: 46, Retransmits: 5, In: 110, Out: 220,
			SendQueued: 3,
		}}
	})
	v := Between(before, after)
	if v.SinceStart || v.Interval != 2 || v.RDMAWritten != 500 || v.Retransmits != 2 {
		t.Errorf("since start %v, %v s, %v bytes, %v retransmits", v.SinceStart, v.Interval, v.RDMAWritten, v.Retransmits)
	}
	r := v.Operations[0]
	if r.Calls != 101 || r.Ops != 50.5 || r.In != 100 || r.Out != 4000 || r.Failed != 1 || !near(r.Mean, 3000.0/101) ||
		r.Depth != 0.0015 {
		t.Errorf("READ: %+v", r)
	}
	if w := v.Operations[1]; w.Calls != 4 || w.In != 4000 || w.Mean != 250 {
		t.Errorf("an operation that was not there before: %+v", w)
	}
	if v.Total.Calls != 105 || v.Total.In != 4100 || v.Total.Out != 4000 || v.Total.Depth != 0.002 {
		t.Errorf("total: %+v", v.Total)
	}
	if q := v.QPs[0]; q.QPN != "0x11" || q.PacketsIn != 10 || q.PacketsOut != 20 || q.Retransmits != 2 || q.In != 50 ||
		q.Out != 100 || q.SendQueued != 3 {
		t.Errorf("queue pair: %+v", q)
	}
	if len(before.Operations[0].Took) != 2 || after.Operations[0].Took[1] != 120 {
		t.Error("the samples were changed")
	}
}

// TestQuantile: shares of buckets.
func TestQuantile(t *testing.T) {
	last := make([]uint64, measure.Buckets)
	last[measure.Buckets-1] = 1
	for _, tc := range []struct {
		took []uint64
		want float64
	}{
		{nil, 0},
		{[]uint64{1}, 1},
		{[]uint64{0, 0, 100}, 2 + 2*0.99},
		{[]uint64{99, 0, 1}, 1},
		{[]uint64{98, 0, 2}, 3},
		{[]uint64{0, 1}, 2},
		{last, math.Pow(2, measure.Buckets-2)},
	} {
		n := uint64(0)
		for _, x := range tc.took {
			n += x
		}
		if got := quantile(tc.took, n, 99); !near(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.took, got, tc.want)
		}
	}
}

// TestBegunAnew: counters that went back, and a process that was restarted.
func TestBegunAnew(t *testing.T) {
	at := func(up time.Duration, calls uint64) *Sample {
		return sample(up, func(s *Sample) {
			s.RDMARead = calls * 10
			s.Clients = []Point{{Name: "10.0.0.1", Transport: "tcp", In: calls, TookNS: calls, Took: []uint64{calls}}}
			s.QPs = []QP{{QPN: 1, PacketsIn: calls, PacketsOut: calls, Out: calls}}
		})
	}
	first := Between(nil, at(4*time.Second, 100))
	if !first.SinceStart || first.Interval != 4 || first.Clients[0].Ops != 25 {
		t.Errorf("the first view: %+v", first)
	}
	again := at(2*time.Second, 50)
	again.Started = start.Add(time.Minute)
	if v := Between(at(4*time.Second, 100), again); !v.SinceStart || v.Clients[0].Ops != 25 || v.RDMARead != 250 ||
		v.QPs[0].Out != 25 {
		t.Errorf("after a restart: %+v", v)
	}
	if v := Between(at(4*time.Second, 100), at(6*time.Second, 10)); v.SinceStart || v.Clients[0].Ops != 5 ||
		v.RDMARead != 50 || v.QPs[0].PacketsIn != 5 {
		t.Errorf("counters that were begun anew: %+v", v)
	}
	if v := Between(at(4*time.Second, 100), at(4*time.Second, 100)); !v.SinceStart || v.Clients[0].Ops != 25 {
		t.Errorf("the same sample twice: %+v", v)
	}
	if v := Between(nil, sample(0, func(*Sample) {})); v.Total.Ops != 0 || v.Interval != 1 {
		t.Errorf("nothing at all: %+v", v)
	}
}

// TestOthers: a client that is no longer told apart does not make a peak of the others.
func TestOthers(t *testing.T) {
	point := func(name, transport string, n uint64) Point {
		return Point{Name: name, Transport: transport, In: 10 * n, TookNS: n, Took: []uint64{n}}
	}
	before := sample(time.Second, func(s *Sample) {
		s.Clients = []Point{
			point("10.0.0.1", "tcp", 1000), point("10.0.0.2", "tcp", 7), point("10.0.0.1", "rdma", 5000),
			point("other", "tcp", 30),
		}
	})
	after := sample(2*time.Second, func(s *Sample) {
		s.Clients = []Point{
			point("10.0.0.2", "tcp", 9), point("10.0.0.3", "tcp", 4), point("other", "tcp", 30+1000+6),
			point("other", "rdma", 5001),
		}
	})
	got := make(map[string]uint64)
	for _, r := range Between(before, after).Clients {
		got[r.Name+" "+r.Transport] = r.Calls
	}
	for name, want := range map[string]uint64{"10.0.0.2 tcp": 2, "10.0.0.3 tcp": 4, "other tcp": 6, "other rdma": 1} {
		if got[name] != want {
			t.Errorf("%s: %d calls, want %d", name, got[name], want)
		}
	}
}

// TestNewPoint: what was recorded, with zeros at the end left out, and never null in JSON.
func TestNewPoint(t *testing.T) {
	s := measure.Sums{In: 1, Out: 2, Failed: 3, Took: 4}
	s.N[3] = 9
	p := NewPoint("x", "", "tcp", &s)
	if p.In != 1 || p.Out != 2 || p.Failed != 3 || p.TookNS != 4 || len(p.Took) != 4 || p.Took[3] != 9 {
		t.Errorf("%+v", p)
	}
	p = NewPoint("x", "", "tcp", new(measure.Sums))
	if b, err := json.Marshal(p); err != nil ||
		string(b) != `{"name":"x","transport":"tcp","in_bytes":0,"out_bytes":0,"failed":0,"took_ns":0,"took":[]}` {
		t.Errorf("%s %v", b, err)
	}
}

// TestMounts: a mount has rates from its second sample on, and a process that was restarted begins
// anew.
func TestMounts(t *testing.T) {
	at := func(uptime time.Duration, pid int, n uint64) *Sample {
		return sample(uptime, func(s *Sample) {
			s.Mounts = []Mount{{
				Directory: "/mnt", State: "ok", PID: pid, Calls: n, Failed: n / 2, TookNS: 1000 * n, Read: 10 * n, Written: 20 * n,
			}}
		})
	}
	if r := Between(nil, at(time.Second, 1, 100)).Mounts[0]; r.Ops != 0 || r.Directory != "/mnt" || !r.Idle() {
		t.Errorf("the first sample: %+v", r)
	}
	want := MountRow{
		Directory: "/mnt", State: "ok", Ops: 50, Read: 500, Written: 1000, Mean: 1, Depth: 50e-6, Failed: 25,
	}
	if r := Between(at(time.Second, 1, 100), at(3*time.Second, 1, 200)).Mounts[0]; r != want || r.Idle() {
		t.Errorf("%+v", r)
	}
	if r := Between(at(time.Second, 1, 100), at(3*time.Second, 2, 200)).Mounts[0]; r.Ops != 0 || r.Read != 0 {
		t.Errorf("another process: %+v", r)
	}
}
