package endpoint

import (
	"context"
	"net/netip"
	"sync"

	"github.com/rstored/rstored/rdma"
)

// backlog is the number of connections that may wait for Accept; further ones are closed.
const backlog = 128

// noResources is the IBTA reject reason for a full backlog.
const noResources = 3

// Listener accepts connections on one port.
type Listener struct {
	l      rdma.Listener
	conns  chan *Conn
	done   chan struct{}
	closed sync.Once
}

// Listen listens on a port of the device; 0 means any.
func Listen(dev rdma.Device, port uint16, cfg Config) (*Listener, error) {
	cfg.setDefaults()
	l := &Listener{conns: make(chan *Conn, backlog), done: make(chan struct{})}
	var err error
	l.l, err = dev.Listen(port, func(r rdma.ConnRequest) { l.request(dev, r, cfg) })
	if err != nil {
		return nil, err
	}
	return l, nil
}

// request answers a request. On the loop of the connection to be.
func (l *Listener) request(dev rdma.Device, r rdma.ConnRequest, cfg Config) {
	if cfg.Admit != nil {
		if reason, private := cfg.Admit(r); reason != 0 {
			r.Reject(reason, private)
			return
		}
	}
	c, err := newConn(dev, r.Loop(), cfg)
	if err == nil {
		var qp rdma.QPConfig
		if qp, err = c.qp(); err == nil {
			_, err = r.Accept(qp, cfg.Params, c.prepare, c.handle)
			if err != nil {
				c.conn = nil // Accept has released it
				c.close()
				return // Accept has answered the request
			}
		}
	}
	if err != nil {
		r.Reject(noResources, nil)
		return
	}
	select {
	case l.conns <- c:
	default:
		c.close()
	}
}

// Addr is the address and port listened on.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Accept waits for a connection, and until the peer has confirmed it.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case c := <-l.conns:
		select {
		case <-c.up:
		case <-c.done:
			c.Close()
			return nil, c.Err()
		case <-ctx.Done():
			c.Close()
			return nil, ctx.Err()
		}
		return c, nil
	case <-l.done:
		return nil, rdma.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close stops listening. Established connections are not affected.
func (l *Listener) Close() error {
	err := rdma.ErrClosed
	l.closed.Do(func() {
		err = l.l.Close()
		close(l.done)
	})
	return err
}
