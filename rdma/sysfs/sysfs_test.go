package sysfs

import (
	"maps"
	"reflect"
	"testing"
	"testing/fstest"
)

// TestList: the sysfs of a card with one port for RoCE and one for InfiniBand, and of the kernel's
// two soft devices.
func TestList(t *testing.T) {
	sys := fstest.MapFS{}
	for name, text := range map[string]string{
		"mlx5_0/node_type": "1: CA", "mlx5_0/fw_ver": "22.38.1002", "mlx5_0/node_guid": "b83f:d203:0012:3456",
		"mlx5_0/node_desc":     "host mlx5_0",
		"mlx5_0/device/uevent": "DRIVER=mlx5_core\nPCI_CLASS=20000\n", "mlx5_0/device/numa_node": "1",
		"mlx5_0/ports/1/state": "4: ACTIVE", "mlx5_0/ports/1/phys_state": "5: LinkUp",
		"mlx5_0/ports/1/link_layer": "Ethernet",
		"mlx5_0/ports/1/rate":       "100 Gb/sec (4X EDR)", "mlx5_0/ports/1/lid": "0x0",
		"mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:ba3f:d2ff:fe12:3456", "mlx5_0/ports/1/gid_attrs/types/0": "IB/RoCE v1",
		"mlx5_0/ports/1/gid_attrs/ndevs/0": "ens1",
		"mlx5_0/ports/1/gids/3":            "0000:0000:0000:0000:0000:ffff:0a00:0001",
		"mlx5_0/ports/1/gid_attrs/types/3": "RoCE v2",
		"mlx5_0/ports/1/gid_attrs/ndevs/3": "ens1",
		"mlx5_0/ports/1/gids/10":           "0000:0000:0000:0000:0000:0000:0000:0000", // not set
		"mlx5_0/ports/2/state":             "1: DOWN", "mlx5_0/ports/2/phys_state": "3: Disabled",
		"mlx5_0/ports/2/link_layer": "InfiniBand", "mlx5_0/ports/2/lid": "0x1f",
		"rxe0/node_type": "1: CA", "rxe0/parent": "eth0", "rxe0/ports/1/state": "4: ACTIVE",
		"rxe0/ports/1/link_layer": "Ethernet",
		"siw0/node_type":          "4: RNIC", "siw0/parent": "eth1",
		"odd/ports/x/state": "1: DOWN", // without the other files
	} {
		sys[class+"/"+name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	got, err := List(sys)
	if err != nil {
		t.Fatal(err)
	}
	one := 1
	want := []Device{
		{
			Name: "mlx5_0", Driver: "mlx5_core", Kind: "CA", NUMA: &one, Firmware: "22.38.1002", GUID: "b83f:d203:0012:3456",
			Ports: []Port{
				{
					Number: 1, State: "ACTIVE", Phys: "LinkUp", Layer: "Ethernet", Rate: "100 Gb/sec (4X EDR)", NetDev: "ens1",
					GIDs: []GID{
						{0, "fe80::ba3f:d2ff:fe12:3456", "IB/RoCE v1", "ens1"}, {3, "::ffff:10.0.0.1", "RoCE v2", "ens1"},
					},
				},
				{Number: 2, State: "DOWN", Phys: "Disabled", Layer: "InfiniBand", LID: 31, GIDs: []GID{}},
			},
		},
		{Name: "odd", Ports: []Port{}},
		{
			Name: "rxe0", Driver: "rdma_rxe", Kind: "CA", Soft: true,
			Ports: []Port{{Number: 1, State: "ACTIVE", Layer: "Ethernet", NetDev: "eth0", GIDs: []GID{}}},
		},
		{Name: "siw0", Driver: "siw", Kind: "RNIC", Soft: true, Ports: []Port{}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if a := got[0].Ports[0].GIDs[1].Addr().String(); a != "10.0.0.1" {
		t.Errorf("the address of an IPv4 GID is %s", a)
	}
	if d, ok := Named(sys, "rxe0"); !ok || !reflect.DeepEqual(d, want[2]) {
		t.Errorf("rxe0 by its name is %+v, %v", d, ok)
	}
	for _, name := range []string{"", ".", "..", "/", "rxe1", "rxe0/ports", "../infiniband/rxe0"} {
		if d, ok := Named(sys, name); ok {
			t.Errorf("%q is the name of %+v", name, d)
		}
	}
	if none, err := List(fstest.MapFS{}); err != nil || none == nil || len(none) != 0 {
		t.Errorf("a kernel without RDMA: %v, %v", none, err)
	}
}

// TestInterfaceOfIWARP: if the table of GIDs names no interface, a port belongs to the interface
// whose MAC address is in its GID, or in the GUID of the node.
func TestInterfaceOfIWARP(t *testing.T) {
	const mac, gid, guid = "02:99:00:00:00:02", "0299:0000:0002:0000:0000:0000:0000:0000", "0099:00ff:fe00:0002"
	for _, c := range []struct {
		about, node, gid, guid string
		more                   map[string]string
		want, driver           string
		soft                   bool
	}{
		{"siw", "4: RNIC", gid, guid, nil, "eth0", SIWDriver, true},
		{"by its GUID", "4: RNIC", "", guid, nil, "eth0", SIWDriver, true},
		{"by its GID", "4: RNIC", gid, "0000:0000:0000:0000", nil, "eth0", SIWDriver, true},
		{"a GID of another", "4: RNIC", "0299:0000:0003:0000:0000:0000:0000:0000", "", nil, "", SIWDriver, true},
		{"a GID that begins alike", "4: RNIC", "0299:0000:0002:0000:0000:0000:0000:0001", "", nil, "", SIWDriver, true},
		{"neither", "4: RNIC", "", "odd", nil, "", SIWDriver, true},
		{"a VLAN has the same MAC address", "4: RNIC", gid, guid, map[string]string{
			"class/net/a.7/address": mac, "class/net/a.7/ifindex": "9", "class/net/a.7/iflink": "4",
		}, "eth0", SIWDriver, true},
		{
			"the table of GIDs says it", "4: RNIC", gid, guid,
			map[string]string{"class/infiniband/x/ports/1/gid_attrs/ndevs/0": "eth7"},
			"eth7", SIWDriver, true,
		},
		{
			"an adapter", "4: RNIC", gid, guid,
			map[string]string{"class/infiniband/x/device/uevent": "DRIVER=irdma"},
			"eth0",
			"irdma", false,
		},
		{"no iWARP", "1: CA", gid, guid, nil, "", "", false},
	} {
		sys := fstest.MapFS{}
		text := map[string]string{
			"class/infiniband/x/node_type": c.node, "class/infiniband/x/node_guid": c.guid,
			"class/infiniband/x/ports/1/state": "4: ACTIVE", "class/infiniband/x/ports/1/gids/0": c.gid,
			"class/net/eth0/address": mac, "class/net/eth0/ifindex": "4", "class/net/eth0/iflink": "4",
			"class/net/eth1/address": "02:99:00:00:00:05",
			"class/net/ib0/address":  "80:00:00:48:fe:80:00:00:00:00:00:00:f4:52:14:03:00:7b:cb:a1",
			"class/net/tun0/address": "",
		}
		maps.Copy(text, c.more)
		for name, s := range text {
			sys[name] = &fstest.MapFile{Data: []byte(s + "\n")}
		}
		got, err := List(sys)
		if err != nil || len(got) != 1 || len(got[0].Ports) != 1 {
			t.Fatalf("%s: %+v, %v", c.about, got, err)
		}
		if d := got[0]; d.Ports[0].NetDev != c.want || d.Driver != c.driver || d.Soft != c.soft {
			t.Errorf("%s: interface %q, driver %q, soft %t", c.about, d.Ports[0].NetDev, d.Driver, d.Soft)
		}
	}
}

// TestUsable: a device that is being removed is still listed, and is not usable.
func TestUsable(t *testing.T) {
	sys := fstest.MapFS{"class/infiniband/rxe0/node_type": &fstest.MapFile{Data: []byte("1: CA\n")}}
	if !Usable(sys, "rxe0") {
		t.Error("without uverbs nobody knows better")
	}
	sys["class/infiniband_verbs/abi_version"] = &fstest.MapFile{Data: []byte("6\n")}
	sys["class/infiniband_verbs/uverbs1/ibdev"] = &fstest.MapFile{Data: []byte("mlx5_0\n")}
	if Usable(sys, "rxe0") || !Usable(sys, "mlx5_0") {
		t.Error("a device without its uverbs is usable, or one with it is not")
	}
	all, err := List(sys)
	usable, err2 := ListUsable(sys)
	if err != nil || err2 != nil || len(all) != 1 || len(usable) != 0 {
		t.Errorf("%+v, %v; %+v, %v", all, err, usable, err2)
	}
}
