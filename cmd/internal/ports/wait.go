package ports

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/rdma/provider"
)

// The devices of the kernel come and go: a card is pulled, a driver is loaded, a soft device is
// deleted and made again. A port whose device is gone waits until a device is back. A port also
// waits if another process has its address, or if the host does not have the address yet.

// A waiting endpoint is tried again after retryFirst, and then after twice as long each time, up to
// retryMost.
const (
	retryFirst = 20 * time.Millisecond
	retryMost  = 2 * time.Second
	// retryHA is retryMost where the address moves between nodes.
	retryHA = 100 * time.Millisecond
)

// waiting is an endpoint that waits for a device of the kernel, or for its address. Set.mu guards
// it.
type waiting struct {
	want   config.Listen // one address, or one device
	kind   provider.Kind // Verbs: it waits for a device of the kernel; Soft: for its address; empty: no RDMA
	since  time.Time
	reason error // of the last try
	delay  time.Duration
	timer  *time.Timer
}

// where returns the address or device of the endpoint.
func (w *waiting) where() string {
	l := w.want
	l.Provider = ""
	return l.String()
}

// forDevice reports whether the endpoint waits for a device of the kernel.
func (w *waiting) forDevice() bool { return w.kind == provider.Verbs }

func (w *waiting) err() error {
	if !w.forDevice() {
		return fmt.Errorf("%s is not served since %s, and is tried again: %w", w.where(),
			w.since.Local().Format(time.DateTime), w.reason)
	}
	return fmt.Errorf("%s waits for its RDMA device since %s, and is served when the kernel has it ('rstorectl "+
		"device list' shows those there are): %w", w.where(), w.since.Local().Format(time.DateTime), w.reason)
}

// stopWaiting ends the waiting of a port's endpoints. A retry that has begun finds that its
// endpoint no longer waits.
func (p *port) stopWaiting() {
	for _, w := range p.waiting {
		w.timer.Stop()
	}
	p.waiting = nil
}

// errPredecessor is why a port on a device of the kernel is not opened before this process may
// serve.
var errPredecessor = errors.New("the process before this one has the port")

// wait makes an endpoint of a port wait for its device, or for its address.
func (s *Set) wait(p *port, l config.Listen, kind provider.Kind, why error) {
	w := &waiting{want: l, kind: kind, since: time.Now(), reason: why, delay: retryFirst}
	w.timer = time.AfterFunc(w.delay, func() { s.retry(p, w) })
	p.waiting = append(p.waiting, w)
}

// retry tries to open an endpoint that waits.
func (s *Set) retry(p *port, w *waiting) {
	defer s.change()()
	if !slices.Contains(p.waiting, w) {
		return
	}
	if s.frozen || s.From.Waiting() {
		w.timer.Reset(w.delay)
		return
	}
	e, err := s.again(p, w)
	if err == nil && e.stop == nil {
		return // again has opened the endpoints itself
	}
	if err != nil {
		if w.reason.Error() != err.Error() && !errors.Is(err, syscall.EADDRINUSE) {
			s.Log.Warn("a port is still not served", zap.String("transport", p.Transport),
				zap.String("on", w.where()), zap.Error(err))
		}
		w.reason = err
		most := retryMost
		if s.Settings().HALease != 0 {
			most = retryHA
		}
		w.delay = min(2*w.delay, most)
		w.timer.Reset(w.delay)
		return
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(o *waiting) bool { return o == w })
	p.ends = append(p.ends, e)
	s.listening(p, &e)
}

// again opens an endpoint that waits. It does not choose the provider anew: a device in user space
// would take UDP port 4791 from a device of the kernel that comes back. For a port on all devices
// it opens an endpoint on each present device, and returns none.
func (s *Set) again(p *port, w *waiting) (endpoint, error) {
	if w.kind == "" {
		return s.openIP(p.Transport, w.want)
	}
	if w.want.Any() {
		if _, err := s.spread(w.want, p.opened.provider); err != nil {
			return endpoint{}, err
		}
		p.waiting = slices.DeleteFunc(p.waiting, func(o *waiting) bool { return o == w })
		p.failed = s.openOnDevices(p, w.want, false)
		return endpoint{}, nil
	}
	c, err := s.Devices.Host.Choose(w.kind, w.want.Addr, w.want.Device)
	if err != nil {
		return endpoint{}, err
	}
	return s.openOn(p.Transport, c, w.want)
}

// deviceRemoved closes the endpoints of a device that the kernel took away, and makes them wait for
// it. While the set is frozen it does nothing and returns false.
func (s *Set) deviceRemoved(v *devices.Device) bool {
	defer s.change()()
	if s.frozen {
		return false
	}
	s.Devices.Forget(v)
	removed := new(port)
	for _, p := range s.list {
		for _, e := range p.take(func(e endpoint) bool { return e.dev == v }) {
			s.Log.Error("a port has lost its RDMA device: the kernel took it away, and its clients are cut "+
				"off; it is served again when the device is back (see 'rstorectl device list')",
				zap.String("transport", p.Transport), zap.Stringer("on", e.addr), zap.String("device", v.Name()))
			removed.ends = append(removed.ends, e)
			s.wait(p, e.want, provider.Verbs, fmt.Errorf("the kernel took %s away", v.Kernel.Name()))
		}
	}
	if len(removed.ends) > 0 {
		s.closing.Go(func() {
			if err := removed.stopNow(); err != nil {
				s.Log.Warn("closing what was on an RDMA device that is gone", zap.String("device", v.Name()), zap.Error(err))
			}
		})
	}
	return true
}
