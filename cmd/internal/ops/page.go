package ops

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/live"
)

//go:embed page
var pageFiles embed.FS

// pagePolicy lets a browser run and load what comes from here as a file, and nothing else: no
// script in the page itself, nothing from elsewhere, nobody's frame.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pageHandlers answer for the page and for what it shows.
func pageHandlers(mux *http.ServeMux, sample func() live.Sample) {
	for path, f := range map[string]struct{ name, kind string }{
		"/{$}":            {"index.html", "text/html; charset=utf-8"},
		"/page/style.css": {"style.css", "text/css; charset=utf-8"},
		"/page/page.js":   {"page.js", "text/javascript; charset=utf-8"},
		"/page/icon.svg":  {"icon.svg", "image/svg+xml"},
	} {
		text, err := pageFiles.ReadFile("page/" + f.name)
		if err != nil {
			panic(err) // it is in the binary
		}
		tag := fmt.Sprintf(`"%08x"`, crc32.ChecksumIEEE(text))
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			protect(w)
			w.Header().Set("Content-Type", f.kind)
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("ETag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			_, _ = w.Write(text)
		})
	}
	f := &feed{sample: sample, now: time.Now}
	mux.HandleFunc("GET /live", f.serve)
}

func protect(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
}

// Bounds of the feed. A request within feedStep of the last sample gets that sample, so that many
// viewers cost no more than one. A sample older than feedGap does not belong to the curves that are
// shown now.
const (
	feedStep    = 900 * time.Millisecond
	feedGap     = 15 * time.Second
	feedHistory = 300
	feedRows    = 100 // of each table
)

// feed is what the page shows: the present state, and a few numbers of the last minutes, for as
// long as a page is open. It has no goroutine: the request makes the sample.
type feed struct {
	sample func() live.Sample
	now    func() time.Time

	mu      sync.Mutex
	last    *live.Sample
	taken   time.Time
	view    *live.View
	more    map[string]int
	seq     uint64 // of the last moment
	history []moment
}

// moment is a point of the charts.
type moment struct {
	Seq         uint64  `json:"seq"`
	Time        int64   `json:"time_ms"` // since 1970
	Ops         float64 `json:"ops"`
	In          float64 `json:"in"`
	Out         float64 `json:"out"`
	Mean        float64 `json:"mean_us"`
	P99         float64 `json:"p99_us"`
	Depth       float64 `json:"depth"`
	Retransmits float64 `json:"retransmits"`
}

// feedAnswer is the answer of /live.
type feedAnswer struct {
	*live.View
	// More are rows that are left out, by table.
	More map[string]int `json:"more"`
	// History are the moments after ?after=, and all if there are none such.
	History []moment `json:"history"`
}

func (f *feed) serve(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.FormValue("after"), 10, 64) // all, if it is no number
	protect(w)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(f.answer(after)) // the client is gone; nobody is left to tell
}

func (f *feed) answer(after uint64) feedAnswer {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	a := feedAnswer{View: f.view, More: f.more, History: f.history}
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

// refresh takes a sample if it is time to. Call with mu held.
func (f *feed) refresh() {
	now := f.now()
	if f.last != nil && now.Sub(f.taken) < feedStep {
		return
	}
	if now.Sub(f.taken) > feedGap {
		f.history = nil
	}
	s := f.sample()
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
	f.history = append(f.history, moment{
		f.seq, v.Taken.UnixMilli(), v.Total.Ops, v.Total.In, v.Total.Out, v.Total.Mean, v.Total.P99, v.Total.Depth,
		v.Retransmits,
	})
	if n := len(f.history) - feedHistory; n > 0 {
		f.history = slices.Clone(f.history[n:])
	}
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
