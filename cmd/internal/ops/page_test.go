package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/live"
)

// feeder is a server that serves 100 calls in a second, and its feed.
type feeder struct {
	Feed
	clock   time.Time
	started time.Time
	samples int
}

func newFeeder() *feeder {
	f := &feeder{clock: time.Unix(1e9, 0), started: time.Unix(1e9-100, 0)}
	f.now = func() time.Time { return f.clock }
	f.src.Sample = func() live.Sample {
		f.samples++
		up := f.clock.Sub(f.started)
		n := uint64(up.Seconds() * 100)
		s := live.Sample{
			Host: "a", State: "running", Started: f.started, Taken: f.clock, UptimeNS: int64(up),
			Operations: []live.Point{{Name: "nfs3.READ", Transport: "tcp", Out: 10 * n, TookNS: n, Took: []uint64{n}}},
		}
		for i := range feedRows + 7 {
			s.Clients = append(s.Clients, live.Point{
				Name: fmt.Sprintf("10.0.0.%d", i), Transport: "tcp", Out: uint64(i) * n,
				Took: []uint64{n},
			})
		}
		return s
	}
	return f
}

// TestFeed: samples are taken for those who ask, not more often than needed, and a gap ends a
// history.
func TestFeed(t *testing.T) {
	f := newFeeder()
	if a := f.answer(0); !a.SinceStart || len(a.History) != 0 || a.Total.Ops != 100 {
		t.Errorf("the first answer: %+v", a)
	}
	for range 10 { // who asks at once
		f.answer(0)
	}
	if f.samples != 1 {
		t.Errorf("%d samples at one time", f.samples)
	}
	for i := range 3 {
		f.clock = f.clock.Add(time.Second)
		if a := f.answer(uint64(i)); a.SinceStart || len(a.History) != 1 || a.History[0].Ops != 100 ||
			a.History[0].Out != 1000 {
			t.Errorf("the answer after %d seconds: %+v", i+1, a.History)
		}
	}
	a := f.answer(0)
	if len(a.History) != 3 || a.History[0].Seq != 1 || a.History[2].Time != f.clock.UnixMilli() {
		t.Errorf("the history: %+v", a.History)
	}
	if len(a.Clients) != feedRows || a.More["clients"] != 7 || a.Clients[0].Name != "10.0.0.106" {
		t.Errorf("%d clients and %d more, first %s", len(a.Clients), a.More["clients"], a.Clients[0].Name)
	}
	if a := f.answer(3); len(a.History) != 0 || a.History == nil {
		t.Errorf("nothing new: %+v", a.History)
	}
	if a := f.answer(17); len(a.History) != 3 {
		t.Errorf("asked after what another process counted: %+v", a.History)
	}
	f.clock = f.clock.Add(16 * time.Second)
	if a := f.answer(3); len(a.History) != 1 || a.History[0].Seq != 4 || a.Interval != 16 || a.Total.Ops != 100 {
		t.Errorf("after nobody has looked: %+v", a.History)
	}
	for range 2 * int(feedHistory/time.Second) {
		f.clock = f.clock.Add(time.Second)
		f.answer(0)
	}
	const most = int(feedFine/time.Second + (feedHistory-feedFine)/feedCoarse)
	a = f.answer(0)
	if n := len(a.History); n < most-2 || n > most+2 {
		t.Errorf("the history has %d moments, want %d", n, most)
	}
	if first := a.History[0]; first.Ops < 99.9 || first.Ops > 100.1 || *first.Mean <= 0 ||
		first.Time < f.clock.Add(-feedHistory).UnixMilli() {
		t.Errorf("the oldest moment: %+v", first)
	}
	history := len(a.History)
	f.started = f.clock
	f.clock = f.clock.Add(time.Second)
	if a := f.answer(0); !a.SinceStart || a.Total.Ops != 100 || len(a.History) != history {
		t.Errorf("after a restart: %+v", a.Total)
	}
}

// TestFeedTicks: while nobody looks there is a moment for each tick, without latency where there
// was no call.
func TestFeedTicks(t *testing.T) {
	f := newFeeder()
	calls := f.src.Sample
	f.src.Sample = func() live.Sample {
		s := calls()
		s.Operations[0].Took, s.Operations[0].TookNS = []uint64{5}, 5 // and no more
		return s
	}
	f.src.Volumes = func() []Volume { return []Volume{{Export: "/a", Size: 100, Available: 1}} }
	f.src.Exports = func() []control.Export {
		return []control.Export{
			{Export: config.Export{Pseudo: "/a", Path: "/srv/a"}}, {Export: config.Export{Pseudo: "/b"}, Error: "gone"},
		}
	}
	for range 400 {
		f.clock = f.clock.Add(10 * time.Second)
		f.Tick()
	}
	a := f.answer(0)
	if n := len(a.History); n < 359 || n > 361 {
		t.Errorf("%d moments", n)
	}
	if m := a.History[7]; m.Mean != nil || m.P99 != nil || m.Ops != 0 {
		t.Errorf("a moment without calls: %+v", m)
	}
	if b, err := json.Marshal(a.History[7]); err != nil || !strings.Contains(string(b), `"mean_us":null`) {
		t.Errorf("%s, %v", b, err)
	}
	if len(a.Volumes) != 2 || a.Volumes[0].Available != 1 || a.Volumes[1].Error != "gone" || a.Volumes[1].Size != 0 {
		t.Errorf("%+v", a.Volumes)
	}
	if len(a.Remarks) != 1 || a.Remarks[0].Level != levelBad || !strings.Contains(a.Remarks[0].Text, "/a is 99 % full") {
		t.Errorf("%+v", a.Remarks)
	}
}

func TestRemarks(t *testing.T) {
	quiet := func() *live.View { return &live.View{Server: live.Server{Workers: 4}} }
	busy := func(p99 time.Duration) *live.View {
		v := quiet()
		v.Total.Calls, v.Total.P99 = 100, float64(p99/time.Microsecond)
		return v
	}
	disk := []control.SlowCall{{TookUS: 100, StoreUS: 80}, {TookUS: 100, QueueUS: 60, StoreUS: 40}}
	for name, c := range map[string]struct {
		view    *live.View
		volumes []ExportState
		slow    []control.SlowCall
		want    []Remark
	}{
		"well": {
			view: busy(time.Millisecond), volumes: []ExportState{{Name: "/a", Size: 10, Available: 5}}, slow: disk,
		},
		"nothing is known of a file system": {view: quiet(), volumes: []ExportState{{Name: "/a"}}},
		"nearly full": {
			view: quiet(), volumes: []ExportState{{Name: "/a", Size: 100, Available: 7, Files: 100, FilesFree: 99}},
			want: []Remark{{levelWarn, "The file system of export /a is 93 % full."}},
		},
		"said already": {
			view:    &live.View{Server: live.Server{Problems: []string{"export /a: its file system is full"}}},
			volumes: []ExportState{{Name: "/a", Size: 100}},
			want:    []Remark{{levelBad, "export /a: its file system is full"}},
		},
		"inodes": {
			view: quiet(), volumes: []ExportState{{Name: "/a", Size: 100, Available: 70, Files: 100}},
			want: []Remark{{levelBad, "The file system of export /a has used 100 % of its inodes."}},
		},
		"slow disks": {
			view: busy(2 * time.Second), slow: disk,
			want: []Remark{{levelBad, "One call in a hundred takes longer than 2s: they wait for the disks."}},
		},
		"slow": {
			view: busy(200 * time.Millisecond),
			want: []Remark{{levelWarn, "One call in a hundred takes longer than 200ms."}},
		},
		"the worst first": {
			view: func() *live.View {
				v := quiet()
				v.Server.Grace, v.Server.Queued, v.Server.WorkersBusy = true, 9, 4
				v.Server.Problems = []string{"export /x: gone"}
				v.Retransmits, v.QPs = 10, []live.QPRow{{PacketsOut: 1000}}
				return v
			}(),
			want: []Remark{
				{levelBad, "export /x: gone"},
				{levelWarn, "All 4 workers wait for storage, and 9 calls wait for a worker: the disks are the limit."},
				{levelWarn, "10 packets in a second are sent again: the network loses packets."},
				{levelWarn, "Grace period: clients reclaim their state, and new opens and locks wait."},
			},
		},
	} {
		if got := remarks(c.view, c.volumes, c.slow); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestPage: the page and what it needs, with a policy that lets nothing else in; none of it names
// another host, and no script or style is in the page itself.
func TestPage(t *testing.T) {
	f := newFeeder()
	nothing := prometheus.NewRegistry()
	h := Handler(Config{Gatherer: nothing, Profiles: func() bool { return false }, Feed: &f.Feed, Logger: zap.NewNop()})
	get := func(path string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = "127.0.0.1:9049"
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/page/style.css": "text/css; charset=utf-8",
		"/page/page.js": "text/javascript; charset=utf-8", "/page/icon.svg": "image/svg+xml",
		"/live": "application/json",
	} {
		res := get(path)
		if res.Code != http.StatusOK || res.Header().Get("Content-Type") != kind ||
			res.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, res.Code, res.Header())
		}
		p := res.Header().Get("Content-Security-Policy")
		if !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") || strings.Contains(p, "*") {
			t.Errorf("%s: policy %q", path, p)
		}
		if tag := res.Header().Get("ETag"); tag != "" {
			if again := get(path, "If-None-Match", tag); again.Code != http.StatusNotModified {
				t.Errorf("%s: %d again", path, again.Code)
			}
		}
	}
	if res := get("/page/"); res.Code != http.StatusNotFound {
		t.Errorf("the directory: %d", res.Code)
	}
	var a struct {
		Total   live.Row       `json:"total"`
		Clients []live.Row     `json:"clients"`
		More    map[string]int `json:"more"`
		History []moment       `json:"history"`
		QPs     []any          `json:"qps"`
	}
	if err := json.NewDecoder(get("/live?after=x").Body).Decode(&a); err != nil || a.Total.Calls == 0 ||
		len(a.Clients) == 0 || a.History == nil || a.QPs == nil || a.More["clients"] != 7 {
		t.Errorf("%+v, %v", a, err)
	}
	err := fs.WalkDir(pageFiles, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := pageFiles.ReadFile(name)
		if err != nil {
			return err
		}
		s := strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", "")
		if m := regexp.MustCompile(`https?://|//[a-z]+\.|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new ` +
			`Function|<script>|<style|style="| on[a-z]+="|@import|url\(`).FindString(s); m != "" {
			t.Errorf("%s has %q", name, m)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHostNames: a request for a name that is not the server's, as a page of another site makes it,
// reads nothing.
func TestHostNames(t *testing.T) {
	var names []string
	h := Handler(Config{
		Gatherer: prometheus.NewRegistry(), Profiles: func() bool { return true }, Feed: &newFeeder().Feed,
		Logger: zap.NewNop(),
		Live:   func(context.Context) []Check { return nil }, Ready: func(context.Context) []Check { return nil },
		Names: func() []string { return names },
	})
	get := func(host, path string) int {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, tc := range []struct {
		host  string
		names []string
		want  int
	}{
		{"127.0.0.1:9049", nil, 200},
		{"10.0.0.1", nil, 200},
		{"[::1]:9049", nil, 200},
		{"[2001:db8::1]", nil, 200},
		{"localhost:9049", nil, 200},
		{"LOCALHOST", nil, 200},
		{"", nil, 200}, // HTTP/1.0
		{"attacker.example", nil, 421},
		{"attacker.example:9049", []string{"store.example"}, 421},
		{"127.0.0.1.attacker.example:9049", nil, 421},
		{"localhost.attacker.example", nil, 421},
		{"Store.example.:9049", []string{"store.example"}, 200},
		{"attacker.example", []string{"*"}, 200},
	} {
		names = tc.names
		for _, path := range []string{"/livez", "/metrics", "/", "/debug/pprof/cmdline"} {
			if got := get(tc.host, path); got != tc.want {
				t.Errorf("%q%s with %q: %d, want %d", tc.host, path, tc.names, got, tc.want)
			}
		}
	}
}
