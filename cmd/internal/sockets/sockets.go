package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// Store retains descriptors for the next process. The name has neither colons nor control
// characters, and no other descriptor has it. The descriptor stays the caller's.
type Store interface {
	StoreFD(name string, fd int) error
	RemoveFD(name string) error
}

// Set has the inherited sockets, and the sockets that the store retains. Its methods may be called
// from any goroutine.
type Set struct {
	store Store
	log   *zap.Logger

	mu     sync.Mutex
	in     []inherited
	frozen bool
	// open has the sockets in use, by their names, for a new process.
	open map[string]copier
	// waits says that messages to the store are postponed. pending has these messages, in order.
	waits   bool
	pending []func()
}

// copier makes another descriptor of a socket.
type copier func() (*os.File, error)

// inherited is a socket that nobody has claimed.
type inherited struct {
	name   string
	fd     int
	addr   netip.AddrPort
	stream bool
}

// firstFD is SD_LISTEN_FDS_START.
const firstFD = 3

// Inherit takes the sockets of the old process. In an upgrade, from hands them over; otherwise the
// environment names their descriptors (sd_listen_fds(3)). Inherit unsets the variables, so that no
// child uses the descriptors. It closes descriptors that are not bound IP sockets. The store,
// unless it is nil, gets the sockets that are opened later.
func Inherit(store Store, log *zap.Logger, from *upgrade.Predecessor) (*Set, error) {
	if from != nil {
		return restore(store, log, from)
	}
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, v := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(v)
	}
	n, err := strconv.Atoi(count)
	if err != nil || pid != strconv.Itoa(os.Getpid()) {
		n = 0
	}
	fds := make([]int, max(n, 0))
	for i := range fds {
		fds[i] = firstFD + i
	}
	return New(store, log, fds, strings.Split(names, ":")), nil
}

// New makes a set of descriptors, which it owns. There may be fewer names than descriptors.
func New(store Store, log *zap.Logger, fds []int, names []string) *Set {
	s := &Set{store: store, log: log, open: make(map[string]copier)}
	for i, fd := range fds {
		var name string
		if i < len(names) {
			name = names[i]
		}
		unix.CloseOnExec(fd)
		in, err := classify(name, fd)
		if err != nil {
			log.Warn("an inherited descriptor is of no use", zap.String("name", name), zap.Error(err))
			s.discard(in)
			continue
		}
		s.in = append(s.in, in)
	}
	return s
}

func classify(name string, fd int) (inherited, error) {
	in := inherited{name: name, fd: fd}
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return in, fmt.Errorf("not a socket: %w", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return in, err
	}
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		in.addr = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(a.Addr)
		if a.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(a.ZoneId)); err == nil {
				ip = ip.WithZone(i.Name)
			}
		}
		in.addr = netip.AddrPortFrom(ip, uint16(a.Port))
	default:
		return in, errors.New("not a socket of IP")
	}
	listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	switch in.stream = typ == unix.SOCK_STREAM; {
	case in.addr.Port() == 0:
		return in, errors.New("not bound to a port")
	case in.stream && listens == 0:
		return in, errors.New("a TCP socket that does not listen")
	case !in.stream && typ != unix.SOCK_DGRAM:
		return in, errors.New("neither TCP nor UDP")
	}
	return in, nil
}

// discard closes a descriptor here and in the store.
func (s *Set) discard(in inherited) {
	_ = unix.Close(in.fd)
	if s.store != nil && in.name != "" {
		s.tell(func() { s.remove(in.name) })
	}
}

// claim takes the first socket that fits.
func (s *Set) claim(fits func(*inherited) bool) (inherited, bool) {
	i := slices.IndexFunc(s.in, func(in inherited) bool { return fits(&in) })
	if i < 0 {
		return inherited{}, false
	}
	in := s.in[i]
	s.in = slices.Delete(s.in, i, i+1)
	return in, true
}

// Listen returns a TCP listener: the inherited one of that address, or the result of open. The
// store retains the listener for the next process until the listener is closed, or until Detach.
// The unspecified IPv6 address stands for all addresses of both families.
func (s *Set) Listen(at netip.AddrPort, open func() (net.Listener, error)) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.claim(func(in *inherited) bool {
		return in.stream && in.addr.Port() == at.Port() &&
			(in.addr.Addr().Unmap() == at.Addr().Unmap() || in.addr.Addr().IsUnspecified() && at.Addr().IsUnspecified())
	})
	if ok {
		f := os.NewFile(uintptr(in.fd), in.name)
		l, err := net.FileListener(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("inherited socket %s: %w", in.name, err)
		}
		s.log.Info("listening on an inherited socket", zap.Stringer("on", in.addr))
		return s.listener(l, in.name), nil
	}
	l, err := open()
	if errors.Is(err, unix.EADDRINUSE) {
		l, err = s.makeRoom(at, open, err)
	}
	if err != nil {
		return l, err
	}
	k := s.listener(l, label("tcp", l.Addr().String()))
	if t, ok := l.(*net.TCPListener); ok && s.store != nil {
		s.tell(func() { s.keep(k.name, t) })
	}
	return k, nil
}

// Reserve listens on a TCP address that may come to this host later, unless there is an inherited
// socket of that address. Connections wait in the socket until a port claims it by Listen.
func (s *Set) Reserve(at netip.AddrPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.in, func(in inherited) bool {
		return in.stream && in.addr.Port() == at.Port() &&
			(in.addr.Addr().Unmap() == at.Addr().Unmap() || in.addr.Addr().IsUnspecified())
	}) {
		return nil
	}
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		level, option := unix.SOL_IP, unix.IP_FREEBIND
		if at.Addr().Is6() {
			level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
		}
		if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }); e != nil {
			return e
		}
		return err
	}}
	l, err := free.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fd, err := copyOf(f)
	if err != nil {
		return err
	}
	name := label("tcp", at.String())
	s.in = append(s.in, inherited{name: name, fd: fd, addr: at, stream: true})
	if s.store != nil {
		s.tell(func() { s.keep(name, f) })
	}
	return nil
}

// makeRoom closes inherited sockets that are in the way, and calls open again. A socket on all
// addresses is in the way of a socket on one address, and the reverse. This happens if the
// configured addresses have changed with a restart. No other port can claim these sockets: they
// would be in its way too.
func (s *Set) makeRoom(at netip.AddrPort, open func() (net.Listener, error), err error) (net.Listener, error) {
	if s.waits {
		return nil, err // the other process listens on them
	}
	for {
		in, ok := s.claim(func(in *inherited) bool {
			return in.stream && in.addr.Port() == at.Port() && (in.addr.Addr().IsUnspecified() || at.Addr().IsUnspecified()) &&
				kept(in.name)
		})
		if !ok {
			break
		}
		s.log.Info("an inherited socket is in the way of another address and is closed",
			zap.Stringer("on", in.addr), zap.Stringer("for", at))
		// The service manager also has the socket open, until it has handled the request to remove
		// it.
		if e := unix.Shutdown(in.fd, unix.SHUT_RDWR); e != nil {
			s.log.Warn("an inherited socket goes on listening", zap.Stringer("on", in.addr), zap.Error(e))
		}
		s.discard(in)
	}
	l, err := open()
	if i := slices.IndexFunc(s.in, func(in inherited) bool { return in.stream && in.addr.Port() == at.Port() }); i >= 0 &&
		errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("the service manager listens on %v (%s): %w", s.in[i].addr, s.in[i].name, err)
	}
	return l, err
}

// kept reports whether a name is that of a TCP socket that rstored opened and gave to the store.
func kept(name string) bool { return strings.HasPrefix(name, "tcp.") }

// listener is a listener that is known by a name.
func (s *Set) listener(l net.Listener, name string) *listener {
	if t, ok := l.(*net.TCPListener); ok {
		s.open[name] = t.File
	}
	return &listener{Listener: l, s: s, name: name}
}

// tell sends a message to the store, now or when waits ends.
func (s *Set) tell(fn func()) {
	if s.waits {
		s.pending = append(s.pending, fn)
		return
	}
	fn()
}

// keep gives a socket to the store. If that fails, the socket serves nevertheless.
func (s *Set) keep(name string, t syscall.Conn) {
	raw, err := t.SyscallConn()
	if err == nil {
		if e := raw.Control(func(fd uintptr) { err = s.store.StoreFD(name, int(fd)) }); err == nil {
			err = e
		}
	}
	if err != nil {
		s.log.Warn("a socket is not kept over a restart", zap.String("name", name), zap.Error(err))
	}
}

// label makes a name for the store, in which colons would be separators.
func label(parts ...string) string {
	return strings.ReplaceAll(strings.Join(parts, "."), ":", "_")
}

// listener removes itself from the store when it is closed.
type listener struct {
	net.Listener
	s    *Set
	name string
}

// SetDeadline ends an Accept at a time.
func (l *listener) SetDeadline(t time.Time) error {
	d, ok := l.Listener.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return errors.ErrUnsupported
	}
	return d.SetDeadline(t)
}

func (l *listener) Close() error {
	l.s.forget(l.name)
	return l.Listener.Close()
}

func (s *Set) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, name)
	if s.store == nil || s.frozen {
		return
	}
	s.tell(func() { s.remove(name) })
}

func (s *Set) remove(name string) {
	if err := s.store.RemoveFD(name); err != nil {
		s.log.Warn("the service manager cannot be told", zap.Error(err))
	}
}

// Keeps reports whether sockets are kept for the next process.
func (s *Set) Keeps() bool { return s.store != nil }

// Detach ends all changes to the store. The process is about to end, and the next one must find its
// sockets there.
func (s *Set) Detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = true
}

// Sweep closes the inherited sockets that nothing has claimed, and returns their names.
func (s *Set) Sweep() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, in := range s.in {
		kind := "udp "
		if in.stream {
			kind = "tcp "
		}
		out = append(out, kind+in.addr.String())
		s.discard(in)
	}
	s.in = nil
	return out
}
