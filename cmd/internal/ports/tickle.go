package ports

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/tickle"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

const (
	// listedConns is how many connections of a listener are listed for another node.
	listedConns = 4096
	// listEvery is how often the list is updated. If the node is lost, the list lacks connections
	// that are younger.
	listEvery = 250 * time.Millisecond
	// comeEvery is how often the process tries to send the first segments. A standby that is handed
	// over to can open its ports before its host has the address.
	comeEvery = 20 * time.Millisecond
)

// tickleAt is when the clients of the lost node get a segment, after the address has come. The first
// ones can come before the network knows where the address is: then the answer of the client goes to
// the lost node. The address is announced each time before.
var tickleAt = []time.Duration{
	0, 50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, time.Second,
	2 * time.Second, 3 * time.Second,
}

// followTCP keeps a list of the connections of a listener in the state directory that nodes share,
// and ends the connections that another node has left in that list. stop ends this. list updates
// the list at once.
func (s *Set) followTCP(t *tcp.Listener, at netip.AddrPort) (list, stop func(), err error) {
	if s.Settings().HALease == 0 {
		return func() {}, func() {}, nil
	}
	// Package state finds the memory by this name, and detaches it from a process that was stopped
	// and continues.
	mem, err := s.State.Memory("connections-tcp-"+at.String(), listedConns*tickle.Record)
	if err != nil {
		return nil, nil, err
	}
	table, left := tickle.Open(mem)
	if s.From != nil {
		left = nil // the old process has handed them over
	}
	var mu sync.Mutex // guards table
	list = func() {
		mu.Lock()
		defer mu.Unlock()
		var conns []tickle.Conn
		for _, c := range t.Conns() {
			conns = append(conns, tickle.Conn{Local: c.Local, Remote: c.Remote})
		}
		table.Set(conns)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		s.follow(at.Addr(), left, list, end)
	}()
	return list, func() {
		close(end)
		<-ended
		table.Set(nil) // a process that closes its connections tells the clients itself
	}, nil
}

// follow updates the list until end is closed, and sends the segments to the clients in left.
func (s *Set) follow(at netip.Addr, left []tickle.Conn, list func(), end <-chan struct{}) {
	var came, listed time.Time // when the address came, and when the list was updated
	for n := 0; ; {
		busy := len(left) > 0 && n < len(tickleAt)
		if busy && time.Since(came) >= tickleAt[n] && s.tickle(at, left, n == 0) {
			if n++; n == 1 {
				came = time.Now()
			}
		}
		pause := listEvery
		if busy {
			pause = comeEvery
		}
		if time.Since(listed) >= listEvery {
			list()
			listed = time.Now()
		}
		select {
		case <-time.After(pause):
		case <-end:
			return
		}
	}
}

// announce announces to the network that an address has moved here, if nodes share the state
// directory. It repeats this when TCP clients get segments. If the process lacks the right to do so,
// the program that moves the address must announce it.
func (s *Set) announce(a netip.Addr) {
	if s.Settings().HALease == 0 || s.From != nil || a.IsUnspecified() || a.IsLoopback() {
		return
	}
	for _, after := range tickleAt {
		time.AfterFunc(after, func() { s.tell(a) })
	}
}

// tell announces an address once, if this host has it.
func (s *Set) tell(a netip.Addr) {
	if err := tickle.Announce(a); err != nil {
		s.Log.Debug("an address is not announced", zap.Error(err))
	}
}

// Addresses returns the addresses of the endpoints of RPC, never nil.
func (s *Set) Addresses() []net.IP {
	list := []net.IP{}
	for _, e := range s.all() {
		if e.listener != nil {
			list = append(list, e.addr.Addr().AsSlice())
		}
	}
	return list
}

// tickle announces the address of a listener, and sends the segments. It reports false if this host
// has none of the addresses yet.
func (s *Set) tickle(at netip.Addr, left []tickle.Conn, first bool) bool {
	s.tell(at)
	sent, err := tickle.Send(left)
	switch {
	case sent == 0 && errors.Is(err, syscall.EADDRNOTAVAIL):
		return false
	case !first:
	case errors.Is(err, syscall.EPERM):
		s.Log.Warn("TCP clients of the node before wait for their timeouts: to reset their connections this process "+
			"needs CAP_NET_RAW, see docs/ha.md", zap.Int("connections", len(left)))
	default:
		s.Log.Info("TCP connections of the node before are reset", zap.Int("connections", sent), zap.Error(err))
	}
	return true
}
