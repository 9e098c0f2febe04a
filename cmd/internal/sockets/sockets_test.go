package sockets

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/wire"
)

// manager is the descriptor store of a service manager.
type manager map[string]int

func (m manager) StoreFD(name string, fd int) error {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	m[name] = n
	return err
}

func (m manager) RemoveFD(name string) error {
	if fd, ok := m[name]; ok {
		delete(m, name)
		return unix.Close(fd)
	}
	return nil
}

// next is the Set of the process that follows.
func (m manager) next(t *testing.T) *Set {
	t.Helper()
	var fds []int
	names := slices.Sorted(maps.Keys(m))
	for _, name := range names {
		fd, err := unix.FcntlInt(uintptr(m[name]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return New(m, zap.NewNop(), fds, names)
}

func empty(m manager) *Set { return New(m, zap.NewNop(), nil, nil) }

func listen(t *testing.T, at string) func() (net.Listener, error) {
	return func() (net.Listener, error) { return new(net.ListenConfig).Listen(t.Context(), "tcp", at) }
}

// TestListener: who connects while there is no process is served by the next one.
func TestListener(t *testing.T) {
	m := manager{}
	first := empty(m)
	l, err := first.Listen(netip.MustParseAddrPort("127.0.0.9:0"), listen(t, "127.0.0.9:0"))
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	first.Detach()
	l.Close()
	if len(m) != 1 {
		t.Fatalf("the store has %v", m)
	}
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatalf("between two processes: %v", err)
	}
	defer c.Close()

	second := m.next(t)
	l, err = second.Listen(at, func() (net.Listener, error) { t.Fatal("opened although it is there"); return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if s.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("accepted %v, want %v", s.RemoteAddr(), c.LocalAddr())
	}
	s.Close()
	// A port that is closed while the process goes on is not kept.
	l.Close()
	if len(m) != 0 {
		t.Errorf("the store still has %v", m)
	}
	if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", at.String()); err == nil {
		c.Close()
		t.Error("somebody still listens")
	}
}

// TestEverywhere: all addresses are asked for as [::], and may be there as either family's.
func TestEverywhere(t *testing.T) {
	m := manager{}
	l, err := empty(m).Listen(netip.MustParseAddrPort("[::]:0"), listen(t, "0.0.0.0:0"))
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	s := m.next(t)
	if _, err := s.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port),
		func() (net.Listener, error) { return nil, os.ErrExist }); err != nil {
		t.Error(err)
	}
	if got := s.Sweep(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestOverlap: a listener on all addresses that is no longer wanted does not keep one on a single
// address from being opened, nor the other way, though the service manager has it open until it
// comes to remove it.
func TestOverlap(t *testing.T) {
	for _, c := range []struct{ was, is, open string }{
		{"0.0.0.0:0", "127.0.0.8", "127.0.0.8"},
		{"[::]:0", "127.0.0.8", "127.0.0.8"},
		{"127.0.0.8:0", "::", ""},
		{"127.0.0.8:0", "0.0.0.0", "0.0.0.0"},
	} {
		m := &slow{manager: manager{}}
		l, err := New(m, zap.NewNop(), nil, nil).Listen(netip.MustParseAddrPort(c.was), listen(t, c.was))
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).AddrPort().Port()
		at := netip.AddrPortFrom(netip.MustParseAddr(c.is), port)
		open := listen(t, net.JoinHostPort(c.open, strconv.Itoa(int(port))))

		// Another process that goes on listens there: it is not disturbed.
		f, err := l.(*listener).Listener.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		successor := fromFiles(m, zap.NewNop(), []*os.File{f}, []string{label("tcp", l.Addr().String())})
		if _, err := successor.Listen(at, open); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%s beside a process on %s: %v", c.is, c.was, err)
		}
		dial(t, l.Addr().String(), true)
		for _, in := range successor.in {
			_ = unix.Close(in.fd)
		}

		_ = l.(*listener).Listener.Close() // the process ends
		dial(t, l.Addr().String(), true)
		next := m.next(t)
		next.store = m
		n, err := next.Listen(at, open)
		if err != nil {
			t.Errorf("%s after %s: %v", c.is, c.was, err)
			continue
		}
		dial(t, net.JoinHostPort("127.0.0.8", strconv.Itoa(int(port))), true)
		if got := next.Sweep(); len(got) != 0 || len(m.removed) != 1 {
			t.Errorf("swept %v, removed %v", got, m.removed)
		}
		_ = n.Close()
	}
}

// TestOverlapOfOthers: a socket that somebody else has the service manager listen on is theirs to
// close.
func TestOverlapOfOthers(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := copyOf(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	s := New(manager{}, zap.NewNop(), []int{fd}, []string{"rstored.socket"})
	port := l.Addr().(*net.TCPAddr).Port
	where := netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port))
	if _, err := s.Listen(where, listen(t, where.String())); !errors.Is(err, unix.EADDRINUSE) ||
		!strings.Contains(err.Error(), "rstored.socket") {
		t.Errorf("%v", err)
	}
	dial(t, l.Addr().String(), true)
	s.Sweep()
}

// slow is a manager that has not come to what it was told.
type slow struct {
	manager
	removed []string
}

func (m *slow) RemoveFD(name string) error {
	m.removed = append(m.removed, name)
	return nil
}

// dial connects, or not.
func dial(t *testing.T, to string, want bool) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", to)
	if err == nil {
		_ = c.Close()
	}
	if (err == nil) != want {
		t.Errorf("connecting to %s: %v", to, err)
	}
}

// TestSweep: what no port asks for does not stay open, here or in the store.
func TestSweep(t *testing.T) {
	m := manager{}
	s := empty(m)
	l, err := s.Listen(netip.MustParseAddrPort("127.0.0.1:0"), listen(t, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	s.Detach()
	l.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := m.StoreFD("a pipe", int(w.Fd())); err != nil {
		t.Fatal(err)
	}
	w.Close()
	next := m.next(t)
	if got, want := next.Sweep(), []string{"tcp " + l.Addr().String()}; !slices.Equal(got, want) || len(m) != 0 {
		t.Errorf("swept %v, want %v; the store has %v", got, want, m)
	}
}

// TestDevice: datagrams that come between two processes wait for the second.
func TestDevice(t *testing.T) {
	m := manager{}
	first := empty(m)
	open := func(s *Set, addr netip.Addr, shards int) []*udp.Link {
		t.Helper()
		var out []*udp.Link
		for i := range shards {
			l, err := udp.Open(udp.Config{Addr: addr, Shard: i, Shards: shards, Sockets: s})
			if err != nil {
				t.Fatal(err)
			}
			addr = l.LocalAddr()
			out = append(out, l)
		}
		return out
	}
	ls := open(first, netip.Addr{}, 2)
	addr := ls[0].LocalAddr()
	if len(m) != 2 {
		t.Fatalf("the store has %v", m)
	}
	first.Detach()
	for _, l := range ls {
		l.Close()
	}
	c, err := new(net.Dialer).DialContext(t.Context(), "udp", netip.AddrPortFrom(addr, wire.Port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dgram := make([]byte, 32)
	dgram[7] = 3 // the destination QPN, so that it is the second shard's
	if _, err := c.Write(dgram); err != nil {
		t.Fatalf("between two processes: %v", err)
	}

	second := m.next(t)
	ls = open(second, addr, 2)
	rx := link.NewRx(4, 1<<16)
	if _, err := ls[1].Recv(rx, ls[1].Now()+10*rdma.Second); err != nil || len(rx.D) != 1 ||
		len(rx.D[0].Data) != len(dgram) {
		t.Errorf("received %d datagrams, %v; one waited", len(rx.D), err)
	}
	for _, l := range ls {
		l.Close()
	}
	if len(m) != 0 {
		t.Errorf("the store still has %v", m)
	}
}

// TestOtherNumberOfShards: sockets that share an address are used all or none.
func TestOtherNumberOfShards(t *testing.T) {
	m := manager{}
	first := empty(m)
	l, err := udp.Open(udp.Config{Sockets: first})
	if err != nil {
		t.Fatal(err)
	}
	first.Detach()
	l.Close()
	second := m.next(t)
	for i := range 2 {
		l, err := udp.Open(udp.Config{Addr: l.LocalAddr(), Shard: i, Shards: 2, Sockets: second})
		if err != nil {
			t.Fatalf("shard %d: %v", i, err)
		}
		defer l.Close()
	}
	if want := []string{
		shardName(l.LocalAddr(), 0, 2),
		shardName(l.LocalAddr(), 1, 2),
	}; !slices.Equal(slices.Sorted(maps.Keys(m)), want) {
		t.Errorf("the store has %v, want %v", m, want)
	}
}

// TestReserve: a client that connects before the port opens is served then. The address need not be
// on the host yet. The next process has the socket, too.
func TestReserve(t *testing.T) {
	m := manager{}
	s := empty(m)
	l, err := listen(t, "127.0.0.1:0")()
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	_ = l.Close()
	for _, to := range []netip.AddrPort{
		at, at, netip.MustParseAddrPort("192.0.2.7:2049"),
		netip.MustParseAddrPort("[2001:db8::7]:2049"),
	} {
		if err := s.Reserve(to); err != nil {
			t.Fatalf("%v: %v", to, err)
		}
	}
	if len(m) != 3 {
		t.Errorf("the service manager has %v", m)
	}
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	served, err := s.Listen(at, func() (net.Listener, error) { return nil, errors.New("a second socket") })
	if err != nil {
		t.Fatal(err)
	}
	first, err := served.Accept()
	if err != nil || first.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("%v, %v", first, err)
	}
	_ = first.Close()
	if err := served.Close(); err != nil {
		t.Error(err)
	}
	if unused := s.Sweep(); len(unused) != 2 || len(m) != 0 {
		t.Errorf("unused %q, the service manager has %v", unused, m)
	}
}
