package failover

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// Times of a connection.
const (
	dialTime = 5 * time.Second
	// partsTime bounds the time from the hello to the last part. The serving node gives up earlier.
	partsTime = time.Minute
	// strangers bounds the connections that have not shown yet that they know the secret.
	strangers = 16
)

// Config describes a Listener.
type Config struct {
	Dir     string // the state directory
	Node    string // the name of this node
	Address string // HOST:PORT of this node alone, where the serving node connects
	Secret  []byte
	Version string
	// Held is called after the serving node has handed over all parts, when it says go or its
	// connection ends: the lease may be free.
	Held func()
	// Failed is called for each connection that fails.
	Failed func(error)
}

// Listener receives the state of clients from the node that serves. It retains the last state that
// arrived.
type Listener struct {
	cfg Config
	tls *tls.Config
	l   net.Listener
	all sync.WaitGroup
	ctx context.Context // ends in Close
	end context.CancelFunc

	mu     sync.Mutex
	closed bool
	conn   net.Conn // of the last handover that began
	token  string
	from   *upgrade.Predecessor
}

// Listen begins to listen, and enters the node into the list of standbys.
func Listen(cfg Config) (*Listener, error) {
	c, err := config(cfg.Secret)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, err
	}
	if err := (Standby{cfg.Node, l.Addr().String()}).register(cfg.Dir); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &Listener{cfg: cfg, tls: c, l: l}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.all.Go(s.serve)
	return s, nil
}

func (s *Listener) serve() {
	admitted := make(chan struct{}, strangers)
	for {
		raw, err := s.l.Accept()
		if err != nil {
			return
		}
		select {
		case admitted <- struct{}{}:
		default:
			_ = raw.Close()
			continue
		}
		s.all.Go(func() {
			c := tls.Server(raw, s.tls)
			ctx, cancel := context.WithTimeout(s.ctx, dialTime)
			err := c.HandshakeContext(ctx)
			cancel()
			<-admitted
			if err == nil {
				err = s.receive(c)
			}
			if err != nil {
				_ = raw.Close()
				s.cfg.Failed(fmt.Errorf("planned failover from %s: %w", raw.RemoteAddr(), err))
			}
		})
	}
}

// receive receives one handover. A later handover replaces it: the serving node has given up on
// this one.
func (s *Listener) receive(c *tls.Conn) error {
	if err := s.use(c); err != nil {
		return err
	}
	if err := c.SetDeadline(time.Now().Add(partsTime)); err != nil {
		return err
	}
	var said upgrade.Hello
	from, err := upgrade.Receive(handover.Stream{Conn: c}, s.cfg.Version, func(h upgrade.Hello) error {
		if h.Token == "" || h.Node == "" || h.Node == s.cfg.Node {
			return fmt.Errorf("node %q hands over to node %q", h.Node, s.cfg.Node)
		}
		said = h
		return nil
	})
	if err != nil {
		upgrade.Fail(handover.Stream{Conn: c}, err)
		return err
	}
	s.mu.Lock()
	if s.conn == net.Conn(c) {
		s.token, s.from = said.Token, from
	}
	s.mu.Unlock()
	if err := from.Holds(); err != nil {
		return err
	}
	// AwaitGo returns at the message go, or at the end of the connection. The lease then decides.
	_ = from.AwaitGo()
	s.cfg.Held()
	return nil
}

// use makes c the connection that Close closes. It closes the previous connection.
func (s *Listener) use(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.conn, s.token, s.from = c, "", nil
	return nil
}

// Close ends the listener and removes the node from the list. It returns the state that was handed
// over with this token, or nil. An empty token matches no state.
func (s *Listener) Close(token string) *upgrade.Predecessor {
	_ = s.l.Close()
	s.end()
	_ = os.Remove(path(s.cfg.Dir, s.cfg.Node))
	s.mu.Lock()
	s.closed = true
	from := s.from
	if token == "" || token != s.token {
		from = nil
		if s.conn != nil {
			_ = s.conn.Close()
		}
	} else {
		_ = s.conn.SetReadDeadline(time.Now()) // the standby expects no further message
	}
	s.mu.Unlock()
	s.all.Wait()
	if from != nil {
		_ = s.conn.SetDeadline(time.Now().Add(partsTime)) // for the message serving
	}
	return from
}

// Dial connects to a standby.
func Dial(ctx context.Context, to Standby, secret []byte) (*upgrade.Successor, error) {
	c, err := config(secret)
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTime}, Config: c}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", to.Address)
	if err != nil {
		return nil, fmt.Errorf("standby %s: %w", to.Node, err)
	}
	return upgrade.OnNode(handover.Stream{Conn: conn}), nil
}
