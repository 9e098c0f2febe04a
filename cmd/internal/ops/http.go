package ops

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// Check is one thing that has to be well, and what is wrong with it; nil is nothing. Serves says
// that clients are served all the same: the answer names the error, and its status stays 200.
type Check struct {
	Name   string
	Err    error
	Serves bool
}

// Config is what a handler shows.
type Config struct {
	Gatherer prometheus.Gatherer
	// Live are the checks of /livez: what only a restart repairs. Ready are those of /readyz:
	// what keeps clients from being served. They are asked for every request.
	Live, Ready func(context.Context) []Check
	// Profiles reports whether /debug answers.
	Profiles func() bool
	// Names are the host names that the port is asked for by, besides localhost; "*" is any.
	Names func() []string
	// Feed is for the page. Without it there is none.
	Feed   *Feed
	Logger *zap.Logger
}

// checkTime bounds a health check. Most probes have a shorter timeout of their own.
const checkTime = 10 * time.Second

// answerTime is how long an answer may take that is no profile.
const answerTime = time.Minute

// Handler answers requests.
func Handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog: telemetry.ErrorLog(cfg.Logger), MaxRequestsInFlight: 4, EnableOpenMetrics: true,
		ErrorHandling: promhttp.ContinueOnError,
	}))
	mux.HandleFunc("GET /livez", health(cfg.Live))
	mux.HandleFunc("GET /readyz", health(cfg.Ready))
	guarded := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !cfg.Profiles() {
				http.Error(w, "profiles are off: ops_pprof in the configuration or 'rstorectl ops pprof on' turns them on",
					http.StatusForbidden)
				return
			}
			// A profile takes as long as was asked for.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
			h(w, r)
		}
	}
	mux.HandleFunc("GET /debug/pprof/", guarded(pprof.Index))
	mux.HandleFunc("GET /debug/pprof/cmdline", guarded(pprof.Cmdline))
	mux.HandleFunc("GET /debug/pprof/profile", guarded(pprof.Profile))
	mux.HandleFunc("GET /debug/pprof/symbol", guarded(pprof.Symbol))
	mux.HandleFunc("GET /debug/pprof/trace", guarded(pprof.Trace))
	mux.HandleFunc("GET /debug/trace", guarded(pprof.Trace))
	if cfg.Feed != nil {
		pageHandlers(mux, cfg.Feed)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !meant(r.Host, cfg.Names) {
			http.Error(w, "this server is not asked for by that name: use its address, or name it in ops_hosts",
				http.StatusMisdirectedRequest)
			return
		}
		// Not the server's WriteTimeout: profiles may be longer, and refuse to be if that is set.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
		mux.ServeHTTP(w, r)
	})
}

// meant reports whether a request's Host is an address or a name of this server. A page of another
// site that has its name resolve to this server (DNS rebinding) sends its own, and is to read
// nothing. Who sends none is no browser.
func meant(host string, names func() []string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if _, err := netip.ParseAddr(host); err == nil || host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	return names != nil && slices.ContainsFunc(names(),
		func(n string) bool { return n == "*" || strings.EqualFold(n, host) })
}

// health answers 200 if all is well and 503 if not, with a line for each check.
func health(checks func(context.Context) []Check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTime)
		defer cancel()
		status := http.StatusOK
		var b strings.Builder
		for _, c := range checks(ctx) {
			if c.Err == nil {
				fmt.Fprintf(&b, "ok %s\n", c.Name)
				continue
			}
			if c.Serves {
				fmt.Fprintf(&b, "warning %s: %v\n", c.Name, c.Err)
				continue
			}
			status = http.StatusServiceUnavailable
			fmt.Fprintf(&b, "failed %s: %v\n", c.Name, c.Err)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		fmt.Fprint(w, b.String())
	}
}

// Server is a port that answers.
type Server struct{ http http.Server }

// Serve answers at a listener until Close. It returns at once.
func Serve(l net.Listener, cfg Config) *Server {
	s := &Server{http.Server{
		Handler: Handler(cfg), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: telemetry.ErrorLog(cfg.Logger),
	}}
	go func() { _ = s.http.Serve(l) }() // until Close; what fails before shows in the answers
	return s
}

// Close lets requests in progress end as long as ctx lasts.
func (s *Server) Close(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}
