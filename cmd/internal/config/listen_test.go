package config

import (
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma/provider"
)

// TestRDMAListen: what may stand there, and the one spelling of each.
func TestRDMAListen(t *testing.T) {
	addr := netip.MustParseAddr
	for in, want := range map[string]struct {
		Listen
		text string
	}{
		":20049":         {Listen{Port: 20049}, ":20049"},
		"10.0.0.1:20049": {Listen{Addr: addr("10.0.0.1"), Port: 20049}, "10.0.0.1:20049"},
		"soft://10.0.0.1:20049": {
			Listen{Addr: addr("10.0.0.1"), Port: 20049, Provider: provider.Soft},
			"soft://10.0.0.1:20049",
		},
		"VERBS://[fd00::1]:20049": {
			Listen{Addr: addr("fd00::1"), Port: 20049, Provider: provider.Verbs},
			"verbs://[fd00::1]:20049",
		},
		"verbs://:1":        {Listen{Port: 1, Provider: provider.Verbs}, "verbs://:1"},
		"verbs://[::]:1":    {Listen{Port: 1, Provider: provider.Verbs}, "verbs://:1"},
		"verbs://0.0.0.0:1": {Listen{Addr: addr("0.0.0.0"), Port: 1, Provider: provider.Verbs}, "verbs://0.0.0.0:1"},
		"auto://:1":         {Listen{Port: 1, Provider: provider.Auto}, "auto://:1"},
		"verbs://mlx5_0:20049": {
			Listen{Device: "mlx5_0", Port: 20049, Provider: provider.Verbs},
			"verbs://mlx5_0:20049",
		},
		"auto://rocep1s0f0:20049": {
			Listen{Device: "rocep1s0f0", Port: 20049, Provider: provider.Verbs},
			"verbs://rocep1s0f0:20049",
		},
		"verbs://[::ffff:1.2.3.4]:5": {Listen{Addr: addr("1.2.3.4"), Port: 5, Provider: provider.Verbs}, "verbs://1.2.3.4:5"},
	} {
		got, err := ParseRDMAListen(in)
		if err != nil || got != want.Listen || got.String() != want.text {
			t.Errorf("%q: %+v (%v), %v", in, got, got, err)
		}
		if again, err := ParseRDMAListen(got.String()); err != nil || again != got {
			t.Errorf("%q as %q: %+v, %v", in, got, again, err)
		}
		if got.Any() != (want.Device == "" && (!want.Addr.IsValid() || want.Addr.IsUnspecified())) {
			t.Errorf("%q is for every address: %t", in, got.Any())
		}
	}
}
