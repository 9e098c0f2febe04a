package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// Role is what somebody may do who controls the daemon.
type Role int

// Roles. A reader may ask for everything but for what clients do: a capture has their data in it, a trace
// the names of their files.
const (
	Nobody Role = iota
	Reader
	Admin
)

// anyone is the name that stands for all of them.
const anyone = "*"

// RoleOf is the role of somebody with these names. Who is on no list is Nobody.
func RoleOf(names, admins, readers []string) Role {
	on := func(list []string) bool {
		return slices.Contains(list, anyone) || slices.ContainsFunc(names,
			func(n string) bool { return n != "" && n != anyone && slices.Contains(list, n) })
	}
	switch {
	case on(admins):
		return Admin
	case on(readers):
		return Reader
	}
	return Nobody
}

// Names are what a certificate calls its holder: the common name, and the subject's alternative
// names that are DNS names, addresses of electronic mail or URIs.
func Names(c *x509.Certificate) []string {
	names := slices.Concat([]string{c.Subject.CommonName}, c.DNSNames, c.EmailAddresses)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return names
}

// Remote is a port for control from other hosts.
type Remote struct {
	// TLS wants certificates of clients, and verifies them.
	TLS *tls.Config
	// Role says what a client may do, by the names in its certificate. It is asked for every request.
	Role func(names []string) Role
	// Refused is told of connections that came to nothing. It must not wait.
	Refused func(client net.Addr, err error)
}

// Bounds of a remote port. handshakes end soon or not at all; connections beyond the limit are closed at
// once, and the socket is still there.
const (
	remoteConns    = 64
	handshakeTime  = 5 * time.Second
	lingerTime     = time.Second
	remoteHeader   = 16 << 10
	remoteAcceptIn = 50 * time.Millisecond // after an error that may pass
)

// ErrFull is why a connection is closed that is one too many.
var ErrFull = errors.New("too many connections")

type roleKey struct{}

// ServeRemote answers on a listener of TCP until the function it returns is called, or Close. That function
// lets requests in progress end by themselves: one of them may be what called it.
func (s *Server) ServeRemote(l net.Listener, r Remote) (stop func()) {
	h := &http.Server{
		Handler:           s.certified(r.Role, s.http.Handler),
		ReadHeaderTimeout: s.http.ReadHeaderTimeout,
		IdleTimeout:       s.http.IdleTimeout,
		MaxHeaderBytes:    remoteHeader,
		ErrorLog:          telemetry.ErrorLog(s.log),
	}
	s.mu.Lock()
	s.remotes = append(s.remotes, h)
	s.mu.Unlock()
	shaker := &handshaker{Listener: l, remote: r, slots: make(chan struct{},
		remoteConns), ready: make(chan net.Conn), ended: make(chan struct{})}
	go shaker.run()
	go func() { _ = h.Serve(shaker) }() // until stop
	return func() {
		_ = shaker.Close()
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = h.Shutdown(ctx)
			_ = h.Close()
			s.mu.Lock()
			s.remotes = slices.DeleteFunc(s.remotes, func(o *http.Server) bool { return o == h })
			s.mu.Unlock()
		}()
	}
}

// certified lets those in whose certificate has been verified and is still valid, with their role.
func (s *Server) certified(role func([]string) Role, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
			reply(w, http.StatusForbidden, failure{"a certificate is needed to control this server"})
			return
		}
		c := r.TLS.VerifiedChains[0][0]
		if time.Now().After(c.NotAfter) { // since the handshake
			w.Header().Set("Connection", "close")
			reply(w, http.StatusForbidden, failure{"the certificate " + c.Subject.String() + " has expired"})
			return
		}
		names := Names(c)
		p := Peer{Remote: r.RemoteAddr, Subject: c.Subject.String(), Serial: fmt.Sprintf("%x", c.SerialNumber)}
		if p.Subject == "" {
			p.Subject = fmt.Sprint(slices.DeleteFunc(names, func(n string) bool { return n == "" }))
		}
		ctx := context.WithValue(context.WithValue(r.Context(), peerKey{}, p), roleKey{}, role(names))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// handshaker is a listener whose connections have been through their handshakes, each in a goroutine of
// its own, so that a slow one holds nobody up.
type handshaker struct {
	net.Listener
	remote Remote
	slots  chan struct{} // one for each connection
	ready  chan net.Conn
	once   sync.Once
	ended  chan struct{}
}

func (h *handshaker) run() {
	for {
		c, err := h.Listener.Accept()
		if err != nil {
			select {
			case <-h.ended:
				return
			case <-time.After(remoteAcceptIn):
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		select {
		case h.slots <- struct{}{}:
			go h.shake(c)
		default:
			h.remote.Refused(c.RemoteAddr(), ErrFull)
			_ = c.Close()
		}
	}
}

func (h *handshaker) shake(c net.Conn) {
	raw := &slotted{Conn: c, slots: h.slots}
	t := tls.Server(raw, h.remote.TLS)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTime)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		h.remote.Refused(c.RemoteAddr(), err)
		linger(c)
		_ = raw.Close()
		return
	}
	select {
	case h.ready <- t:
	case <-h.ended:
		_ = raw.Close()
	}
}

// linger waits for a refused client to go, for a moment. It has sent its request by now, most likely; to close
// with that unread would reset the connection, and the client would not learn why.
func linger(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok && t.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c, maxBody))
	}
}

// Accept implements net.Listener.
func (h *handshaker) Accept() (net.Conn, error) {
	select {
	case c := <-h.ready:
		return c, nil
	case <-h.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handshaker) Close() (err error) {
	h.once.Do(func() {
		close(h.ended)
		err = h.Listener.Close()
	})
	return err
}

// slotted is a connection that gives its slot back when it is closed.
type slotted struct {
	net.Conn
	slots chan struct{}
	once  sync.Once
}

// Close implements net.Conn.
func (s *slotted) Close() error {
	s.once.Do(func() { <-s.slots })
	return s.Conn.Close()
}
