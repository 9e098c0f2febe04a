package live

import (
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/cmd/internal/measure"
)

// View is what happened between two samples. Rates are by the second, bytes are decimal.
type View struct {
	Host    string    `json:"host"`
	Version string    `json:"version"`
	State   string    `json:"state"`
	Taken   time.Time `json:"taken"`
	Uptime  float64   `json:"uptime_seconds"`
	// Interval is the time between the samples in seconds. SinceStart: there was no sample of this
	// process before, and the rates are averages since it was started.
	Interval   float64 `json:"interval_seconds"`
	SinceStart bool    `json:"since_start"`
	Server     Server  `json:"server"`

	RDMAWritten float64 `json:"rdma_write_bytes_per_second"`
	RDMARead    float64 `json:"rdma_read_bytes_per_second"`
	TCP         float64 `json:"tcp_bytes_per_second"`
	Errors      float64 `json:"errors_per_second"`
	Retransmits float64 `json:"retransmits_per_second"`

	// Total is of all operations.
	Total      Row     `json:"total"`
	Clients    []Row   `json:"clients"`
	Exports    []Row   `json:"exports"`
	Operations []Row   `json:"operations"`
	QPs        []QPRow `json:"qps"`
	// Mounts are those of 'rstorectl mount' on the host of the command.
	Mounts []MountRow `json:"mounts,omitempty"`
}

// MountRow is what programs did in a mount by FUSE. Times are in microseconds.
type MountRow struct {
	Directory string  `json:"directory"`
	Source    string  `json:"source"`
	State     string  `json:"state"`
	Ops       float64 `json:"ops_per_second"` // calls of the kernel
	Read      float64 `json:"read_bytes_per_second"`
	Written   float64 `json:"written_bytes_per_second"`
	Mean      float64 `json:"mean_us"`
	Depth     float64 `json:"depth"`
	Failed    float64 `json:"failed_per_second"`
}

// Idle reports whether nothing happened.
func (r *MountRow) Idle() bool { return r.Ops == 0 }

// Row is what happened at a measuring point. Times are in microseconds.
type Row struct {
	Name      string  `json:"name"`
	Kind      string  `json:"kind,omitempty"`
	Transport string  `json:"transport,omitempty"`
	Calls     uint64  `json:"calls"` // not by the second
	Ops       float64 `json:"ops_per_second"`
	In        float64 `json:"in_bytes_per_second"`
	Out       float64 `json:"out_bytes_per_second"`
	Mean      float64 `json:"mean_us"`
	P99       float64 `json:"p99_us"`
	// Depth is how many calls were in progress on average: the time that calls took in a second.
	Depth  float64 `json:"depth"`
	Failed float64 `json:"failed_per_second"`
}

// QPRow is what happened on a queue pair.
type QPRow struct {
	QPN         string  `json:"qpn"` // hexadecimal
	Type        string  `json:"type"`
	State       string  `json:"state"`
	Device      string  `json:"device"`
	Remote      string  `json:"remote"`
	SendQueued  int     `json:"send_queued"`
	SendDepth   int     `json:"send_depth"`
	RTT         float64 `json:"rtt_us"`
	In          float64 `json:"in_bytes_per_second"`
	Out         float64 `json:"out_bytes_per_second"`
	PacketsIn   float64 `json:"in_packets_per_second"`
	PacketsOut  float64 `json:"out_packets_per_second"`
	Retransmits float64 `json:"retransmits_per_second"`
	NAKs        float64 `json:"naks_per_second"`
	RNRs        float64 `json:"rnrs_per_second"`
}

// Idle reports whether nothing happened.
func (r *Row) Idle() bool { return r.Calls == 0 && r.In == 0 && r.Out == 0 }

// Idle reports whether nothing happened.
func (q *QPRow) Idle() bool { return q.PacketsIn == 0 && q.PacketsOut == 0 && q.SendQueued == 0 }

// Between is what happened from one sample to a later one. before may be nil, or of a process that
// has been restarted since: then the view is of the time since the start.
func Between(before, after *Sample) *View {
	since := before == nil || !before.Started.Equal(after.Started) || after.UptimeNS <= before.UptimeNS
	if since {
		before = new(Sample)
	}
	dt := time.Duration(after.UptimeNS - before.UptimeNS).Seconds()
	if dt <= 0 {
		dt = 1 // nothing can have happened
	}
	v := &View{
		Host: after.Host, Version: after.Version, State: after.State, Taken: after.Taken,
		Uptime: time.Duration(after.UptimeNS).Seconds(), Interval: dt, SinceStart: since, Server: after.Server,
		RDMAWritten: rate(before.RDMAWritten, after.RDMAWritten, dt), RDMARead: rate(before.RDMARead, after.RDMARead, dt),
		TCP: rate(before.TCP, after.TCP, dt), Errors: rate(before.Errors, after.Errors, dt),
		Retransmits: rate(before.Retransmits, after.Retransmits, dt),
	}
	var total Point
	v.Operations, total = rows(before.Operations, after.Operations, dt)
	v.Exports, _ = rows(before.Exports, after.Exports, dt)
	v.Clients, _ = rows(before.Clients, after.Clients, dt)
	v.Total = row(&total, dt)
	v.QPs = qpRows(before.QPs, after.QPs, dt)
	v.Mounts = mountRows(before.Mounts, after.Mounts, dt)
	if before.Stalled > 0 || after.Stalled > 0 {
		v.Errors, v.Retransmits, v.QPs = 0, 0, []QPRow{}
	}
	return v
}

// grown is the increase of a counter. A counter that has decreased was restarted in between.
func grown(before, after uint64) uint64 {
	if after < before {
		return after
	}
	return after - before
}

func rate(before, after uint64, dt float64) float64 { return float64(grown(before, after)) / dt }

type pointKey struct{ name, kind, transport string }

func (p *Point) key() pointKey { return pointKey{p.Name, p.Kind, p.Transport} }

// rows are the rows of points, and the sum of what happened at them.
func rows(before, after []Point, dt float64) (out []Row, total Point) {
	old := make(map[pointKey]*Point, len(before))
	for i := range before {
		old[before[i].key()] = &before[i]
	}
	grown := make([]Point, len(after))
	for i := range after {
		p := &after[i]
		grown[i] = *p
		if o := old[p.key()]; o != nil && p.follows(o) {
			grown[i] = p.less(o)
			delete(old, p.key())
		}
	}
	out = make([]Row, len(after))
	for i := range grown {
		p := &grown[i]
		if p.Name == measure.OtherClients {
			// Clients that are no longer recorded separately have brought their counts here.
			for k, o := range old {
				if k.transport == p.Transport {
					*p = p.less(o)
				}
			}
		}
		total.add(p)
		out[i] = row(p, dt)
	}
	return out, total
}

// follows reports whether the counters of p can be those of o, later.
func (p *Point) follows(o *Point) bool {
	if p.TookNS < o.TookNS || len(p.Took) < len(o.Took) {
		return false
	}
	for i, n := range o.Took {
		if p.Took[i] < n {
			return false
		}
	}
	return true
}

// less is p without o. The counters of a point are not read at once, so that some may be ahead of
// others.
func (p *Point) less(o *Point) Point {
	d := *p
	d.In, d.Out, d.Failed, d.TookNS = below(p.In, o.In), below(p.Out, o.Out), below(p.Failed, o.Failed),
		below(p.TookNS, o.TookNS)
	d.Took = append([]uint64(nil), p.Took...)
	for i := range min(len(d.Took), len(o.Took)) {
		d.Took[i] = below(d.Took[i], o.Took[i])
	}
	return d
}

func below(a, b uint64) uint64 { return a - min(a, b) }

func (p *Point) add(o *Point) {
	p.In += o.In
	p.Out += o.Out
	p.Failed += o.Failed
	p.TookNS += o.TookNS
	for len(p.Took) < len(o.Took) {
		p.Took = append(p.Took, 0)
	}
	for i, n := range o.Took {
		p.Took[i] += n
	}
}

// row is the row of what has grown in dt seconds.
func row(p *Point, dt float64) Row {
	r := Row{Name: p.Name, Kind: p.Kind, Transport: p.Transport}
	for _, n := range p.Took {
		r.Calls += n
	}
	r.Ops, r.In, r.Out, r.Failed = float64(r.Calls)/dt, float64(p.In)/dt, float64(p.Out)/dt, float64(p.Failed)/dt
	r.Depth = float64(p.TookNS) / 1e9 / dt
	if r.Calls > 0 {
		r.Mean = float64(p.TookNS) / 1e3 / float64(r.Calls)
		r.P99 = quantile(p.Took, r.Calls, 99)
	}
	return r
}

// quantile is the time in microseconds in which percent of the calls were answered, a share of
// its bucket. Calls of the last bucket took longer than its lower bound, which is all that is
// known.
func quantile(took []uint64, calls, percent uint64) float64 {
	rank := (calls*percent + 99) / 100 // from 1; those before it took as long at most
	seen := uint64(0)
	for i, n := range took {
		if n == 0 || seen+n < rank {
			seen += n
			continue
		}
		low := 0.0
		if i > 0 {
			low = float64(measure.Bound(i-1)) / float64(time.Microsecond)
		}
		if i >= measure.Buckets-1 {
			return low
		}
		high := float64(measure.Bound(i)) / float64(time.Microsecond)
		return low + (high-low)*float64(rank-seen)/float64(n)
	}
	return 0
}

type qpKey struct {
	device, remote string
	qpn            uint32
}

func qpRows(before, after []QP, dt float64) []QPRow {
	old := make(map[qpKey]*QP, len(before))
	for i := range before {
		q := &before[i]
		old[qpKey{q.Device, q.Remote, q.QPN}] = q
	}
	out := make([]QPRow, len(after))
	for i := range after {
		q := &after[i]
		o := old[qpKey{q.Device, q.Remote, q.QPN}]
		if o == nil || q.PacketsIn < o.PacketsIn || q.PacketsOut < o.PacketsOut { // another one with its number
			o = new(QP)
		}
		out[i] = QPRow{
			QPN: fmt.Sprintf("%#x", q.QPN), Type: q.Type, State: q.State, Device: q.Device, Remote: q.Remote,
			SendQueued: q.SendQueued, SendDepth: q.SendDepth, RTT: float64(q.RTTUS),
			In: rate(o.In, q.In, dt), Out: rate(o.Out, q.Out, dt),
			PacketsIn: rate(o.PacketsIn, q.PacketsIn, dt), PacketsOut: rate(o.PacketsOut, q.PacketsOut, dt),
			Retransmits: rate(o.Retransmits, q.Retransmits, dt), NAKs: rate(o.NAKs, q.NAKs, dt), RNRs: rate(o.RNRs, q.RNRs, dt),
		}
	}
	return out
}

// mountRows are the rows of mounts. A mount that was not there before has no rates yet: its counts
// are of an unknown time.
func mountRows(before, after []Mount, dt float64) (out []MountRow) {
	for i := range after {
		m := &after[i]
		r := MountRow{Directory: m.Directory, Source: m.Source, State: m.State}
		j := slices.IndexFunc(before, func(b Mount) bool { return b.Directory == m.Directory && b.PID == m.PID })
		if j >= 0 {
			b := &before[j]
			calls, took := below(m.Calls, b.Calls), float64(below(m.TookNS, b.TookNS))
			r.Ops, r.Failed = float64(calls)/dt, float64(below(m.Failed, b.Failed))/dt
			r.Read, r.Written = float64(below(m.Read, b.Read))/dt, float64(below(m.Written, b.Written))/dt
			r.Depth = took / 1e9 / dt
			if calls > 0 {
				r.Mean = took / 1e3 / float64(calls)
			}
		}
		out = append(out, r)
	}
	return out
}
