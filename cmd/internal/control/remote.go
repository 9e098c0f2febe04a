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

// Role is what a client of the interface may do.
type Role int

// Roles. A Reader may make all requests that change nothing, except captures and traces: a capture
// has the data of clients in it, a trace the names of their files.
const (
	Nobody Role = iota
	Reader
	Admin
)

// anyone is the name that matches every certificate.
const anyone = "*"

// RoleOf is the role for a certificate with these names. Names on no list have the role Nobody.
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

// Names returns the names in a certificate: the common name, and the alternative names that are DNS
// names, mail addresses or URIs.
func Names(c *x509.Certificate) []string {
	names := slices.Concat([]string{c.Subject.CommonName}, c.DNSNames, c.EmailAddresses)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return names
}

// Remote is a port for control from other hosts.
type Remote struct {
	// TLS requires and verifies certificates of clients.
	TLS *tls.Config
	// Role returns the role of a client by the names in its certificate. It is called for every
	// request.
	Role func(names []string) Role
	// Refused is called for connections that fail before their first request. It must not wait.
	Refused func(client net.Addr, err error)
}

// Bounds of a remote port. A handshake has a time limit. Connections beyond the limit are closed at
// once; the Unix socket still works then.
const (
	remoteConns    = 64
	handshakeTime  = 5 * time.Second
	lingerTime     = time.Second
	remoteHeader   = 16 << 10
	remoteAcceptIn = 50 * time.Millisecond // after an error that may pass
)

// ErrFull is the reason for closing a connection beyond the limit.
var ErrFull = errors.New("too many connections")

type roleKey struct{}

// ServeRemote serves on a TCP listener until the returned function is called, or Close. That
// function does not interrupt requests in progress, because one of them may have called it.
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

// certified admits requests whose certificate was verified and has not expired, and adds their
// role.
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

// handshaker is a listener that returns connections after their handshakes. Each handshake has its
// own goroutine, so that a slow one does not delay others.
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

// linger waits briefly until a refused client closes the connection. The client has probably sent
// its request already. A close with unread data would reset the connection, and the client would
// not see the reason.
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

// slotted is a connection that releases its slot at Close.
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
