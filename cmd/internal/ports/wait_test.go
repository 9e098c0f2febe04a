package ports

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/devices/devicestest"
	"github.com/rstored/rstored/cmd/internal/postmortem"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// newSet makes a set of ports on a host whose kernel has RDMA devices.
func newSet(t *testing.T, k *devicestest.Kernel) *Set {
	t.Helper()
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	st, err := state.Open(context.Background(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg, all := config.Default(), new(counters.Transports)
	settings := func() *config.Config { return cfg }
	socks := sockets.New(nil, zap.NewNop(), nil, nil)
	srv := rpc.NewServer(rpc.ServerConfig{Workers: 1})
	s := New(Config{
		Settings: settings, State: st, Sockets: socks, Counters: all, Log: log, RPC: srv,
		Limiter: rpc.NewConnLimiter(rpc.ConnLimits{}),
		Devices: devices.New(devices.Config{
			Opener: k.Opener(), Settings: settings, State: st, Sockets: socks, Counters: all, Log: log,
			Failures: new(postmortem.Log),
		}),
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s.FreeMemory()
		srv.Close()
		_ = st.Close()
	})
	return s
}

// becomes waits until something is so.
func becomes(t *testing.T, what string, so func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not so after 30 s: %s", what)
		}
	}
}

// TestFrozen: while an upgrade freezes the ports, the removal of a device is not noticed, and a
// port that waits for its device is not opened. Both happen after the upgrade has failed.
func TestFrozen(t *testing.T) {
	k := devicestest.NewKernel()
	addr := fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	k.Add("card0", addr)
	s := newSet(t, k)
	spec := control.PortSpec{Transport: control.TransportRDMA, Listen: "verbs://card0:20049"}
	if p, err := s.Add(spec); err != nil || len(p.Addresses) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	s.Started()
	open := func() bool { p := s.List()[0]; return len(p.Addresses) == 1 && len(p.Waiting) == 0 && p.Error == "" }
	waits := func() bool {
		p := s.List()[0]
		return len(p.Addresses) == 0 && len(p.Waiting) == 1 && strings.Contains(p.Error, "waits for its RDMA device")
	}
	freeze := func() (thaw func()) {
		t.Helper()
		undo, err := s.Freeze(upgrade.Intake)
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := undo(); err != nil {
				t.Error(err)
			}
		}
	}

	thaw := freeze()
	k.Remove("card0")
	time.Sleep(20 * time.Millisecond)
	if !open() {
		t.Errorf("a frozen set has noticed the removal: %+v", s.List())
	}
	thaw()
	becomes(t, "the port waits", waits)

	thaw = freeze()
	before := k.Opens()
	k.Add("card0", addr)
	time.Sleep(10 * retryFirst)
	if !waits() || k.Opens() != before {
		t.Errorf("a frozen set has opened a device: %+v", s.List())
	}
	thaw()
	becomes(t, "the port is served", open)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, l := range s.Devices.Ping(ctx) {
		if !l.OK {
			t.Errorf("%+v", l)
		}
	}
}

// TestCloseKernel: an upgrade closes the ports on devices of the kernel, and no others.
func TestCloseKernel(t *testing.T) {
	k := devicestest.NewKernel()
	hard, soft := "127.78.1.1", "127.78.1.2"
	k.Add("card0", hard)
	s := newSet(t, k)
	for _, listen := range []string{"verbs://card0:20049", "soft://" + soft + ":20049"} {
		if _, err := s.Add(control.PortSpec{Transport: control.TransportRDMA, Listen: listen}); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.CloseKernel(); n != 0 || k.OpenNow() != 0 || len(s.Devices.Names()) != 1 {
		t.Errorf("%d connections, %d devices of the kernel open, devices %v", n, k.OpenNow(), s.Devices.Names())
	}
}
