package daemon

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/devices/devicestest"
	"github.com/rstored/rstored/cmd/internal/ops"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// startOn starts a daemon on such a host.
func startOn(
	t *testing.T, cfg *config.Config, k *devicestest.Kernel, load func() (*config.Config, error),
) (*Daemon, *control.Dialer, error) {
	t.Helper()
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	if load == nil {
		load = func() (*config.Config, error) { return cfg, nil }
	}
	d, err := start(cfg, load, log, false, nil, k.Opener())
	return d, control.Dial(cfg.Control), err
}

// listed is a port in the list.
func listed(t *testing.T, ctl *control.Dialer, listen string) control.Port {
	t.Helper()
	ports, err := ctl.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(ports, func(p control.Port) bool { return p.Listen == listen })
	if i < 0 {
		t.Fatalf("port %s is not in %+v", listen, ports)
	}
	return ports[i]
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

// readVia reads a file by URL.
func readVia(t *testing.T, url string) ([]byte, error) {
	t.Helper()
	dl := &dial.Dialer{Cred: &rpc.Cred{Flavor: rpc.AuthSys}, GiveUp: 20 * time.Second, Provider: provider.Soft}
	defer func() { _ = dl.Close() }()
	f, err := dl.Open(t.Context(), url)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 1<<20)
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// handleVia is the handle of an export's root.
func handleVia(t *testing.T, transport rpc.Transport, host string) []byte {
	t.Helper()
	dl := &dial.Dialer{Cred: &rpc.Cred{Flavor: rpc.AuthSys}, GiveUp: 20 * time.Second, Version: client.Version3}
	defer func() { _ = dl.Close() }()
	h, err := dl.Client(client.URL{Transport: transport, Host: host}).Mount(t.Context(), "/e")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(h)
}

// metricsText is all metrics.
func metricsText(t *testing.T, d *Daemon) string {
	t.Helper()
	all, err := d.registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range all {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestKernelProviders: what the program has of RDMA is told, and why it cannot be used.
func TestKernelProviders(t *testing.T) {
	k := devicestest.NewKernel()
	d, ctl, err := startOn(t, testConfig(t), k, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	for _, c := range []struct {
		available error
		want      []control.Provider
	}{
		{nil, []control.Provider{{Name: "soft"}, {Name: "verbs"}}},
		{
			errors.New("libibverbs.so.1: no such file"),
			[]control.Provider{{Name: "soft"}, {Name: "verbs", Error: "libibverbs.so.1: no such file"}},
		},
		{verbs.ErrNotBuilt, []control.Provider{{Name: "soft"}}},
	} {
		k.SetAvailable(c.available)
		st, err := ctl.Status(t.Context())
		if err != nil || !slices.Equal(st.Providers, c.want) {
			t.Errorf("%v: %+v, %v", c.available, st.Providers, err)
		}
	}
}

// TestKernelDevice: one export over a device of the kernel, over one in user space, and over TCP at
// once, by the same handles; the device is taken away, and comes back.
func TestKernelDevice(t *testing.T) {
	k := devicestest.NewKernel()
	hard := testAddr()
	k.Add("card0", hard)
	dir := t.TempDir()
	want := bytes.Repeat([]byte("rstored "), 100_000)
	if err := os.WriteFile(filepath.Join(dir, "f"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, dir+"=/e")
	soft := cfg.RDMAListen[0]
	on := "verbs://" + hard + ":20049"
	cfg.RDMAListen = []string{"soft://" + soft, on}
	d, ctl, err := startOn(t, cfg, k, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	ctx := t.Context()
	over := map[string]string{
		"tcp": "nfs+tcp://" + cfg.TCPListen[0], "soft": "nfs+rdma://" + soft,
		"verbs": "nfs+rdma://" + hard,
	}
	read := func(which ...string) {
		t.Helper()
		for _, w := range which {
			if got, err := readVia(t, over[w]+"/e/f"); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("over %s: %d bytes, %v", w, len(got), err)
			}
		}
	}
	read("tcp", "soft", "verbs")
	h := handleVia(t, rpc.TransportTCP, cfg.TCPListen[0])
	for _, host := range []string{soft, hard + ":20049"} {
		if got := handleVia(t, rpc.TransportRDMA, host); !bytes.Equal(got, h) {
			t.Errorf("the handle over %s is %x, and %x over TCP", host, got, h)
		}
	}

	name := "card0/" + hard
	if p := listed(t, ctl, on); p.Error != "" || !slices.Equal(p.Devices, []string{name}) {
		t.Errorf("%+v", p)
	}
	devices, err := ctl.Devices(ctx)
	if err != nil || len(devices) != 2 || !slices.ContainsFunc(devices, func(v control.Device) bool {
		return v.Name == name && v.Provider == "verbs" && v.Kernel == "card0" && v.Speaks == "RoCE v2" && v.PathMTU > 0
	}) {
		t.Errorf("%+v, %v", devices, err)
	}
	c := (&dial.Dialer{
		Cred:     &rpc.Cred{Flavor: rpc.AuthSys},
		Provider: provider.Soft,
	}).Client(client.URL{Transport: rpc.TransportRDMA, Host: hard + ":20049"})
	defer func() { _ = c.Close() }()
	if err := c.RPC().Call(ctx, &rpc.Request{Prog: 100003, Vers: 3}); err != nil {
		t.Fatal(err)
	}
	qps, err := ctl.QPs(ctx)
	if err != nil || !slices.ContainsFunc(qps, func(q control.QP) bool {
		return q.Device == name && q.State == "RTS" && q.Remote != "" && q.Counters != nil
	}) {
		t.Errorf("%+v, %v", qps, err)
	}
	st := d.Stats()
	if st.Devices[name]["Verbs.Wakeups"] != 7 || st.Devices[name]["Verbs.Failed.transport retry counter exceeded"] != 3 ||
		st.Errors["rdma_retries_exceeded"] != 3 {
		t.Errorf("%v, %v", st.Devices[name], st.Errors)
	}
	if err := d.Capture(ctx, control.CaptureSpec{Device: "card0"}, new(bytes.Buffer)); err == nil ||
		!strings.Contains(err.Error(), "tcpdump -i card0") {
		t.Errorf("a capture of a device of the kernel: %v", err)
	}

	for _, m := range []string{
		`rstored_rdma_device_info{device="` + name + `",kernel_device="card0",provider="verbs",speaks="RoCE v2"} 1`,
		`rstored_rdma_device_info{device="` + strings.TrimSuffix(soft, ":20049") +
			`",kernel_device="",provider="soft",speaks=""} 1`,
		`rstored_rdma_completions_failed_total{device="` + name + `",status="transport retry counter exceeded"} 3`,
		`rstored_rdma_device_verbs_wakeups_total{device="` + name + `"} 7`,
	} {
		if all := metricsText(t, d); !strings.Contains(all, m+"\n") {
			t.Errorf("no %s", m)
		}
	}

	for n := range 4 {
		if n == 3 {
			k.Leave("card0")
			becomes(t, "nobody uses the device", func() bool { return k.OpenNow() == 0 })
		}
		k.Remove("card0")
		becomes(t, "the port waits", func() bool { return len(listed(t, ctl, on).Waiting) == 1 })
		if p := listed(t, ctl, on); len(p.Addresses) != 0 || !strings.Contains(p.Error, "waits for its RDMA device") {
			t.Errorf("%+v", p)
		}
		if !slices.ContainsFunc(d.problems(),
			func(s string) bool { return strings.Contains(s, "waits for its RDMA device") }) {
			t.Errorf("%q", d.problems())
		}
		if !slices.ContainsFunc(d.ready(ctx),
			func(c ops.Check) bool { return strings.Contains(c.Name, on) && c.Err != nil }) {
			t.Error("it is ready without the device")
		}
		read("tcp", "soft")
		if err := ctl.Reload(ctx); err != nil {
			t.Errorf("a reload without the device: %v", err)
		}
		k.Add("card0", hard)
		becomes(t, "the port is served", func() bool {
			p := listed(t, ctl, on)
			return len(p.Addresses) == 1 && p.Error == "" && len(p.Waiting) == 0
		})
		read("tcp", "soft", "verbs")
		// The client that had a connection comes again.
		if err := c.RPC().Call(ctx, &rpc.Request{Prog: 100003, Vers: 3}); err != nil {
			t.Error(err)
		}
	}
	becomes(t, "one device is open", func() bool { return k.OpenNow() == 1 })
	if n := d.Stats().Errors["rdma_retries_exceeded"]; n < 3*5 {
		t.Errorf("the counts of devices that are gone are lost: %d", n)
	}
}

// TestKernelDeviceRemoved: a port that is removed while its device is away does not come back with
// it.
func TestKernelDeviceRemoved(t *testing.T) {
	k := devicestest.NewKernel()
	hard := testAddr()
	k.Add("card0", hard)
	cfg := testConfig(t, t.TempDir()+"=/e")
	d, ctl, err := startOn(t, cfg, k, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	ctx := t.Context()
	byName := control.PortSpec{Transport: control.TransportRDMA, Listen: "verbs://card0:20049"}
	byAddr := control.PortSpec{Transport: control.TransportRDMA, Listen: "verbs://" + hard + ":20050"}
	if _, err := ctl.AddPort(ctx, control.PortSpec{
		Transport: control.TransportRDMA,
		Listen:    "verbs://card1:20049",
	}); err == nil || !strings.Contains(err.Error(), "none is named card1") {
		t.Errorf("a device that is not there: %v", err)
	}
	for _, p := range []control.PortSpec{byName, byAddr} {
		if got, err := ctl.AddPort(ctx, p); err != nil || len(got.Addresses) != 1 ||
			!strings.HasPrefix(got.Addresses[0], hard) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if n := k.OpenNow(); n != 1 {
		t.Errorf("%d devices are open for two ports of one address", n)
	}
	k.Remove("card0")
	for _, p := range []control.PortSpec{byName, byAddr} {
		becomes(t, "the port waits", func() bool { return len(listed(t, ctl, p.Listen).Waiting) == 1 })
		if _, err := ctl.AddPort(ctx, p); err == nil {
			t.Errorf("%s was added twice", p.Listen)
		}
	}
	if err := ctl.RemovePort(ctx, byAddr); err != nil {
		t.Error(err)
	}
	// The device of that name has another address now.
	other := testAddr()
	k.Add("card0", other)
	becomes(t, "the port is served", func() bool { return len(listed(t, ctl, byName.Listen).Addresses) == 1 })
	if p := listed(t, ctl, byName.Listen); !strings.HasPrefix(p.Addresses[0], other) {
		t.Errorf("%+v", p)
	}
	k.Remove("card0")
	becomes(t, "the port waits", func() bool { return len(listed(t, ctl, byName.Listen).Waiting) == 1 })
	if err := ctl.RemovePort(ctx, byName); err != nil {
		t.Error(err)
	}
	k.Add("card0", other)
	was := k.Opens()
	if _, err := ctl.Ports(ctx); err != nil { // whoever was about to try has tried
		t.Error(err)
	}
	if k.Opens() != was || k.OpenNow() != 0 {
		t.Errorf("a port that was removed is opened again: %d devices are open", k.OpenNow())
	}
}
