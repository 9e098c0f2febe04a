package doctor

import (
	"bytes"
	"context"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// files are those of a host, by path; a value that begins with "->" is a link.
type files map[string]string

// Rows of /proc/net, whose addresses are in the order of a little-endian host.
const (
	udpHead = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref " +
		"pointer drops\n"
	udpOfAddr = udpHead + "  9: 0100000A:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 " +
		"4711 2 0 0\n"
	udpOfAll = udpHead + "  9: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 " +
		"4712 2 0 0\n"
	tcp111 = udpHead + "  9: 00000000:006F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 " +
		"4713 2 0 0\n"
)

var (
	serverAddr = netip.MustParseAddr("10.0.0.1")
	clientAddr = netip.MustParseAddr("10.0.0.9")
)

func host(t *testing.T, sets ...files) *Host {
	t.Helper()
	root := t.TempDir()
	all := files{
		"sys/class/net/eth0/mtu": "1500\n", "proc/sys/kernel/osrelease": "6.12.0\n",
		"proc/sys/net/core/rmem_max": "67108864\n",
	}
	for _, s := range sets {
		maps.Copy(all, s)
	}
	for name, text := range all {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(to, name)
		} else {
			err = os.WriteFile(name, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &Host{
		Root:       root,
		Interfaces: func() ([]Address, error) { return []Address{{"eth0", serverAddr}, {"eth0", clientAddr}}, nil },
		Route:      func(netip.Addr) (netip.Addr, int, error) { return clientAddr, 1500, nil },
	}
}

// daemon is a server that is well, unless a test changes it.
type daemon struct {
	cluster control.ClusterHealth
	err     error
	ports   []control.Port
	exports []control.Export
	devices []control.Device
	stats   control.Stats
	dead    []control.PostMortem
	denied  []control.Denial
	// providers are those of RDMA.
	providers []control.Provider
	drift     control.Drift
}

func well() *daemon {
	port := func(transport, at string) control.Port {
		return control.Port{PortSpec: control.PortSpec{Transport: transport, Listen: at}, Addresses: []string{at}}
	}
	return &daemon{
		ports: []control.Port{port("rdma", "10.0.0.1:20049"), port("tcp", "10.0.0.1:2049")},
		exports: []control.Export{{Export: config.Export{
			Path: "/srv/data", Pseudo: "/data", Type: config.TypePosix, Clients: []config.Client{{CIDR: "10.0.0.0/8"}},
		}}},
		devices: []control.Device{{Address: "10.0.0.1", InterfaceMTU: 1500, PathMTU: 1024, Sockets: 1}},
		stats:   control.Stats{Devices: map[string]map[string]uint64{"10.0.0.1": {"Link.RcvBufBytes": 64 << 20}}},
	}
}

// onKernel has it serve on a device of the kernel.
func onKernel(d *daemon) {
	d.devices[0] = control.Device{
		Name: "rxe0/10.0.0.1", Address: "10.0.0.1", Provider: "verbs", Kernel: "rxe0", Port: 1,
		PathMTU: 1024, Sockets: 1,
	}
	d.stats.Devices = map[string]map[string]uint64{"rxe0/10.0.0.1": {"Wakeups": 1}}
}

func (d *daemon) Status(context.Context) (control.Status, error) {
	return control.Status{State: control.StateRunning, Version: "v1", PID: 42, Providers: d.providers}, d.err
}

func (d *daemon) Exports(context.Context) ([]control.Export, error) { return d.exports, nil }

func (d *daemon) Ports(context.Context) ([]control.Port, error) { return d.ports, nil }

func (d *daemon) Devices(context.Context) ([]control.Device, error) { return d.devices, nil }

func (d *daemon) Stats(context.Context) (control.Stats, error) { return d.stats, nil }

func (d *daemon) PostMortems(context.Context) ([]control.PostMortem, error) { return d.dead, nil }

func (d *daemon) Denials(context.Context) ([]control.Denial, error) { return d.denied, nil }

func (d *daemon) ClusterHealth(context.Context) (control.ClusterHealth, error) { return d.cluster, nil }

func (d *daemon) Drift(context.Context) (control.Drift, error) { return d.drift, nil }

var rxe = files{
	"sys/class/infiniband/rxe0/parent":                    "eth0\n",
	"sys/class/infiniband/rxe0/ports/1/state":             "4: ACTIVE\n",
	"sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "eth0\n",
	"proc/modules": "rdma_rxe 200704 0 - Live 0x0\nrpcrdma 1 0 - Live 0x0\n",
}

// check looks for a finding by level, check and parts of its line.
func check(t *testing.T, r Report, l Level, name string, parts ...string) {
	t.Helper()
	var b bytes.Buffer
	r.Print(&b)
	for _, f := range r {
		var one bytes.Buffer
		Report{f}.Print(&one)
		if f.Level == l && f.Check == name &&
			!slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(one.String(), p) }) {
			return
		}
	}
	t.Errorf("no %s of %s with %q:\n%s", l, name, parts, b.String())
}
