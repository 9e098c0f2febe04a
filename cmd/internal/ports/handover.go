package ports

import (
	"errors"
	"maps"
	"net/netip"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// partName returns the name of a listener's part of the handover.
func partName(l listener, at netip.AddrPort) string {
	if _, ok := l.(*tcp.Listener); ok {
		return "tcp " + at.String()
	}
	return "rdma " + at.String()
}

// all returns all endpoints.
func (s *Set) all() (out []endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.list {
		out = append(out, p.ends...)
	}
	return out
}

// Freeze implements upgrade.Component, for the devices too.
func (s *Set) Freeze(stage upgrade.Stage) (thaw func() error, err error) {
	switch stage {
	case upgrade.Intake:
		return upgrade.Switch(s.pause), nil
	case upgrade.Loops:
		release := s.Devices.StopLoops()
		for _, e := range s.all() {
			if l, ok := e.listener.(*rpcrdma.Listener); ok && !l.Quiescent() {
				release()
				return nil, upgrade.ErrBusy
			}
		}
		return func() error { release(); return nil }, nil
	}
	return nil, nil
}

// pause freezes the set, or resumes it. While the set is frozen no connection begins, calls that
// arrive are postponed, waiting ports are not opened, and the removal of a device waits.
func (s *Set) pause(on bool) {
	s.mu.Lock()
	s.frozen = on
	s.mu.Unlock()
	s.Devices.Pause(on)
	for _, e := range s.all() {
		if e.listener != nil {
			e.listener.Pause(on)
		}
		if e.datagrams != nil {
			e.datagrams.Pause(on)
		}
		if on && e.list != nil {
			e.list() // no connection begins any more
		}
	}
	s.Portmap.ServeDeferred(on)
}

// Work returns the calls over RDMA in progress, and the connections that only their clients can
// quiesce.
func (s *Set) Work() (w upgrade.Work) {
	for _, e := range s.all() {
		switch l := e.listener.(type) {
		case *rpcrdma.Listener:
			for _, b := range l.Busy() {
				w.Calls += b.Calls
				if b.Calls == 0 {
					w.Drops = append(w.Drops, func() {
						l.Drop(b.Remote, errors.New("it does not answer, and another process takes over"))
					})
				}
			}
		case *tcp.Listener:
			// The RPC server counts the calls in progress. It does not count a reply that is not
			// written yet.
			for _, b := range l.Busy() {
				w.Drops = append(w.Drops, func() { l.Drop(b.Remote) })
			}
		}
	}
	return w
}

// Snapshot implements upgrade.Component. Connections on devices of the kernel end.
func (s *Set) Snapshot(parts *upgrade.Parts) {
	s.Devices.Snapshot(parts)
	for _, e := range s.all() {
		if e.listener == nil || e.onKernelDevice() {
			continue
		}
		data, files, err := e.listener.Export()
		parts.Add(partName(e.listener, e.addr), data, files, err)
	}
}

// Callers returns the connections by which the server can call clients, and which it hands over in
// an upgrade.
func (s *Set) Callers() map[rpc.Peer]rpc.Caller {
	out := make(map[rpc.Peer]rpc.Caller)
	for _, e := range s.all() {
		if e.listener != nil && !e.onKernelDevice() {
			maps.Copy(out, e.listener.Callers())
		}
	}
	return out
}

// Fixed returns the number of connections with TLS. They end in an upgrade.
func (s *Set) Fixed() (n int) {
	for _, e := range s.all() {
		if l, ok := e.listener.(*tcp.Listener); ok {
			n += l.Fixed()
		}
	}
	return n
}

// CloseKernel closes the endpoints on devices of the kernel. The new process can open them only
// after that. It returns the number of connections that end.
func (s *Set) CloseKernel() (dropped int) {
	var closing port
	changed := s.change()
	for _, p := range s.list {
		closing.ends = append(closing.ends, p.take(endpoint.onKernelDevice)...)
	}
	changed()
	for _, e := range closing.ends {
		if l, ok := e.listener.(*rpcrdma.Listener); ok {
			dropped += len(l.Conns())
		}
	}
	if err := closing.stopNow(); err != nil {
		s.Log.Warn("closing the ports on devices of the kernel", zap.Error(err))
	}
	return dropped
}

// restore takes over the connections that the old process had on an address, if there was one.
func (s *Set) restore(l listener, at netip.AddrPort) error {
	p, err := s.From.Take(partName(l, at))
	if p == nil {
		return err
	}
	var n int
	switch l := l.(type) {
	case *rpcrdma.Listener:
		n, err = l.Import(p.Data)
		s.From.Restored.RDMA += n
	case *tcp.Listener:
		n, err = l.Import(p.Data, p.Files)
		s.From.Restored.TCP += n
	}
	return err
}
