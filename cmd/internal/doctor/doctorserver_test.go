package doctor

import (
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

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
		{
			"a cluster", nil, func(d *daemon) { d.cluster = control.ClusterHealth{Node: "a", Ceph: "HEALTH_OK"} },
			OK, "ceph",
			[]string{"Ceph is HEALTH_OK"},
		},
		{"a cluster that is sick", nil, func(d *daemon) {
			d.cluster = control.ClusterHealth{Node: "a", Ceph: "HEALTH_WARN", Checks: []string{"MDS_INSUFFICIENT_STANDBY: x"}}
		}, Warn, "ceph", []string{"MDS_INSUFFICIENT_STANDBY: x", "ceph health detail"}},
		{"a cluster that is down", nil, func(d *daemon) {
			d.cluster = control.ClusterHealth{Node: "a", Ceph: "HEALTH_ERR", Checks: []string{"MDS_ALL_DOWN: x"}}
		}, Fail, "ceph", []string{"MDS_ALL_DOWN: x", "ceph health detail"}},
		{"a cluster without monitors", nil, func(d *daemon) {
			d.cluster = control.ClusterHealth{Node: "a", Error: "timed out"}
		}, Fail, "ceph", []string{"timed out", "keyring"}},
		{"a cluster with a lost server", nil, func(d *daemon) {
			d.cluster = control.ClusterHealth{Node: "a", Ceph: "HEALTH_OK", Lost: []string{"b"}}
		}, Warn, "cluster", []string{"b is lost", "rstorectl cluster nodes"}},
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
