package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/safepath"
	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// maxBody bounds the body of a request in bytes: the largest file that can be applied
// (config.DocumentMax), with every byte of it escaped.
const maxBody = 4 << 20

// Server serves the control interface.
type Server struct {
	http   http.Server
	access Access
	log    *zap.Logger
	audit  func(Action)
	b      Backend

	mu      sync.Mutex
	remotes []*http.Server
}

type peerKey struct{}

// NewServer makes a server for the backend. It calls audit for every request that can change
// something, and for every refused request. audit may be nil.
func NewServer(b Backend, access Access, log *zap.Logger, audit func(Action)) *Server {
	if audit == nil {
		audit = func(Action) {}
	}
	s := &Server{access: access, log: log, b: b, audit: audit}
	s.http = http.Server{
		Handler:           s.guard(s.routes()),
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		ErrorLog:          telemetry.ErrorLog(log),
		ConnContext:       withPeer(log),
	}
	return s
}

// Times of a connection on the socket.
const (
	headerTime = 5 * time.Second
	idleTime   = time.Minute
)

// withPeer adds the peer of a connection on the socket to the context of its requests.
func withPeer(log *zap.Logger) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, c net.Conn) context.Context {
		p, err := peerOf(c)
		if err != nil {
			log.Warn("control: the peer's credentials cannot be read", zap.Error(err))
			return ctx
		}
		return context.WithValue(ctx, peerKey{}, p)
	}
}

// Listen makes the socket. It replaces the socket of a process that has ended. If another process
// answers there, it returns an error.
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
	// The credentials of the peer decide. The mode only keeps other users from connecting.
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

// Shutdown stops listening. Requests that have arrived, those of other hosts too, are answered as
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

// role is the role of the peer of a request.
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

// watches reports whether a request changes nothing but shows what clients do.
func watches(r *http.Request) bool {
	switch r.URL.Path {
	case "/v1/capture", "/v1/trace", "/v1/log", "/v1/goroutines", "/v1/profile":
		return true
	}
	return false
}

// guard admits the requests that Access or the role allows, and records changes in the audit log.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, role := s.role(r)
		by, method, path := zap.Stringer("by", p), zap.String("method", r.Method), zap.String("path", r.URL.RequestURI())
		looks := r.Method == http.MethodGet && !watches(r)
		if role == Nobody || role == Reader && !looks {
			s.log.Warn("control: refused", by, method, zap.String("path", r.URL.Path))
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
		s.log.Info("control", method, path, by)
		before, answer := Snapshot(s.b), &answered{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		if answer.err != "" {
			s.log.Warn("control: request failed", method, path, by, zap.String("error", answer.err))
		}
		a := Action{Peer: p, Method: r.Method, Request: r.URL.RequestURI(), Status: answer.status, Error: answer.err}
		a.Old, a.New = Difference(before, Snapshot(s.b))
		s.audit(a)
	})
}
