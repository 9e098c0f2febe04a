package control

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SupportBackend is the part of a Backend that is for a support bundle.
type SupportBackend interface {
	// Metrics writes the metrics in the text format of Prometheus.
	Metrics(w io.Writer) error
	// RecentLog are the last lines of the log, JSON.
	RecentLog() []byte
	// Goroutines writes where the goroutines are, without arguments.
	Goroutines(w io.Writer) error
	// Profile writes a CPU profile of as long as ctx lasts.
	Profile(ctx context.Context, w io.Writer) error
}

// ProfileMax is the longest profile.
const ProfileMax = 2 * time.Minute

func (s *Server) support(mux *http.ServeMux) {
	b := s.b
	text := func(f func(r *http.Request, w io.Writer) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var out bytes.Buffer
			if err := f(r, &out); err != nil {
				reply(w, statusOf(err), failure{err.Error()})
				return
			}
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(out.Bytes())
		}
	}
	mux.HandleFunc("GET /v1/metrics", text(func(_ *http.Request, w io.Writer) error { return b.Metrics(w) }))
	mux.HandleFunc("GET /v1/log", text(func(_ *http.Request, w io.Writer) error {
		_, err := w.Write(b.RecentLog())
		return err
	}))
	mux.HandleFunc("GET /v1/goroutines", text(func(_ *http.Request, w io.Writer) error { return b.Goroutines(w) }))
	mux.HandleFunc("GET /v1/profile", text(func(r *http.Request, w io.Writer) error {
		n, err := strconv.Atoi(r.FormValue("seconds"))
		if most := int(ProfileMax / time.Second); err != nil || n < 1 || n > most {
			return fmt.Errorf("a profile takes 1 to %d seconds", most)
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Duration(n)*time.Second)
		defer cancel()
		return b.Profile(ctx, w)
	}))
}

// Raw asks for what is answered at a path, as it comes.
func (d *Dialer) Raw(ctx context.Context, path string, q url.Values) (b []byte, err error) {
	return b, d.do(ctx, http.MethodGet, path, q, nil, &b)
}
