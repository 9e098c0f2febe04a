package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
)

// routes has a handler for each request of the interface.
func (s *Server) routes() http.Handler {
	b := s.b
	mux := http.NewServeMux()
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /v1/status":        answer(b.Status),
		"GET /v1/exports":       answer(b.Exports),
		"GET /v1/ports":         answer(b.Ports),
		"GET /v1/pkeys":         answer(b.PKeys),
		"GET /v1/nfs4-clients":  answer(b.NFS4Clients),
		"GET /v1/nfs4-sessions": answer(b.NFS4Sessions),
		"GET /v1/delegations":   answer(b.Delegations),
		"GET /v1/locks":         answer(b.Locks),
		"GET /v1/grace":         answer(b.Grace),
		"GET /v1/slow":          answer(b.Slow),
		"GET /v1/ops":           answer(b.Ops),
		"GET /v1/clients":       answer(b.Clients),
		"GET /v1/qps":           answer(b.QPs),
		"GET /v1/stats":         answer(b.Stats),
		"GET /v1/sample":        answer(b.Sample),
		"GET /v1/devices":       answer(b.Devices),
		"GET /v1/post-mortems":  answer(b.PostMortems),
		"GET /v1/denials":       answer(b.Denials),
		"GET /v1/drift":         answer(b.Drift),

		"GET /v1/export":        get(func(r *http.Request) (any, error) { return findExport(b, r.FormValue("name")) }),
		"GET /v1/history":       get(func(*http.Request) (any, error) { return b.History() }),
		"GET /v1/history-entry": get(func(r *http.Request) (any, error) { return historyEntry(b, r.FormValue("number")) }),
		"POST /v1/upgrade":      get(func(r *http.Request) (any, error) { return upgrade(b, r) }),

		"DELETE /v1/export": order(func(r *http.Request) error { return b.RemoveExport(r.FormValue("name")) }),
		"DELETE /v1/export-changes": order(func(r *http.Request) error {
			return b.RevertExports(r.FormValue("removed") == removalsOnly)
		}),
		"DELETE /v1/port":        order(func(r *http.Request) error { return b.RemovePort(portSpec(r)) }),
		"DELETE /v1/pkey":        order(func(r *http.Request) error { return b.RemovePKey(r.FormValue("pkey")) }),
		"DELETE /v1/nfs4-client": order(func(r *http.Request) error { return b.EvictClient(r.FormValue("id")) }),
		"DELETE /v1/grace":       order(func(*http.Request) error { return b.EndGrace() }),
		"PUT /v1/ops":            order(func(r *http.Request) error { return setOps(b, r) }),
		"PUT /v1/log-level":      order(func(r *http.Request) error { return b.SetLogLevel(r.FormValue("level")) }),
		"POST /v1/rescan":        order(func(*http.Request) error { return b.Rescan() }),
		"POST /v1/reload":        order(func(*http.Request) error { return b.Reload() }),
		"POST /v1/idmap/flush":   order(func(*http.Request) error { b.FlushIDMap(); return nil }),

		"POST /v1/exports": put(func(_ *http.Request, e config.Export) (any, error) { return b.AddExport(e) }),
		"PUT /v1/export": put(func(r *http.Request, p ExportPatch) (any, error) {
			return b.SetExport(r.FormValue("name"), p)
		}),
		"POST /v1/ports": put(func(_ *http.Request, p PortSpec) (any, error) { return b.AddPort(p) }),
		"POST /v1/pkeys": put(func(_ *http.Request, k PKey) (any, error) { return empty{}, b.AddPKey(k.PKey) }),
		"POST /v1/plan":  put(func(_ *http.Request, f File) (any, error) { return b.Plan(f) }),
		"POST /v1/apply": put(func(r *http.Request, a Apply) (any, error) {
			p, _ := r.Context().Value(peerKey{}).(Peer)
			return b.Apply(a, p)
		}),

		"GET /v1/metrics":    raw(func(_ *http.Request, w io.Writer) error { return b.Metrics(w) }),
		"GET /v1/goroutines": raw(func(_ *http.Request, w io.Writer) error { return b.Goroutines(w) }),
		"GET /v1/log": raw(func(_ *http.Request, w io.Writer) error {
			_, err := w.Write(b.RecentLog())
			return err
		}),
		"GET /v1/profile": raw(func(r *http.Request, w io.Writer) error { return profile(b, r, w) }),
		"GET /v1/config":  s.config,
		"GET /v1/trace":   s.trace,
		"GET /v1/capture": s.capture,
	} {
		mux.HandleFunc(pattern, h)
	}
	for pattern, h := range clusterRoutes(b) {
		mux.HandleFunc(pattern, h)
	}
	for pattern, h := range haRoutes(b) {
		mux.HandleFunc(pattern, h)
	}
	return mux
}

// empty is the answer of a request that has none.
type empty struct{}

// failure is the answer that an error makes.
type failure struct {
	Error string `json:"error"`
}

// Errors that a Backend wraps to choose the HTTP status. Every other error is 400, because what
// users can make fail here is what they asked for.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("exists already")
	// ErrForbidden is the refusal of a request that even an administrator may not make from where it
	// comes.
	ErrForbidden = errors.New("not allowed")
	// ErrChanged and ErrDisrupts are the reasons for not carrying out a plan.
	ErrChanged  = errors.New("the running state has changed since the plan was made; plan again")
	ErrDisrupts = errors.New("it would disrupt clients")
)

func statusOf(err error) int {
	switch {
	case errors.Is(err, ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, ErrConflict), errors.Is(err, ErrChanged), errors.Is(err, ErrDisrupts):
		return http.StatusConflict
	}
	return http.StatusBadRequest
}

// answer handles a request that has no parameters and cannot fail.
func answer[T any](f func() T) http.HandlerFunc {
	return get(func(*http.Request) (any, error) { return f(), nil })
}

// order handles a request whose answer is empty.
func order(f func(*http.Request) error) http.HandlerFunc {
	return get(func(r *http.Request) (any, error) { return empty{}, f(r) })
}

// get handles a request without a body.
func get(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			fail(w, err)
			return
		}
		reply(w, http.StatusOK, v)
	}
}

// put handles a request whose body is a T.
func put[T any](f func(*http.Request, T) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in T
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&in); err != nil {
			reply(w, http.StatusBadRequest, failure{"request body: " + err.Error()})
			return
		}
		get(func(r *http.Request) (any, error) { return f(r, in) })(w, r)
	}
}

// raw handles a request whose answer is bytes. It sends them when f has succeeded.
func raw(f func(*http.Request, io.Writer) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var out bytes.Buffer
		if err := f(r, &out); err != nil {
			fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(out.Bytes())
	}
}

func fail(w http.ResponseWriter, err error) { reply(w, statusOf(err), failure{err.Error()}) }

func reply(w http.ResponseWriter, status int, v any) {
	if a, ok := w.(*answered); ok {
		if f, ok := v.(failure); ok {
			a.err = f.Error
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // an error means that the client has hung up
}

// upgrade lets only the control socket name an executable: another host must not choose what this
// one executes.
func upgrade(b Backend, r *http.Request) (any, error) {
	path := r.FormValue("executable")
	if p, ok := r.Context().Value(peerKey{}).(Peer); path != "" && (!ok || p.Remote != "") {
		return nil, fmt.Errorf("only on the server's own host can an executable be named: %w", ErrForbidden)
	}
	return b.Upgrade(path)
}

func findExport(b Backend, name string) (Export, error) {
	for _, e := range b.Exports() {
		if e.Named(name) {
			return e, nil
		}
	}
	return Export{}, fmt.Errorf("export %q: %w", name, ErrNotFound)
}

// Named reports whether name means this export: its pseudo path, an alias, or its path on the host.
func (e *Export) Named(name string) bool {
	return name == e.Pseudo || name == e.Path || slices.Contains(e.Aliases, name)
}

func historyEntry(b Backend, number string) (any, error) {
	n, err := strconv.Atoi(number)
	if err != nil {
		return nil, err
	}
	return b.HistoryEntry(n)
}

func portSpec(r *http.Request) PortSpec {
	return PortSpec{Transport: r.FormValue("transport"), Listen: r.FormValue("listen")}
}

func profile(b Backend, r *http.Request, w io.Writer) error {
	n, err := strconv.Atoi(r.FormValue("seconds"))
	if most := int(ProfileMax / time.Second); err != nil || n < 1 || n > most {
		return fmt.Errorf("a profile takes 1 to %d seconds", most)
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(n)*time.Second)
	defer cancel()
	return b.Profile(ctx, w)
}

func (s *Server) config(w http.ResponseWriter, _ *http.Request) {
	y, err := s.b.Config()
	if err != nil {
		reply(w, http.StatusInternalServerError, failure{err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(y)
}

// capture streams packets. The status goes out with the first bytes, so that an error before them
// still has its own status.
func (s *Server) capture(w http.ResponseWriter, r *http.Request) {
	out := &flushWriter{w: w, c: http.NewResponseController(w)}
	spec, err := parseCapture(r.FormValue)
	if err == nil {
		err = s.b.Capture(r.Context(), spec, out)
	}
	if err != nil && !out.begun {
		fail(w, err)
	}
}

// flushWriter sends every write to the client at once.
type flushWriter struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	begun bool
}

// Write implements io.Writer.
func (f *flushWriter) Write(p []byte) (int, error) {
	if !f.begun {
		f.begun = true
		f.w.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
	}
	n, err := f.w.Write(p)
	return n, errors.Join(err, f.c.Flush())
}
