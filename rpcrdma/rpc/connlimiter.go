package rpc

import (
	"fmt"
	"net/netip"
	"sync"
)

// ConnLimits bounds the connections of all transports together. 0 means no bound.
type ConnLimits struct {
	// Clients is the number of addresses that connections come from.
	Clients int
	// PerClient is the number of connections of one address.
	PerClient int
	// Descriptors is the number of connections that have a file descriptor of their own.
	Descriptors int
}

// Reason is why a connection was refused.
type Reason uint8

// Reasons.
const (
	RefusedClients Reason = iota
	RefusedPerClient
	RefusedDescriptors
	RefusedConnections // of one port
	RefusedMemory
	RefusedOther
	reasons
)

var reasonNames = [reasons]string{
	RefusedClients: "clients", RefusedPerClient: "connections_per_client", RefusedDescriptors: "descriptors",
	RefusedConnections: "connections", RefusedMemory: "memory", RefusedOther: "other",
}

func (r Reason) String() string { return reasonNames[r] }

// Refused is why a connection was refused, in words.
type Refused struct {
	Reason Reason
	Text   string
}

func (r *Refused) Error() string { return r.Text }

// ConnLimiter admits connections. All transports of a server share one. A nil ConnLimiter admits
// all connections. Its methods may be called from any goroutine.
type ConnLimiter struct {
	cfg ConnLimits

	mu      sync.Mutex
	clients map[netip.Addr]int // connections of each
	fds     int
	refused [reasons]uint64
}

// NewConnLimiter makes a ConnLimiter.
func NewConnLimiter(cfg ConnLimits) *ConnLimiter {
	return &ConnLimiter{cfg: cfg, clients: make(map[netip.Addr]int)}
}

// Admit counts a connection from an address, or returns a *Refused. descriptor says that the
// connection has a file descriptor. The caller ends an admitted connection by Release with the
// same arguments.
func (d *ConnLimiter) Admit(a netip.Addr, descriptor bool) error {
	if d == nil {
		return nil
	}
	a = a.Unmap()
	d.mu.Lock()
	defer d.mu.Unlock()
	n, known := d.clients[a]
	var err *Refused
	switch {
	case d.cfg.PerClient > 0 && n >= d.cfg.PerClient:
		err = &Refused{RefusedPerClient, fmt.Sprintf("%v has %d connections already (max_client_connections)", a, n)}
	case d.cfg.Clients > 0 && !known && len(d.clients) >= d.cfg.Clients:
		err = &Refused{RefusedClients, fmt.Sprintf("%d clients are connected already (max_clients)", len(d.clients))}
	case descriptor && d.cfg.Descriptors > 0 && d.fds >= d.cfg.Descriptors:
		err = &Refused{
			RefusedDescriptors,
			fmt.Sprintf("all file descriptors for connections are in use, by %d connections (LimitNOFILE)", d.fds),
		}
	}
	if err != nil {
		d.refused[err.Reason]++
		return err
	}
	d.clients[a] = n + 1
	if descriptor {
		d.fds++
	}
	return nil
}

// Restore counts a connection that another process admitted and handed over, regardless of the
// bounds. It is released like others.
func (d *ConnLimiter) Restore(a netip.Addr, descriptor bool) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clients[a.Unmap()]++
	if descriptor {
		d.fds++
	}
}

// Release ends a connection that was admitted or restored.
func (d *ConnLimiter) Release(a netip.Addr, descriptor bool) {
	if d == nil {
		return
	}
	a = a.Unmap()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.clients[a]--; d.clients[a] <= 0 {
		delete(d.clients, a)
	}
	if descriptor {
		d.fds--
	}
}

// CountRefused counts a connection that a transport refused for a reason of its own.
func (d *ConnLimiter) CountRefused(r Reason) {
	if d != nil {
		d.mu.Lock()
		d.refused[r]++
		d.mu.Unlock()
	}
}

// ConnLimiterStats describe a ConnLimiter.
type ConnLimiterStats struct {
	Clients, Descriptors int
	// Refused counts connections by Reason.
	Refused map[string]uint64
}

// Stats returns the current counts.
func (d *ConnLimiter) Stats() ConnLimiterStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := ConnLimiterStats{Clients: len(d.clients), Descriptors: d.fds, Refused: make(map[string]uint64)}
	for r, n := range d.refused {
		s.Refused[reasonNames[r]] = n
	}
	return s
}
