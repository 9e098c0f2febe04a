package provider

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/rstored/rstored/rdma/sysfs"
	"github.com/rstored/rstored/rdma/verbs"
)

// host has a RoCE card with two ports, an iWARP card, an InfiniBand card and rdma_rxe.
func host(t *testing.T, available error) *Host {
	t.Helper()
	sys := fstest.MapFS{}
	for name, text := range map[string]string{
		"mlx5_0/node_type": "1: CA", "mlx5_0/device/uevent": "DRIVER=mlx5_core",
		"mlx5_0/ports/1/state": "4: ACTIVE", "mlx5_0/ports/1/link_layer": "Ethernet",
		"mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:ba3f:d2ff:fe12:3456", "mlx5_0/ports/1/gid_attrs/ndevs/0": "ens1",
		"mlx5_0/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0001", "mlx5_0/ports/1/gid_attrs/ndevs/3": "ens1",
		"mlx5_0/ports/1/gids/5": "fd00:0000:0000:0000:0000:0000:0000:0001", "mlx5_0/ports/1/gid_attrs/ndevs/5": "ens1",
		"mlx5_0/ports/2/state": "1: DOWN", "mlx5_0/ports/2/link_layer": "Ethernet",
		"mlx5_0/ports/2/gids/0": "0000:0000:0000:0000:0000:ffff:0a00:0101", "mlx5_0/ports/2/gid_attrs/ndevs/0": "ens2",
		"irdma0/device/uevent": "DRIVER=irdma",
		"siw0/node_type":       "4: RNIC", "siw0/node_guid": "0099:00ff:fe00:0002", "siw0/ports/1/state": "4: ACTIVE",
		"siw0/ports/1/link_layer": "Ethernet",
		"siw0/ports/1/gids/0":     "0299:0000:0002:0000:0000:0000:0000:0000",
		"irdma0/node_type":        "4: RNIC", "irdma0/ports/1/state": "4: ACTIVE", "irdma0/ports/1/link_layer": "Ethernet",
		"irdma0/ports/1/gids/0": "0200:0000:0000:0000:0000:0000:0000:0001", "irdma0/ports/1/gid_attrs/ndevs/0": "ens3",
		"mlx4_0/node_type": "1: CA", "mlx4_0/ports/2/state": "4: ACTIVE", "mlx4_0/ports/2/link_layer": "InfiniBand",
		"mlx4_0/ports/2/gids/0": "fe80:0000:0000:0000:0002:c903:0012:3456",
		"rxe0/node_type":        "1: CA", "rxe0/parent": "eth0", "rxe0/ports/1/state": "4: ACTIVE",
		"rxe0/ports/1/link_layer": "Ethernet",
		"rxe0/ports/1/gids/1":     "0000:0000:0000:0000:0000:ffff:0a00:0401",
		"bare/node_type":          "1: CA", "bare/ports/1/state": "4: ACTIVE", "bare/ports/1/link_layer": "Ethernet",
	} {
		sys["class/infiniband/"+name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	for name, text := range map[string]string{
		"ib1/type": "32", "ib1/dev_port": "1", "ib1/device/infiniband/mlx4_0/uevent": "",
		"ib0/type": "32", "ib0/dev_port": "0", "ib0/device/infiniband/mlx4_0/uevent": "",
		"eth2/address": "02:99:00:00:00:02", "eth2/ifindex": "6", "eth2/iflink": "6",
		"ens1/type": "1", "ens1/dev_port": "0", "ens1/device/infiniband/mlx5_0/uevent": "",
	} {
		sys["class/net/"+name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	addrs := func(s ...string) (out []netip.Addr) {
		for _, a := range s {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	return &Host{
		Sys: sys, Available: func() error { return available },
		Interfaces: func() ([]sysfs.Interface, error) {
			return []sysfs.Interface{
				{Name: "lo", Addrs: addrs("127.0.0.1")},
				{Name: "ens1", Addrs: addrs("10.0.0.1", "10.0.0.9")},
				{Name: "ens2", Addrs: addrs("10.0.1.1")},
				{Name: "ens3", Addrs: addrs("10.0.2.1")},
				{Name: "ib0", Addrs: addrs("10.0.3.9")},
				{Name: "ib1", Addrs: addrs("10.0.3.1")},
				{Name: "eth0", Addrs: addrs("10.0.4.1")},
				{Name: "eth1", Addrs: addrs("10.0.5.1")},
				{Name: "eth2", Addrs: addrs("10.0.6.1", "10.0.6.2", "fe80::99:ff:fe00:2")},
			}, nil
		},
		Source: func(remote netip.Addr) (netip.Addr, error) {
			switch s := remote.String(); {
			case strings.HasPrefix(s, "10.0.0.") && s != "10.0.0.1":
				return netip.MustParseAddr("10.0.0.1"), nil
			case strings.HasPrefix(s, "10.9."):
				return netip.Addr{}, syscall.ENETUNREACH
			}
			return netip.Addr{}, nil // an address of this host
		},
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		about        string
		kind         Kind
		at           string // an address, or a device
		available    error
		want         Kind // none for an error
		addr, device string
		says         string // part of the reason, the warning or the error
	}{
		{"a card that is up", Auto, "10.0.0.1", nil, Verbs, "", "mlx5_0", "mlx5_0 has the address"},
		{"its IPv6 address", Auto, "fd00::1", nil, Verbs, "", "mlx5_0", ""},
		{"mapped into IPv6", Auto, "::ffff:10.0.0.1", nil, Verbs, "10.0.0.1", "mlx5_0", ""},
		{"an address of its interface that it does not have", Auto, "10.0.0.9", nil, Soft, "", "", "no RDMA device"},
		{
			"a port that is down", Auto, "10.0.1.1", nil, Soft, "", "mlx5_0",
			"port 2 of mlx5_0, which has the address, is down",
		},
		{"asked for though it is down", Verbs, "10.0.1.1", nil, Verbs, "", "mlx5_0", "port 2 of mlx5_0 is down"},
		{"iWARP, by its interface", Auto, "10.0.2.1", nil, Verbs, "", "irdma0", ""},
		{
			"soft iWARP of the kernel, by the MAC address of its interface", Auto, "10.0.6.1", nil, Verbs, "", "siw0",
			"siw0 has the addresssiw0 is of the kernel's driver siw",
		},
		{"soft iWARP that is asked for", Verbs, "10.0.6.2", nil, Verbs, "", "siw0", "lets every peer"},
		{"soft iWARP by its name", Auto, "siw0", nil, Verbs, "10.0.6.1", "siw0", "lets every peer"},
		{"InfiniBand, by the interface of its port", Auto, "10.0.3.1", nil, Verbs, "", "mlx4_0", ""},
		{"InfiniBand, by that of another port", Auto, "10.0.3.9", nil, Soft, "", "", "no RDMA device"},
		{"soft RoCE of the kernel", Auto, "10.0.4.1", nil, Verbs, "", "rxe0", ""},
		{"an ordinary interface", Auto, "10.0.5.1", nil, Soft, "", "", "no RDMA device of the kernel has the address"},
		{
			"a program without the provider", Auto, "10.0.0.1", verbs.ErrNotBuilt, Soft, "", "mlx5_0",
			"install the package rstored-rdma",
		},
		{
			"asked for of a program without the provider", Verbs, "10.0.0.1", verbs.ErrNotBuilt, "", "", "",
			"install the package rstored-rdma",
		},
		{"asked for where there is none", Verbs, "10.0.5.1", nil, "", "", "", "none has the address 10.0.5.1"},
		{"soft on a card of RoCE", Soft, "10.0.0.1", nil, Soft, "", "mlx5_0", "may keep the packets"},
		{"soft beside iWARP", Soft, "10.0.2.1", nil, Soft, "", "irdma0", "asked for"},
		{"a device by its name", Auto, "mlx5_0", nil, Verbs, "10.0.0.1", "mlx5_0", ""},
		{"iWARP by its name", Verbs, "irdma0", nil, Verbs, "10.0.2.1", "irdma0", ""},
		{"InfiniBand by its name", Verbs, "mlx4_0", nil, Verbs, "10.0.3.1", "mlx4_0", ""},
		{"a name that nobody has", Verbs, "mlx5_9", nil, "", "", "", "none is named mlx5_9"},
		{"a device without an address", Verbs, "bare", nil, "", "", "", "bare has no address"},
		{"soft by a name", Soft, "mlx5_0", nil, "", "", "", "name an address"},
		{"a name without the provider", Auto, "mlx5_0", verbs.ErrNotBuilt, "", "", "", "rstored-rdma"},
	} {
		addr, err := netip.ParseAddr(c.at)
		device := ""
		if err != nil {
			device = c.at
		}
		got, err := host(t, c.available).Choose(c.kind, addr, device)
		want := netip.Addr{}
		if c.want != "" {
			want = addr
		}
		if c.addr != "" {
			want = netip.MustParseAddr(c.addr)
		}
		switch {
		case c.want == "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %+v, %v", c.about, got, err)
			}
		case err != nil || got.Kind != c.want || got.Addr != want || got.Device != c.device:
			t.Errorf("%s: %+v, %v", c.about, got, err)
		case !strings.Contains(got.Why+got.Warning, c.says):
			t.Errorf("%s: because %q, warning %q", c.about, got.Why, got.Warning)
		}
	}
	for at, gone := range map[string]bool{"10.0.5.1": true, "mlx5_9": true, "bare": true} {
		addr, _ := netip.ParseAddr(at)
		name := at
		if addr.IsValid() {
			name = ""
		}
		if _, err := host(t, nil).Choose(Verbs, addr, name); Gone(err) != gone {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// TestChooseFor: routing chooses the local address. For a peer on this host, a kernel device that
// has the peer's address is used.
func TestChooseFor(t *testing.T) {
	for _, c := range []struct {
		kind           Kind
		remote, source string
		want           Kind
		addr           string
	}{
		{Auto, "10.0.0.2", "", Verbs, "10.0.0.1"},
		{Soft, "10.0.0.2", "", Soft, "10.0.0.1"},
		{Auto, "10.0.0.2", "10.0.5.1", Soft, "10.0.5.1"},
		{Auto, "10.0.0.1", "", Verbs, "10.0.0.1"}, // the host's own address
		{Soft, "10.0.0.1", "", Soft, ""},
		{Auto, "127.0.0.1", "", Soft, ""},
		{Verbs, "127.0.0.1", "", "", ""},
		{Auto, "10.9.0.1", "", "", ""}, // no route
	} {
		source, _ := netip.ParseAddr(c.source)
		want, _ := netip.ParseAddr(c.addr)
		got, err := host(t, nil).ChooseFor(c.kind, netip.MustParseAddr(c.remote), source)
		if (err != nil) != (c.want == "") ||
			err == nil && (got.Kind != c.want || got.Addr != want ||
				want != netip.Addr{} && got.Device == "" && want != netip.MustParseAddr("10.0.5.1")) {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
}

func TestAddresses(t *testing.T) {
	got, err := host(t, nil).Addresses()
	var text []string
	for _, a := range got {
		text = append(text, a.String())
	}
	if want := []string{"10.0.0.1", "10.0.2.1", "10.0.3.1", "10.0.4.1", "10.0.6.1", "10.0.6.2", "fd00::1"}; err != nil ||
		!slices.Equal(text, want) {
		t.Errorf("got %v, %v; want %v", text, err, want)
	}
}

// TestRXE: the error of a port that is in use names rdma_rxe, if that has the port.
func TestRXE(t *testing.T) {
	taken := errors.Join(errors.New("bind"), syscall.EADDRINUSE)
	without := &Host{Sys: fstest.MapFS{}, Available: func() error { return nil }}
	if err := without.explain(taken); !errors.Is(err, taken) || without.RXE() != "" {
		t.Errorf("without rdma_rxe: %v", err)
	}
	module := &Host{
		Sys:       fstest.MapFS{"module/rdma_rxe": &fstest.MapFile{Mode: 0o755 | fs.ModeDir}},
		Available: without.Available,
	}
	for _, c := range []struct {
		host *Host
		says []string
	}{
		{host(t, nil), []string{"rxe0", "rstorectl device remove rxe0", "take the provider verbs"}},
		{host(t, verbs.ErrNotBuilt), []string{"rxe0", "install the package rstored-rdma"}},
		{module, []string{"rmmod rdma_rxe"}},
	} {
		err := c.host.explain(taken)
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Error(err)
		}
		for _, s := range append(c.says, "UDP port 4791 is the kernel's") {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q is not in %v", s, err)
			}
		}
		if other := c.host.explain(syscall.EACCES); !errors.Is(other, syscall.EACCES) {
			t.Error(other)
		}
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]Kind{"": Auto, "auto": Auto, "Soft": Soft, "verbs": Verbs, "rxe": ""} {
		if got, err := Parse(s); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
}
