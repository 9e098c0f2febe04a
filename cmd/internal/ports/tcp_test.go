package ports

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// TestOpsAfterTakeover: a process that takes over answers no health checks before it serves.
func TestOpsAfterTakeover(t *testing.T) {
	serving, stopped := false, false
	s := &Set{Config: Config{
		From: new(upgrade.Predecessor), Sockets: sockets.New(nil, zap.NewNop(), nil, nil),
		Ops: func(l net.Listener) func(context.Context) error {
			serving = true
			return func(context.Context) error { stopped = true; return l.Close() }
		},
	}}
	e, err := s.openIP(control.TransportOps, config.Listen{Addr: netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	if serving || !e.addr.IsValid() {
		t.Errorf("at %v, serving %v", e.addr, serving)
	}
	s.From.Begin()
	if err := e.stop(t.Context()); err != nil || !serving || !stopped {
		t.Errorf("serving %v, stopped %v, %v", serving, stopped, err)
	}
}

// TestIPv4Alone: 0.0.0.0 is every IPv4 address, and no IPv6 address.
func TestIPv4Alone(t *testing.T) {
	for in, sixToo := range map[string]bool{"0.0.0.0": false, "": true, "[::]": true} {
		free, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(free.Addr().String())
		_ = free.Close()
		at, err := config.ParseListen(in + ":" + port)
		if err != nil {
			t.Fatal(err)
		}
		s := &Set{Config: Config{
			Sockets: sockets.New(nil, zap.NewNop(), nil, nil),
			Ops: func(l net.Listener) func(context.Context) error {
				return func(context.Context) error { return l.Close() }
			},
		}}
		e, err := s.openIP(control.TransportOps, at)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{"127.0.0.1", "::1"} {
			c, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if err == nil {
				_ = c.Close()
			}
			if want := host == "127.0.0.1" || sixToo; want != (err == nil) {
				t.Errorf("%q, at %s: %v", in, host, err)
			}
		}
		_ = e.stop(t.Context())
	}
}
