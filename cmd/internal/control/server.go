package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/safepath"
)

// maxBody bounds a request's body in bytes: the largest file that can be applied (config.DocumentMax),
// with every byte of it escaped.
const maxBody = 4 << 20

// Server serves the control interface.
type Server struct {
	http   http.Server
	access Access
	log    *slog.Logger
	audit  func(Action)
	b      Backend

	mu      sync.Mutex
	remotes []*http.Server
}

type peerKey struct{}

// upgrade names an executable by the socket alone: another host is not to choose what this one executes.
func upgrade(b Backend, r *http.Request) (any, error) {
	path := r.FormValue("executable")
	if p, ok := r.Context().Value(peerKey{}).(Peer); path != "" && (!ok || p.Remote != "") {
		return nil, fmt.Errorf("an executable can be named on the server's own host alone: %w", ErrForbidden)
	}
	return b.Upgrade(path)
}

// NewServer makes a server for the backend. audit is told of every request that could change
// something, and of those who are refused; nil is told nothing.
func NewServer(b Backend, access Access, log *slog.Logger, audit func(Action)) *Server {
	if audit == nil {
		audit = func(Action) {}
	}
	s := &Server{access: access, log: log, b: b, audit: audit}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", get(func(*http.Request) (any, error) { return b.Status(), nil }))
	mux.HandleFunc("GET /v1/exports", get(func(*http.Request) (any, error) { return b.Exports(), nil }))
	mux.HandleFunc("POST /v1/exports", put(func(_ *http.Request, e config.Export) (any, error) { return b.AddExport(e) }))
	mux.HandleFunc("GET /v1/export", get(func(r *http.Request) (any, error) { return findExport(b, r.FormValue("name")) }))
	mux.HandleFunc("PUT /v1/export", put(func(r *http.Request, p ExportPatch) (any, error) { return b.SetExport(r.FormValue("name"), p) }))
	mux.HandleFunc("DELETE /v1/export", get(func(r *http.Request) (any, error) { return done{}, b.RemoveExport(r.FormValue("name")) }))
	mux.HandleFunc("GET /v1/ports", get(func(*http.Request) (any, error) { return b.Ports(), nil }))
	mux.HandleFunc("POST /v1/ports", put(func(_ *http.Request, p PortSpec) (any, error) { return b.AddPort(p) }))
	mux.HandleFunc("DELETE /v1/port", get(func(r *http.Request) (any, error) {
		return done{}, b.RemovePort(PortSpec{Transport: r.FormValue("transport"), Listen: r.FormValue("listen")})
	}))
	mux.HandleFunc("GET /v1/pkeys", get(func(*http.Request) (any, error) { return b.PKeys(), nil }))
	mux.HandleFunc("POST /v1/pkeys", put(func(_ *http.Request, k PKey) (any, error) { return done{}, b.AddPKey(k.PKey) }))
	mux.HandleFunc("DELETE /v1/pkey", get(func(r *http.Request) (any, error) { return done{}, b.RemovePKey(r.FormValue("pkey")) }))
	mux.HandleFunc("GET /v1/nfs4-clients", get(func(*http.Request) (any, error) { return b.NFS4Clients(), nil }))
	mux.HandleFunc("DELETE /v1/nfs4-client", get(func(r *http.Request) (any, error) { return done{}, b.EvictClient(r.FormValue("id")) }))
	mux.HandleFunc("GET /v1/nfs4-sessions", get(func(*http.Request) (any, error) { return b.NFS4Sessions(), nil }))
	mux.HandleFunc("GET /v1/delegations", get(func(*http.Request) (any, error) { return b.Delegations(), nil }))
	mux.HandleFunc("GET /v1/locks", get(func(*http.Request) (any, error) { return b.Locks(), nil }))
	mux.HandleFunc("GET /v1/grace", get(func(*http.Request) (any, error) { return b.Grace(), nil }))
	mux.HandleFunc("DELETE /v1/grace", get(func(*http.Request) (any, error) { return done{}, b.EndGrace() }))
	mux.HandleFunc("GET /v1/slow", get(func(*http.Request) (any, error) { return b.Slow(), nil }))
	mux.HandleFunc("GET /v1/trace", s.trace)
	mux.HandleFunc("GET /v1/ops", get(func(*http.Request) (any, error) { return b.Ops(), nil }))
	mux.HandleFunc("PUT /v1/ops", get(func(r *http.Request) (any, error) { return done{}, setOps(b, r) }))
	mux.HandleFunc("GET /v1/clients", get(func(*http.Request) (any, error) { return b.Clients(), nil }))
	mux.HandleFunc("GET /v1/qps", get(func(*http.Request) (any, error) { return b.QPs(), nil }))
	mux.HandleFunc("GET /v1/stats", get(func(*http.Request) (any, error) { return b.Stats(), nil }))
	mux.HandleFunc("GET /v1/sample", get(func(*http.Request) (any, error) { return b.Sample(), nil }))
	mux.HandleFunc("GET /v1/devices", get(func(*http.Request) (any, error) { return b.Devices(), nil }))
	mux.HandleFunc("GET /v1/post-mortems", get(func(*http.Request) (any, error) { return b.PostMortems(), nil }))
	mux.HandleFunc("GET /v1/config", s.config)
	mux.HandleFunc("PUT /v1/log-level", get(func(r *http.Request) (any, error) { return done{}, b.SetLogLevel(r.FormValue("level")) }))
	mux.HandleFunc("POST /v1/idmap/flush", get(func(*http.Request) (any, error) { b.FlushIDMap(); return done{}, nil }))
	mux.HandleFunc("POST /v1/reload", get(func(*http.Request) (any, error) { return done{}, b.Reload() }))
	mux.HandleFunc("POST /v1/upgrade", get(func(r *http.Request) (any, error) { return upgrade(b, r) }))
	mux.HandleFunc("GET /v1/capture", s.capture)
	s.changes(mux)
	s.support(mux)
	s.http = http.Server{
		Handler:           s.guard(mux),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			p, err := peerOf(c)
			if err != nil {
				log.Warn("control: the peer's credentials cannot be read", "error", err)
				return ctx
			}
			return context.WithValue(ctx, peerKey{}, p)
		},
	}
	return s
}

// Listen makes the socket. A leftover of a process that is gone is replaced;
// one that answers is an error.
func Listen(path string, access Access) (net.Listener, error) {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = safepath.Check(dir, uint32(os.Geteuid()))
	}
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w; others could put another socket in its place", path, err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("control socket %s: another rstored answers there", path)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	// Peer credentials decide; the mode only keeps the uninvited from knocking.
	mode := fs.FileMode(0o600)
	if access.hasGroup {
		mode = 0o660
		err = os.Chown(path, -1, int(access.group))
	}
	if err = errors.Join(err, os.Chmod(path, mode)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}

// Serve answers on the listener until Close.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown stops listening, and lets requests that have arrived be answered, those of other hosts too, as
// long as ctx allows.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	all := append([]*http.Server{&s.http}, s.remotes...)
	s.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, h := range all {
		wg.Go(func() { errs[i] = h.Shutdown(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close ends all connections, captures too.
func (s *Server) Close() error {
	err := s.http.Close()
	s.mu.Lock()
	remotes := s.remotes
	s.remotes = nil
	s.mu.Unlock()
	for _, h := range remotes {
		err = errors.Join(err, h.Close())
	}
	return err
}

// role is what the peer of a request may do.
func (s *Server) role(r *http.Request) (Peer, Role) {
	p, ok := r.Context().Value(peerKey{}).(Peer)
	switch {
	case !ok:
		return p, Nobody
	case p.Remote != "":
		role, _ := r.Context().Value(roleKey{}).(Role)
		return p, role
	case s.access.Allows(p):
		return p, Admin
	}
	return p, Nobody
}

// watches reports whether a request changes nothing, but shows what clients do.
func watches(r *http.Request) bool {
	switch r.URL.Path {
	case "/v1/capture", "/v1/trace", "/v1/log", "/v1/goroutines", "/v1/profile":
		return true
	}
	return false
}

// guard lets only those in whom Access allows.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, role := s.role(r)
		looks := r.Method == http.MethodGet && !watches(r)
		if role == Nobody || role == Reader && !looks {
			s.log.Warn("control: refused", "by", p.String(), "method", r.Method, "path", r.URL.Path)
			s.audit(Action{Peer: p, Method: r.Method, Request: r.URL.RequestURI(), Status: http.StatusForbidden})
			why := p.String() + " may not control this server"
			if role == Reader {
				why = p.String() + " may look at this server, but not change it, nor watch what clients do"
			}
			reply(w, http.StatusForbidden, failure{why})
			return
		}
		if r.Method == http.MethodGet || r.URL.Path == "/v1/plan" { // which changes nothing
			if watches(r) {
				s.audit(Action{Peer: p, Method: r.Method, Request: r.URL.RequestURI(), Status: http.StatusOK})
			}
			next.ServeHTTP(w, r)
			return
		}
		s.log.Info("control", "method", r.Method, "path", r.URL.RequestURI(), "by", p.String())
		before, answer := Snapshot(s.b), &answered{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		if answer.err != "" {
			s.log.Warn("control: not done", "method", r.Method, "path", r.URL.RequestURI(), "by", p.String(), "error", answer.err)
		}
		a := Action{Peer: p, Method: r.Method, Request: r.URL.RequestURI(), Status: answer.status, Error: answer.err}
		a.Old, a.New = Difference(before, Snapshot(s.b))
		s.audit(a)
	})
}

// done is the empty answer.
type done struct{}

// failure is the answer that an error makes.
type failure struct {
	Error string `json:"error"`
}

// Errors that a Backend wraps to choose the HTTP status; anything else is 400,
// because what users can make fail here is what they asked for.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("exists already")
	// ErrForbidden is what the peer may not do, though it controls the server.
	ErrForbidden = errors.New("not allowed")
	// ErrChanged and ErrHurts are why a plan is not carried out.
	ErrChanged = errors.New("the running state has changed since the plan was made; plan again")
	ErrHurts   = errors.New("it would hurt somebody")
)

func statusOf(err error) int {
	switch {
	case errors.Is(err, ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, ErrConflict), errors.Is(err, ErrChanged), errors.Is(err, ErrHurts):
		return http.StatusConflict
	}
	return http.StatusBadRequest
}

func get(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			reply(w, statusOf(err), failure{err.Error()})
			return
		}
		reply(w, http.StatusOK, v)
	}
}

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
	_ = enc.Encode(v) // the client is gone; nobody is left to tell
}

func findExport(b Backend, name string) (Export, error) {
	for _, e := range b.Exports() {
		if e.Named(name) {
			return e, nil
		}
	}
	return Export{}, fmt.Errorf("export %q: %w", name, ErrNotFound)
}

// Named reports whether name means this export: its pseudo path, an alias, or
// its path on the host.
func (e *Export) Named(name string) bool {
	if name == e.Pseudo || name == e.Path {
		return true
	}
	for _, a := range e.Aliases {
		if a == name {
			return true
		}
	}
	return false
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

// capture streams: the status goes out with the first bytes, so a refusal can
// still be told properly.
func (s *Server) capture(w http.ResponseWriter, r *http.Request) {
	out := &flushWriter{w: w, c: http.NewResponseController(w)}
	spec, err := parseCapture(r.FormValue)
	if err == nil {
		err = s.b.Capture(r.Context(), spec, out)
	}
	if err != nil && !out.begun {
		reply(w, statusOf(err), failure{err.Error()})
	}
}

// flushWriter pushes every write to the client at once.
type flushWriter struct {
	w     io.Writer
	c     *http.ResponseController
	begun bool
}

func (f *flushWriter) Write(p []byte) (int, error) {
	if !f.begun {
		f.begun = true
		if rw, ok := f.w.(http.ResponseWriter); ok {
			rw.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
		}
	}
	n, err := f.w.Write(p)
	return n, errors.Join(err, f.c.Flush())
}
