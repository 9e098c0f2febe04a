package devices_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
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
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/verbs"
)

// newSet makes a set of devices of a host, with a configuration that the test may change.
func newSet(t *testing.T, k *devicestest.Kernel) (*devices.Set, *config.Config) {
	t.Helper()
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	st, err := state.Open(context.Background(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	cfg := config.Default()
	return devices.New(devices.Config{
		Opener: k.Opener(), Settings: func() *config.Config { return cfg }, State: st, Log: log,
		Sockets: sockets.New(nil, zap.NewNop(), nil, nil), Failures: new(postmortem.Log),
		Counters: new(counters.Transports),
	}), cfg
}

// acquire takes a share of a device.
func acquire(t *testing.T, s *devices.Set, kind provider.Kind, addr netip.Addr, name string) *devices.Device {
	t.Helper()
	v, err := s.Acquire(provider.Choice{Kind: kind, Addr: addr, Device: name})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func release(t *testing.T, v *devices.Device) {
	t.Helper()
	if err := v.Release(); err != nil {
		t.Error(err)
	}
}

// TestShares: ports of the same address share a device, which the last one closes, and the list has
// the devices by address.
func TestShares(t *testing.T) {
	k := devicestest.NewKernel()
	hard, soft := netip.MustParseAddr("127.91.0.2"), netip.MustParseAddr("127.91.0.1")
	k.Add("card0", hard.String())
	s, _ := newSet(t, k)
	a := acquire(t, s, provider.Verbs, hard, "card0")
	b := acquire(t, s, provider.Soft, soft, "")
	if again := acquire(t, s, provider.Verbs, hard, "card0"); again != a || k.Opens() != 1 {
		t.Errorf("%p and %p, opened %d times", a, again, k.Opens())
	}
	if got := s.Names(); !slices.Equal(got, []string{"127.91.0.1", "card0/127.91.0.2"}) {
		t.Errorf("%q", got)
	}
	err := s.Capture(t.Context(), control.CaptureSpec{Device: "card0"}, new(bytes.Buffer))
	if err == nil || !strings.Contains(err.Error(), "tcpdump") {
		t.Errorf("a capture of a device of the kernel: %v", err)
	}
	err = s.Capture(t.Context(), control.CaptureSpec{Device: "card1"}, new(bytes.Buffer))
	if err == nil || !strings.Contains(err.Error(), "127.91.0.1 card0/127.91.0.2") {
		t.Errorf("a capture of a device that there is not: %v", err)
	}
	release(t, a)
	if k.OpenNow() != 1 {
		t.Error("a device with a share was closed")
	}
	release(t, a)
	release(t, b)
	if k.OpenNow() != 0 || len(s.List()) != 0 {
		t.Errorf("%d open, %v", k.OpenNow(), s.Names())
	}
}

// TestRemoval: OnRemoval is called again until it returns true. A device that comes back is another
// one.
func TestRemoval(t *testing.T) {
	k := devicestest.NewKernel()
	addr := netip.MustParseAddr("127.91.0.3")
	k.Add("card0", addr.String())
	s, _ := newSet(t, k)
	calls := make(chan *devices.Device)
	answers := make(chan bool)
	s.OnRemoval = func(v *devices.Device) bool { calls <- v; return <-answers }
	old := acquire(t, s, provider.Verbs, addr, "card0")
	k.Remove("card0")
	for _, done := range []bool{false, false, true} {
		if v := <-calls; v != old {
			t.Errorf("the removal of %v", v)
		}
		answers <- done
	}
	select {
	case <-calls:
		t.Error("OnRemoval was called again after it had returned true")
	case <-time.After(1200 * time.Millisecond):
	}
	s.Forget(old)
	if len(s.List()) != 0 {
		t.Errorf("a device that was removed is listed: %v", s.Names())
	}
	release(t, old)
	k.Add("card0", addr.String())
	next := acquire(t, s, provider.Verbs, addr, "card0")
	if next == old || !slices.Equal(s.List(), []*devices.Device{next}) {
		t.Errorf("%v", s.Names())
	}
	release(t, next)
}

// TestProviders: the list has the providers that the program has, and why one cannot be used.
func TestProviders(t *testing.T) {
	k := devicestest.NewKernel()
	s, _ := newSet(t, k)
	for _, c := range []struct {
		available error
		want      []control.Provider
	}{
		{nil, []control.Provider{{Name: "soft"}, {Name: "verbs"}}},
		{errors.New("no such file"), []control.Provider{{Name: "soft"}, {Name: "verbs", Error: "no such file"}}},
		{verbs.ErrNotBuilt, []control.Provider{{Name: "soft"}}},
	} {
		k.SetAvailable(c.available)
		if got := s.Providers(); !slices.Equal(got, c.want) {
			t.Errorf("%v: %+v", c.available, got)
		}
	}
}

// TestPKeys: the configuration's P_Keys, changed at run time, reach the open devices; a device is
// in one partition at least, and in each with one membership.
func TestPKeys(t *testing.T) {
	s, cfg := newSet(t, devicestest.NewKernel())
	cfg.PKeys = []string{"0xffff", "0x8001"}
	v := acquire(t, s, provider.Soft, netip.MustParseAddr("127.91.0.4"), "")
	defer release(t, v)
	for _, c := range []struct {
		change func(string) error
		key    string
		ok     bool
		want   []uint16
	}{
		{s.AddPKey, "0x8002", true, []uint16{0xffff, 0x8001, 0x8002}},
		{s.AddPKey, "0x0002", false, []uint16{0xffff, 0x8001, 0x8002}},
		{s.AddPKey, "no key", false, []uint16{0xffff, 0x8001, 0x8002}},
		{s.RemovePKey, "0x0001", false, []uint16{0xffff, 0x8001, 0x8002}},
		{s.RemovePKey, "0x8001", true, []uint16{0xffff, 0x8002}},
		{s.RemovePKey, "0xffff", true, []uint16{0x8002}},
		{s.RemovePKey, "0x8002", false, []uint16{0x8002}},
		{s.AddPKey, "0x8001", true, []uint16{0x8001, 0x8002}},
	} {
		if err := c.change(c.key); (err == nil) != c.ok || !slices.Equal(v.Soft.PKeys(), c.want) {
			t.Errorf("%s: %v, %#x; want %#x", c.key, err, v.Soft.PKeys(), c.want)
		}
	}
	for i, want := range []control.PKey{
		{PKey: "0x8001", Membership: "full", Origin: control.OriginConfig},
		{PKey: "0x8002", Membership: "full", Origin: control.OriginRuntime},
	} {
		if got := s.PKeys()[i]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
