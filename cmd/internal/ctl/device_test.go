package ctl

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/rstored/rstored/rdma/sysfs"
)

// TestAddresses: by what others reach a device, which is not always in its table of GIDs.
func TestAddresses(t *testing.T) {
	of := func(name string) []netip.Addr {
		if name != "eth0" {
			return nil
		}
		return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fd00::1")}
	}
	gids := []sysfs.GID{{GID: "fe80::1"}, {GID: "::ffff:10.0.0.9"}, {GID: "::ffff:10.0.0.9"}}
	for _, c := range []struct {
		d    sysfs.Device
		p    sysfs.Port
		want []string
	}{
		{sysfs.Device{Kind: "CA"}, sysfs.Port{Layer: "Ethernet", NetDev: "eth0", GIDs: gids}, []string{"10.0.0.9"}},
		{
			sysfs.Device{Kind: sysfs.RNIC},
			sysfs.Port{Layer: "Ethernet", NetDev: "eth0", GIDs: []sysfs.GID{{GID: "299:0:2::"}}},
			[]string{"10.0.0.1", "fd00::1"},
		},
		{sysfs.Device{Kind: sysfs.RNIC}, sysfs.Port{Layer: "Ethernet", NetDev: "eth9"}, nil},
		{sysfs.Device{Kind: "CA"}, sysfs.Port{Layer: "InfiniBand", LID: 7, GIDs: gids}, []string{"LID 7"}},
	} {
		if got := addresses(&c.d, &c.p, of); !slices.Equal(got, c.want) {
			t.Errorf("%s, %+v: %q, not %q", c.d.Kind, c.p, got, c.want)
		}
	}
}
