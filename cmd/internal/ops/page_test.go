package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/live"
)

// feeder is a server that serves 100 calls in a second, and its feed.
type feeder struct {
	feed
	clock   time.Time
	started time.Time
	samples int
}

func newFeeder() *feeder {
	f := &feeder{clock: time.Unix(1e9, 0), started: time.Unix(1e9-100, 0)}
	f.now = func() time.Time { return f.clock }
	f.sample = func() live.Sample {
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
	f.clock = f.clock.Add(feedGap + time.Second)
	if a := f.answer(3); len(a.History) != 1 || a.History[0].Seq != 4 || a.Interval != 16 || a.Total.Ops != 100 {
		t.Errorf("after nobody has looked: %+v", a.History)
	}
	for range 2 * feedHistory {
		f.clock = f.clock.Add(time.Second)
		f.answer(0)
	}
	if a := f.answer(0); len(a.History) != feedHistory {
		t.Errorf("the history is bounded: %d", len(a.History))
	}
	f.started = f.clock
	f.clock = f.clock.Add(time.Second)
	if a := f.answer(0); !a.SinceStart || a.Total.Ops != 100 || len(a.History) != feedHistory {
		t.Errorf("after a restart: %+v", a.Total)
	}
}

// TestPage: the page and what it needs, with a policy that lets nothing else in; none of it names
// another host, and no script or style is in the page itself.
func TestPage(t *testing.T) {
	f := newFeeder()
	nothing := prometheus.NewRegistry()
	h := Handler(Config{Gatherer: nothing, Profiles: func() bool { return false }, Sample: f.sample, Logger: zap.NewNop()})
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
		Gatherer: prometheus.NewRegistry(), Profiles: func() bool { return true }, Sample: newFeeder().sample,
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
