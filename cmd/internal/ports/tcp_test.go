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
	e, err := s.openTCP(control.TransportOps, config.Listen{Addr: netip.MustParseAddr("127.0.0.1")})
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
