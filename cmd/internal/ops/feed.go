package ops

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/live"
)

// Bounds of a feed. A request within feedStep of the last sample gets that sample, so that many
// viewers cost no more than one. Moments are retained for feedHistory, those older than feedFine
// one for each feedCoarse.
const (
	feedStep    = 900 * time.Millisecond
	feedFine    = 5 * time.Minute
	feedCoarse  = 10 * time.Second
	feedHistory = time.Hour
	feedRows    = 100 // of each table
	slowRows    = 10
	slowAge     = 5 * time.Minute
)

// Source is what a feed asks. Sample is needed; the others may be nil.
type Source struct {
	Sample  func() live.Sample
	Exports func() []control.Export
	Volumes func() []Volume
	Slow    func() []control.SlowCall // the slowest first
}

// Feed is what the page shows: the present state, and a few numbers of the last hour. Tick makes
// the history while nobody looks; while a page is open, its requests make samples in between. A
// Feed may be used from any goroutine.
type Feed struct {
	src Source
	now func() time.Time

	mu      sync.Mutex
	last    *live.Sample
	taken   time.Time
	view    *live.View
	more    map[string]int
	volumes map[string]Volume // by export, as last known
	seq     uint64            // of the last moment
	history []moment
}

// NewFeed makes a feed.
func NewFeed(src Source) *Feed { return &Feed{src: src, now: time.Now} }

// Tick records a moment and asks for the sizes of file systems. Call it about every 10 seconds. It
// waits as long as Source.Volumes does.
func (f *Feed) Tick() {
	var volumes []Volume
	if f.src.Volumes != nil {
		volumes = f.src.Volumes()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.volumes == nil {
		f.volumes = make(map[string]Volume)
	}
	for _, v := range volumes {
		f.volumes[v.Export] = v
	}
	f.refresh()
}

// moment is a point of the charts.
type moment struct {
	Seq  uint64  `json:"seq"`
	Time int64   `json:"time_ms"` // since 1970
	Ops  float64 `json:"ops"`
	In   float64 `json:"in"`
	Out  float64 `json:"out"`
	// Mean and P99 are nil where there was no call to measure.
	Mean        *float64 `json:"mean_us"`
	P99         *float64 `json:"p99_us"`
	Depth       float64  `json:"depth"`
	Retransmits float64  `json:"retransmits"`

	n float64 // moments that this one sums up
}

// join makes one moment of two. The p99 is the worse one.
func (m *moment) join(o *moment) {
	mean := func(a *float64, b float64) { *a = (*a*m.n + b*o.n) / (m.n + o.n) }
	switch {
	case m.Mean == nil:
		m.Mean, m.P99 = o.Mean, o.P99
	case o.Mean != nil:
		calls, more := m.Ops*m.n, o.Ops*o.n
		m.Mean = new((*m.Mean*calls + *o.Mean*more) / max(calls+more, 1e-9))
		m.P99 = new(max(*m.P99, *o.P99))
	}
	mean(&m.Ops, o.Ops)
	mean(&m.In, o.In)
	mean(&m.Out, o.Out)
	mean(&m.Depth, o.Depth)
	mean(&m.Retransmits, o.Retransmits)
	m.Seq, m.Time, m.n = o.Seq, o.Time, m.n+o.n
}

// feedAnswer is the answer of /live.
type feedAnswer struct {
	*live.View
	// More are rows that are left out, by table.
	More map[string]int `json:"more"`
	// History are the moments after ?after=, and all if there are none such.
	History []moment `json:"history"`
	// Volumes are the exports, whether they are served, and their file systems.
	Volumes []ExportState `json:"volumes"`
	// SlowCalls are the slowest calls of the last minutes, the slowest first.
	SlowCalls []control.SlowCall `json:"slow"`
	// Remarks say what is not well, the worst first.
	Remarks []Remark `json:"remarks"`
}

func (f *Feed) serve(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.FormValue("after"), 10, 64) // all, if it is no number
	protect(w)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(f.answer(after)) // the client is gone; nobody is left to tell
}

func (f *Feed) answer(after uint64) feedAnswer {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	a := feedAnswer{View: f.view, More: f.more, History: f.history, Volumes: f.exports(), SlowCalls: f.slow()}
	a.Remarks = remarks(a.View, a.Volumes, a.SlowCalls)
	if after <= f.seq { // else it is of another process
		if i := slices.IndexFunc(f.history, func(m moment) bool { return m.Seq > after }); i >= 0 {
			a.History = f.history[i:]
		} else {
			a.History = nil
		}
	}
	a.History = append([]moment{}, a.History...)
	return a
}

// exports are the exports with what is known of their file systems. Call with mu held.
func (f *Feed) exports() []ExportState {
	out := []ExportState{}
	if f.src.Exports == nil {
		return out
	}
	for _, e := range f.src.Exports() {
		s := ExportState{Name: e.Pseudo, Path: e.Path, Error: e.Error}
		if v, ok := f.volumes[e.Pseudo]; ok && e.Error == "" {
			s.Size, s.Available, s.Files, s.FilesFree = v.Size, v.Available, v.Files, v.FilesFree
		}
		out = append(out, s)
	}
	return out
}

// slow are the slowest calls that ended lately.
func (f *Feed) slow() []control.SlowCall {
	out := []control.SlowCall{}
	if f.src.Slow == nil {
		return out
	}
	since := f.now().Add(-slowAge)
	for _, c := range f.src.Slow() {
		if c.Ended.After(since) && len(out) < slowRows {
			out = append(out, c)
		}
	}
	return out
}

// refresh takes a sample if it is time to. Call with mu held.
func (f *Feed) refresh() {
	now := f.now()
	if f.last != nil && now.Sub(f.taken) < feedStep {
		return
	}
	s := f.src.Sample()
	v := live.Between(f.last, &s)
	f.last, f.taken = &s, now
	f.more = map[string]int{
		"clients": trim(&v.Clients, busier), "exports": trim(&v.Exports, busier), "operations": trim(&v.Operations, busier),
		"qps": trim(&v.QPs, func(a, b live.QPRow) int {
			return cmp.Compare(b.In+b.Out+b.PacketsIn+b.PacketsOut, a.In+a.Out+a.PacketsIn+a.PacketsOut)
		}),
	}
	f.view = v
	if v.SinceStart {
		return // no moment, but an average
	}
	f.seq++
	m := moment{
		Seq: f.seq, Time: v.Taken.UnixMilli(), Ops: v.Total.Ops, In: v.Total.In, Out: v.Total.Out, Depth: v.Total.Depth,
		Retransmits: v.Retransmits, n: 1,
	}
	if v.Total.Calls > 0 {
		m.Mean, m.P99 = &v.Total.Mean, &v.Total.P99
	}
	f.history = thin(append(f.history, m), m.Time)
}

// thin joins the moments that are no longer among the fine ones, and drops those that are too old.
func thin(list []moment, now int64) []moment {
	out := list[:0]
	for i := range list {
		m := &list[i]
		if m.Time < now-feedHistory.Milliseconds() {
			continue
		}
		if n := len(out); n > 0 && m.Time < now-feedFine.Milliseconds() &&
			m.Time/feedCoarse.Milliseconds() == out[n-1].Time/feedCoarse.Milliseconds() {
			out[n-1].join(m)
			continue
		}
		out = append(out, *m)
	}
	clear(list[len(out):])
	return out
}

func busier(a, b live.Row) int {
	return cmp.Or(cmp.Compare(b.In+b.Out, a.In+a.Out), cmp.Compare(b.Ops, a.Ops))
}

// trim leaves the first feedRows in an order, and reports how many there were beside.
func trim[T any](list *[]T, order func(a, b T) int) int {
	slices.SortStableFunc(*list, order)
	n := max(len(*list)-feedRows, 0)
	*list = (*list)[:len(*list)-n]
	return n
}
