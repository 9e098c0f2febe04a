package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/devices/devicestest"
	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestKernelDeviceMissing: at the start a port of the configuration must have its device; one that
// was added at run time waits for it.
func TestKernelDeviceMissing(t *testing.T) {
	k := devicestest.NewKernel()
	hard := testAddr()
	k.Add("card0", hard)
	cfg := testConfig(t, t.TempDir()+"=/e")
	d, ctl, err := startOn(t, cfg, k, nil)
	if err != nil {
		t.Fatal(err)
	}
	added := control.PortSpec{Transport: control.TransportRDMA, Listen: "verbs://card0:20049"}
	if _, err := ctl.AddPort(t.Context(), added); err != nil {
		t.Fatal(err)
	}
	stopDaemon(t, d)
	k.Remove("card0")
	if d, ctl, err = startOn(t, cfg, k, nil); err != nil {
		t.Fatal(err)
	}
	if p := listed(t, ctl, added.Listen); len(p.Waiting) != 1 {
		t.Errorf("%+v", p)
	}
	k.Add("card0", hard)
	becomes(t, "the port is served", func() bool { return len(listed(t, ctl, added.Listen).Addresses) == 1 })
	stopDaemon(t, d)

	k.Remove("card0")
	other := testConfig(t, t.TempDir()+"=/e")
	for listen, want := range map[string]string{
		"verbs://" + hard + ":20049": "none has the address", "verbs://card0:20049": "none is named card0",
		"verbs://:20049": "no RDMA device that is up",
	} {
		other.RDMAListen = []string{listen}
		d, ctl, err := startOn(t, other, k, nil) // TCP is served
		if err != nil {
			t.Fatal(err)
		}
		if p := listed(t, ctl, listen); !strings.Contains(p.Error, want) {
			t.Errorf("%s: %+v", listen, p)
		}
		k.Add("card0", hard)
		becomes(t, listen+" is served", func() bool { return len(listed(t, ctl, listen).Addresses) == 1 })
		stopDaemon(t, d)
		k.Remove("card0")
	}
	other.TCPListen = nil
	k.SetAvailable(verbs.ErrNotBuilt)
	k.Add("card0", hard)
	if _, _, err := startOn(t, other, k, nil); !errors.Is(err, verbs.ErrNotBuilt) {
		t.Errorf("without the provider: %v", err)
	}
}

// TestProviderChosen: what the setting says, and what auto takes; a reload changes it.
func TestProviderChosen(t *testing.T) {
	k := devicestest.NewKernel()
	cfg := testConfig(t, t.TempDir()+"=/e")
	at := cfg.RDMAListen[0]
	k.Add("card0", netip.MustParseAddrPort(at).Addr().String())
	next := *cfg
	d, ctl, err := startOn(t, cfg, k, func() (*config.Config, error) { c := next; return &c, c.Validate() })
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	for _, c := range []struct {
		setting   string
		available error
		want      string
	}{
		{"auto", nil, "verbs"},
		{"soft", nil, "soft"},
		{"auto", verbs.ErrNotBuilt, "soft"},
		{"verbs", nil, "verbs"},
		{"auto", nil, "verbs"},
	} {
		k.SetAvailable(c.available)
		next.RDMAProvider = c.setting
		if err := ctl.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		devices, err := ctl.Devices(t.Context())
		if err != nil || len(devices) != 1 || devices[0].Provider != c.want {
			t.Errorf("%+v: %+v, %v", c, devices, err)
		}
		if p := listed(t, ctl, at); len(p.Addresses) != 1 || p.Addresses[0] != at {
			t.Errorf("%+v: %+v", c, p)
		}
	}
}

// TestKernelDeviceLimits: no more connections than the device has queue pairs, and no more memory
// than it takes.
func TestKernelDeviceLimits(t *testing.T) {
	k := devicestest.NewKernel()
	hard := testAddr()
	k.Add("card0", hard)
	cfg := testConfig(t, t.TempDir()+"=/e")
	cfg.RDMAListen = []string{"verbs://card0:20049"}
	d, _, err := startOn(t, cfg, k, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	if m := d.Stats().Memory; m.Limit != 32<<20 {
		t.Errorf("%+v", m)
	}
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dev.Close() }()
	at := netip.AddrPortFrom(netip.MustParseAddr(hard), config.RDMAPort)
	for n := range devicestest.QPMax + 1 {
		c, err := rpcrdma.Dial(t.Context(), dev, at, rpcrdma.ClientConfig{})
		if (err == nil) != (n < devicestest.QPMax) {
			t.Errorf("connection %d: %v", n, err)
		}
		if err == nil {
			defer func() { _ = c.Close() }()
		}
	}
	if n := d.Stats().Refused["connections"]; n != 1 {
		t.Errorf("%v", d.Stats().Refused)
	}
}

// successorConfig and successorDevice are where the test program, as an successor, finds its
// configuration, and the kernel's device.
const (
	successorConfig = "RSTORED_TEST_SUCCESSOR_CONFIG"
	successorDevice = "RSTORED_TEST_SUCCESSOR_DEVICE"
)

// serveAsSuccessor is a process that takes over well.
func serveAsSuccessor(conn *handover.Conn) error {
	b, err := os.ReadFile(os.Getenv(successorConfig))
	if err != nil {
		return err
	}
	cfg := config.Default()
	if err := yaml.Unmarshal(b, cfg); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	k := devicestest.NewKernel()
	name, addr, _ := strings.Cut(os.Getenv(successorDevice), "=")
	k.Add(name, addr)
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		return err
	}
	from, err := prepare(conn, cfg)
	if err != nil {
		return err
	}
	d, err := start(cfg, func() (*config.Config, error) { return cfg, nil }, log, false, from, k.Opener())
	if err != nil {
		return err
	}
	sig := hangups()
	defer signal.Stop(sig)
	return d.wait(context.Background(), sig)
}

// TestUpgradeKernelDevice: connections on a device of the kernel end in an upgrade, as the kernel
// hands them to nobody; their clients connect again, and find what they had open.
func TestUpgradeKernelDevice(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	k := devicestest.NewKernel()
	hard := testAddr()
	k.Add("card0", hard)
	cfg := testConfig(t, t.TempDir()+"=/e(rw,no_root_squash)")
	on := "verbs://card0:20049"
	cfg.RDMAListen = append(cfg.RDMAListen, on)
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	y, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rstored.yaml")
	if err := os.WriteFile(file, y, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(successorConfig, file)
	t.Setenv(successorDevice, "card0="+hard)
	t.Setenv(conduct, "serve as rstored")
	d, ctl, err := startOn(t, cfg, k, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	dl := &dial.Dialer{
		Cred: &rpc.Cred{Flavor: rpc.AuthSys}, GiveUp: 20 * time.Second, Provider: provider.Soft,
		Version: client.Version42,
	}
	defer func() { _ = dl.Close() }()
	var files []*client.File
	for i, host := range []string{cfg.RDMAListen[0], hard} {
		u, err := client.ParseURL("nfs+rdma://" + host)
		if err != nil {
			t.Fatal(err)
		}
		f, err := dl.Client(u).CreateFile(ctx, fmt.Sprintf("/e/f%d", i), 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("before"), 0); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	u, err := ctl.Upgrade(ctx, exe)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		p, err := os.FindProcess(u.PID)
		if err == nil {
			err = p.Kill()
		}
		if err != nil {
			t.Error(err)
		}
	}()
	if u.RDMA != 1 || u.Dropped != 1 {
		t.Errorf("%+v", u)
	}
	if !d.isReplaced() || k.OpenNow() != 0 {
		t.Errorf("the old process has %d devices of the kernel", k.OpenNow())
	}
	// The old process leaves the control interface to the new one, as it does when it ends.
	if err := d.exitReplaced(); err != nil {
		t.Error(err)
	}
	becomes(t, "the new process has the port",
		func() bool { p := listed(t, ctl, on); return len(p.Addresses) == 1 && p.Error == "" })
	for i, f := range files {
		got := make([]byte, 6)
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != "before" {
			t.Errorf("file %d: %q, %v", i, got, err)
		}
		if _, err := f.WriteAt([]byte("after "), 0); err != nil {
			t.Errorf("file %d: %v", i, err)
		}
	}
	if g := d.Grace(); g.On {
		t.Error("there is a grace period")
	}
}
