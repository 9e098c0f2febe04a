package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
)

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
