package doctor

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
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
		for k, v := range s {
			all[k] = v
		}
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

func (d *daemon) Exports(context.Context) ([]control.Export, error)         { return d.exports, nil }
func (d *daemon) Ports(context.Context) ([]control.Port, error)             { return d.ports, nil }
func (d *daemon) Devices(context.Context) ([]control.Device, error)         { return d.devices, nil }
func (d *daemon) Stats(context.Context) (control.Stats, error)              { return d.stats, nil }
func (d *daemon) PostMortems(context.Context) ([]control.PostMortem, error) { return d.dead, nil }
func (d *daemon) Denials(context.Context) ([]control.Denial, error)         { return d.denied, nil }
func (d *daemon) Drift(context.Context) (control.Drift, error)              { return d.drift, nil }

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

// TestServer: each thing that can be wrong on a server.
func TestServer(t *testing.T) {
	ours := files{
		"srv/data/x": "", "proc/net/udp": udpOfAddr,
		"proc/42/comm": "rstored\n", "proc/42/fd/7": "->socket:[4711]",
	}
	for _, tc := range []struct {
		name  string
		files files
		spoil func(*daemon)
		level Level
		check string
		parts []string
	}{
		{"well", nil, nil, OK, "daemon", []string{"rstored v1 is running, pid 42"}},
		{"well", nil, nil, OK, "port", []string{"rdma 10.0.0.1:20049 listens"}},
		{
			"well", nil, nil, OK, "device",
			[]string{"interface eth0, MTU 1500, path MTU up to 1024", "ip link set dev eth0 mtu 4200"},
		},
		{"well", nil, nil, OK, "udp-4791", []string{"10.0.0.1 is rstored's"}},
		{"well", nil, nil, OK, "receive-buffer", nil},
		{"well", nil, nil, OK, "export", []string{"/data"}},
		{"well", nil, nil, OK, "post-mortem", nil},
		{"well", nil, nil, OK, "portmap", []string{"is free"}},
		{"well", nil, nil, OK, "firewall", []string{"no packet filter"}},
		{
			"not running", nil, func(d *daemon) { d.err = errors.New("no rstored answers at x") }, Fail, "daemon",
			[]string{"no rstored answers", "-> start it", "--control"},
		},
		{
			"not running, small buffers",
			files{"proc/sys/net/core/rmem_max": "212992\n"},
			func(d *daemon) { d.err = errors.New("gone") }, Warn, "receive-buffer",
			[]string{"rmem_max is 212992", "sysctl -w net.core.rmem_max=67108864"},
		},
		{"no RDMA", nil, func(d *daemon) { d.ports = d.ports[1:] }, Fail, "port", []string{"rstorectl port add rdma"}},
		{"no TCP", nil, func(d *daemon) { d.ports = d.ports[:1] }, Warn, "port", []string{"rstorectl port add tcp"}},
		{
			"a port that failed", nil, func(d *daemon) { d.ports[1].Addresses, d.ports[1].Error = nil, "in use" }, Fail, "port",
			[]string{"in use", "rstorectl port remove tcp 10.0.0.1:2049"},
		},
		{
			"a port that failed in part", nil, func(d *daemon) { d.ports[1].Error = "in use" }, Warn, "port",
			[]string{"in use"},
		},
		{
			"rpcbind",
			files{"proc/net/tcp": tcp111, "proc/5/comm": "rpcbind\n", "proc/5/fd/3": "->socket:[4713]"},
			nil,
			Warn, "portmap",
			[]string{"held by rpcbind (pid 5)", "vers=3,nolock,mountproto=tcp,mountport=2049"},
		},
		{"somebody's portmap", files{"proc/net/tcp": tcp111}, nil, Warn, "portmap", []string{"another user's process"}},
		{"our portmap", files{"proc/net/tcp": tcp111, "proc/42/fd/8": "->socket:[4713]"}, func(d *daemon) {
			d.ports = append(d.ports, control.Port{
				PortSpec:  control.PortSpec{Transport: "portmap", Listen: ":111"},
				Addresses: []string{"[::]:111"},
			})
		}, OK, "port", []string{"portmap :111 listens"}},
		{
			"jumbo",
			files{"sys/class/net/eth0/mtu": "9000"},
			func(d *daemon) { d.devices[0].InterfaceMTU, d.devices[0].PathMTU = 9000, 4096 }, OK, "device",
			[]string{"path MTU up to 4096"},
		},
		{
			"changed MTU",
			files{"sys/class/net/eth0/mtu": "9000"},
			nil, Warn, "device",
			[]string{"is 9000 now and was 1500", "restart rstored"},
		},
		{
			"an address that is gone", nil, func(d *daemon) { d.devices[0].Address = "10.0.0.2" }, Fail, "device",
			[]string{"no interface has the address"},
		},
		{
			"rxe",
			files{
				"proc/net/udp": udpOfAll, "sys/class/infiniband/rxe0/parent": "eth0\n",
				"sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE\n",
			},
			nil, Warn, "udp-4791",
			[]string{"rdma_rxe", "rdma link delete"},
		},
		{
			"a device of the kernel",
			files{
				"sys/class/infiniband/rxe0/parent":        "eth0\n",
				"sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE\n",
			},
			onKernel, OK, "device",
			[]string{"RDMA device rxe0/10.0.0.1", "rdma_rxe"},
		},
		{
			"a device of the kernel that is down",
			files{"sys/class/infiniband/rxe0/parent": "eth0\n", "sys/class/infiniband/rxe0/ports/1/state": "1: DOWN\n"},
			onKernel, Warn, "device",
			[]string{"is DOWN"},
		},
		{
			"a device that the kernel has no more", nil, onKernel, Fail, "device",
			[]string{"rxe0 no more", "rstorectl device list"},
		},
		{"a port that waits for its device", nil, func(d *daemon) {
			d.ports[0].Addresses, d.ports[0].Waiting, d.ports[0].Error = nil, []string{"10.0.0.1:20049"},
				"10.0.0.1:20049 waits for its RDMA device"
		}, Fail, "port", []string{"waits for its RDMA device", "rstorectl device list"}},
		{
			"rxe that we use",
			files{
				"proc/net/udp": udpOfAll, "sys/class/infiniband/rxe0/parent": "eth0\n",
				"sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE\n",
			},
			onKernel, OK, "udp-4791",
			[]string{"whose devices rstored uses"},
		},
		{
			"another rstored",
			files{"proc/net/udp": udpOfAll, "proc/6/comm": "rstored\n", "proc/6/fd/3": "->socket:[4712]"},
			nil,
			Warn, "udp-4791",
			[]string{"held by rstored (pid 6)", "--rdma-listen"},
		},
		{"an unseen process", files{"proc/net/udp": udpOfAll}, nil, Warn, "udp-4791", []string{"cannot be seen", "ss -ulpn"}},
		{"unprivileged", files{"proc/42/fd/7": "->socket:[1]"}, nil, OK, "udp-4791", []string{"10.0.0.1 is rstored's"}},
		{"nobody", files{"proc/net/udp": udpHead}, nil, OK, "udp-4791", []string{"is free"}},
		{
			"small buffer", nil, func(d *daemon) { d.stats.Devices["10.0.0.1"]["Link.RcvBufBytes"] = 425984 }, Warn,
			"receive-buffer",
			[]string{"got 425984", "sysctl -w net.core.rmem_max=67108864"},
		},
		{
			"too big", nil, func(d *daemon) { d.stats.Devices["10.0.0.1"]["Link.TxTooBig"] = 3 }, Warn, "counters",
			[]string{"3 packets were larger", "same MTU"},
		},
		{
			"NAT", nil, func(d *daemon) { d.stats.Devices["10.0.0.1"]["ICRCErrors"] = 9 }, Warn, "counters",
			[]string{"9 packets came with a wrong checksum", "NAT"},
		},
		{"no export", nil, func(d *daemon) { d.exports = nil }, Fail, "export", []string{"rstorectl export add"}},
		{
			"a bad export", nil, func(d *daemon) { d.exports[0].Error = "too bad" }, Fail, "export",
			[]string{"too bad", "rstorectl reload"},
		},
		{
			"a lost directory", nil, func(d *daemon) { d.exports[0].Path = "/srv/gone" }, Fail, "export",
			[]string{"does not exist", "rstorectl export remove /data"},
		},
		{"a file", nil, func(d *daemon) { d.exports[0].Path = "/srv/data/x" }, Fail, "export", []string{"not a directory"}},
		{
			"no clients", nil, func(d *daemon) { d.exports[0].Clients = nil }, OK, "export",
			[]string{"this host alone", "rstorectl export set /data --client"},
		},
		{
			"everybody writes", nil, func(d *daemon) { d.exports[0].Clients = []config.Client{{CIDR: "*"}} }, Warn, "export",
			[]string{"may write here", "rstorectl export set /data --client"},
		},
		{"everybody's root", nil, func(d *daemon) {
			d.exports[0].Clients = []config.Client{
				{CIDR: "0.0.0.0/1", ReadOnly: true, Squash: config.NoRootSquash},
				{CIDR: "128.0.0.0/1", ReadOnly: true, Squash: config.NoRootSquash},
			}
		}, Warn, "export", []string{"no_root_squash", "rstorectl export set /data --client"}},
		{
			"nftables",
			files{"proc/modules": "nf_tables 1 0 - Live 0x0\n"},
			nil, Warn, "firewall",
			[]string{"not read here", "nft list ruleset"},
		},
		{
			"both providers", nil, func(d *daemon) { d.providers = []control.Provider{{Name: "soft"}, {Name: "verbs"}} }, OK,
			"provider",
			[]string{"devices of the kernel (verbs) and in software"},
		},
		{
			"one provider", nil, func(d *daemon) { d.providers = []control.Provider{{Name: "soft"}} }, OK, "provider",
			[]string{"in software alone"},
		},
		{
			"a device that is not used",
			files{"sys/class/infiniband/mlx5_0/node_type": "1: CA"},
			func(d *daemon) { d.providers = []control.Provider{{Name: "soft"}} }, OK, "provider",
			[]string{"rstored-rdma, to use mlx5_0"},
		},
		{"no libraries", nil, func(d *daemon) {
			d.providers = []control.Provider{{Name: "soft"}, {Name: "verbs", Error: "libibverbs.so.1: cannot open"}}
		}, Warn, "provider", []string{"libibverbs.so.1: cannot open", "libibverbs1 librdmacm1"}},
		{
			"a full file system", nil, func(d *daemon) { d.exports[0].Warning = "its file system is full" }, Warn, "export",
			[]string{"export /data: its file system is full", "df -i"},
		},
		{"a failure", nil, func(d *daemon) {
			d.dead = []control.PostMortem{{
				Time: time.Now(), Count: 3, Peer: "10.0.0.9:1", Local: "10.0.0.1:20049",
				Outcome: "refused", Reason: "no", Hint: "do this",
			}}
		}, Warn, "post-mortem", []string{"10.0.0.9:1 on 10.0.0.1:20049: refused: no, 3 times", "-> do this"}},
		{
			"state of version 4", nil, func(d *daemon) { d.stats.NFS4Memory = control.NFS4Memory{Bytes: 90, Limit: 100} }, Warn,
			"nfs4-memory",
			[]string{"90 of 100 bytes", "nfs4_memory"},
		},
		{
			"no UUID", nil, func(d *daemon) { d.exports[0].Identity = control.IdentityDevice }, Warn, "export-identity",
			[]string{"/data", "no UUID", "fsid="},
		},
		{
			"a copy", nil, func(d *daemon) { d.exports[0].Identity = control.IdentityState }, OK, "export-identity",
			[]string{"state directory", "fsid="},
		},
		{
			"no drift", nil, func(d *daemon) { d.drift.Against = []string{"the configuration (/x)"} }, OK, "config-drift",
			[]string{"the running exports and ports are those of the configuration (/x)"},
		},
		{"drift", nil, func(d *daemon) {
			d.drift = control.Drift{Against: []string{"the applied file 3"}, Changes: make([]control.Change, 2)}
		}, Warn, "config-drift", []string{
			"2 exports and ports that run differ from the applied file 3",
			"'rstorectl drift'",
		}},
		{
			"a bad configuration", nil, func(d *daemon) { d.drift.Problems = []string{"line 7"} }, Warn, "config-drift",
			[]string{"line 7", "a restart fails"},
		},
		{
			"a client that was denied", nil, func(d *daemon) {
				d.denied = []control.Denial{{
					Client: "10.0.0.9", Export: "/data", Reason: "secure, of the rule for 10.0.0.0/8: port", Count: 2,
					Last: time.Now(),
				}}
			},
			Warn, "denied",
			[]string{"10.0.0.9 was denied export /data: secure, of the rule for 10.0.0.0/8: port, 2 times", "noresvport"},
		},
		{
			"a client of another version", nil, func(d *daemon) {
				d.denied = []control.Denial{{
					Client: "10.0.0.9", Reason: "version: NFS version 3 is not served", Count: 1, Last: time.Now(),
				}}
			},
			Warn, "denied",
			[]string{"10.0.0.9 was denied service: version: NFS version 3 is not served", "nfs_versions"},
		},
		{
			"an old failure", nil, func(d *daemon) { d.dead = []control.PostMortem{{Time: time.Now().Add(-2 * recent)}} }, OK,
			"post-mortem", nil,
		},
		{"many failures", nil, func(d *daemon) {
			for range recentMax + 2 {
				d.dead = append(d.dead, control.PostMortem{Time: time.Now()})
			}
		}, Warn, "post-mortem", []string{"2 more", "rstorectl connections --failed"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := well()
			if tc.spoil != nil {
				tc.spoil(d)
			}
			r := Server(t.Context(), host(t, ours, tc.files), d)
			check(t, r, tc.level, tc.check, tc.parts...)
			if r.Failed() != (tc.level == Fail) && tc.name != "not running, small buffers" {
				t.Errorf("failed: %v", r.Failed())
			}
		})
	}
}

// TestRemote: the server of another host is asked, and this host is not looked at.
func TestRemote(t *testing.T) {
	d := well()
	d.exports[0].Path = "/not/on/this/host"
	r := Remote(t.Context(), d)
	check(t, r, OK, "daemon", "rstored v1 is running")
	check(t, r, OK, "port", "rdma 10.0.0.1:20049 listens")
	check(t, r, OK, "export", "/not/on/this/host")
	check(t, r, OK, "post-mortem")
	check(t, r, OK, "host", "cannot be seen from here")
	if r.Failed() || len(r) != 6 {
		t.Errorf("%+v", r)
	}
	d.ports[1].Addresses, d.ports[1].Error, d.exports[0].Error = nil, "in use", "too bad"
	d.dead = []control.PostMortem{{Time: time.Now(), Outcome: "refused"}}
	r = Remote(t.Context(), d)
	check(t, r, Fail, "port", "in use")
	check(t, r, Fail, "export", "too bad")
	check(t, r, Warn, "post-mortem", "refused")
	d.err = errors.New("no answer")
	r = Remote(t.Context(), d)
	check(t, r, Fail, "daemon", "no answer")
	if len(r) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestLocal: what a client can see of itself.
func TestLocal(t *testing.T) {
	const lib = "lib/modules/6.12.0/"
	for _, tc := range []struct {
		name   string
		files  files
		change func(*Host)
		level  Level
		check  string
		parts  []string
	}{
		{
			"no modules", nil, nil, Warn, "module",
			[]string{"neither loaded nor found", "nfs nfsv3 rpcrdma ib_core rdma_cm", "modules-extra"},
		},
		{"loaded", rxe, nil, OK, "module", []string{"loaded: rpcrdma"}},
		{"in sysfs", files{"sys/module/rdma_cm/refcnt": "1"}, nil, OK, "module", []string{"loaded: rdma_cm"}},
		{
			"built in",
			files{lib + "modules.builtin": "kernel/fs/nfs/nfs.ko\nkernel/drivers/infiniband/core/ib_core.ko\n"},
			nil,
			OK, "module",
			[]string{"loaded: nfs ib_core"},
		},
		{
			"to be loaded",
			files{lib + "modules.dep": "kernel/net/sunrpc/xprtrdma/rpcrdma.ko.zst: kernel/x.ko\n"},
			nil, Warn,
			"module",
			[]string{"modprobe -a rpcrdma"},
		},
		{"link", rxe, nil, OK, "rdma-link", []string{"rxe0/1 on eth0 (rdma_rxe) is active"}},
		{"hardware", files{
			"sys/class/infiniband/mlx5_0/ports/1/state":             "4: ACTIVE\n",
			"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3": "eth0\n",
		}, nil, OK, "rdma-link", []string{"mlx5_0/1 on eth0 (hardware)"}},
		{"link down", files{
			"sys/class/infiniband/mlx5_0/ports/1/state":             "1: DOWN\n",
			"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "eth0\n",
		}, nil, Fail, "rdma-link", []string{"is DOWN", "ip link set dev eth0 up"}},
		{"no link", nil, nil, Warn, "rdma-link", []string{"rdma link add rxe0 type rxe netdev eth0"}},
		{"link elsewhere", files{
			"sys/class/infiniband/mlx5_0/ports/1/state":             "4: ACTIVE\n",
			"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "eth1\n",
		}, nil, Warn, "rdma-link", []string{"no RDMA link of the kernel is on eth0"}},
		{"MTU", nil, nil, OK, "mtu", []string{"1500", "path MTU 1024"}},
		{
			"MTU of the path",
			files{"sys/class/net/eth0/mtu": "9000"},
			nil, Warn, "mtu",
			[]string{"9000", "carries 1500", "ip link set dev eth0 mtu 1500"},
		},
		{"tiny MTU", files{"sys/class/net/eth0/mtu": "300"}, nil, Fail, "mtu", []string{"too small"}},
		{"route", nil, nil, OK, "route", []string{"10.0.0.1 is reached from 10.0.0.9, interface eth0"}},
		{"no route", nil, func(h *Host) {
			h.Route = func(netip.Addr) (netip.Addr, int, error) {
				return netip.Addr{}, 0, errors.New("network is unreachable")
			}
		}, Fail, "route", []string{"unreachable", "ip route get 10.0.0.1"}},
		{"this host", nil, func(h *Host) {
			h.Route = func(netip.Addr) (netip.Addr, int, error) { return netip.Addr{}, 0, nil }
		}, OK, "route", []string{"an address of this host"}},
		{"port free", nil, nil, OK, "udp-4791", []string{"is free"}},
		{
			"port taken by rxe",
			files{"proc/net/udp": udpOfAll, "proc/modules": "rdma_rxe 1 0 - Live 0x0\n"},
			nil, Warn,
			"udp-4791",
			[]string{"rdma_rxe"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := host(t, tc.files)
			if tc.change != nil {
				tc.change(h)
			}
			var r Report
			r.local(h, serverAddr, true)
			check(t, r, tc.level, tc.check, tc.parts...)
			if r.Failed() != (tc.level == Fail) {
				t.Errorf("failed: %v", r.Failed())
			}
		})
	}
}

func TestProcAddr(t *testing.T) {
	for s, want := range map[string]string{
		"0100000A": "10.0.0.1", "00000000": "0.0.0.0", "00000000000000000000000001000000": "::1",
		"0000000000000000FFFF00000100007F": "127.0.0.1", "B80D0120000000000000000001000000": "2001:db8::1",
	} {
		if a, ok := procAddr(s); !ok || a.String() != want {
			t.Errorf("%s: %v, %v; want %s", s, a, ok, want)
		}
	}
	for _, s := range []string{"", "xx", "0100"} {
		if a, ok := procAddr(s); ok {
			t.Errorf("%q: %v", s, a)
		}
	}
}

func TestPathMTU(t *testing.T) {
	for mtu, want := range map[int]int{1500: 1024, 4191: 2048, 4192: 4096, 9000: 4096, 352: 256, 351: 0} {
		if got := pathMTU(mtu); got != want {
			t.Errorf("MTU %d: path MTU %d, want %d", mtu, got, want)
		}
	}
}

// TestComparePathMTU: a server that accepts a smaller path MTU only is told of, as the kernel's
// client cannot mount it.
func TestComparePathMTU(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:20049")
	for _, c := range []struct {
		local string
		got   rdma.MTU
		warns bool
	}{{"10.0.0.9", 4096, false}, {"10.0.0.9", 1024, true}, {"127.0.0.9", 1024, false}} {
		var r Report
		r.comparePathMTU(c.got, 4096, netip.MustParseAddr(c.local), at)
		if warns := len(r) == 1 && r[0].Level == Warn && strings.Contains(r[0].Do, "mtu 4192"); warns != c.warns ||
			!warns && len(r) > 0 {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}
