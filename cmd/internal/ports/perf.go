package ports

import (
	"context"
	"errors"
	"sync"

	"github.com/rstored/rstored/rdma/perf"
)

// perfServer is the server of 'rstorectl perf'. All perf ports share it, with its bounded memory.
// It exists while a perf port is open.
type perfServer struct {
	mu    sync.Mutex
	srv   *perf.Server
	ports int
}

// servePerf serves measurements on an endpoint. A port whose limits changed is closed before it is
// opened anew, so all open ports have the same limits.
func (s *Set) servePerf(e *endpoint) error {
	section := s.Settings().Perf
	limits, err := section.Limits()
	if err != nil {
		return err
	}
	if len(limits.Clients) == 0 {
		return errors.New("nobody may measure: name clients in the perf section of the configuration")
	}
	srv, err := s.openPerf(limits)
	if err != nil {
		return err
	}
	l, err := srv.Listen(e.dev.Device, e.addr.Port())
	if err != nil {
		return errors.Join(err, s.closePerf())
	}
	// Measurements in progress are cut off, because nobody loses data by that.
	e.stop = func(context.Context) error { return errors.Join(l.Close(), s.closePerf()) }
	return nil
}

// openPerf returns the server for one more port.
func (s *Set) openPerf(l perf.Limits) (*perf.Server, error) {
	m := &s.perf
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ports == 0 {
		srv, err := perf.NewServer(l, s.Log.Slog("perf"))
		if err != nil {
			return nil, err
		}
		s.Counters.AddPerf(srv)
		m.srv = srv
	}
	m.ports++
	return m.srv, nil
}

// closePerf closes the server with its last port.
func (s *Set) closePerf() error {
	m := &s.perf
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ports--; m.ports > 0 {
		return nil
	}
	s.Counters.DropPerf(m.srv)
	return m.srv.Close()
}
