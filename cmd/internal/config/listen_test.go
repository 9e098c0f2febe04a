package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// TestMovingAddresses: a mode that depends on an address needs one.
func TestMovingAddresses(t *testing.T) {
	c := Default()
	c.HAPromote = PromoteAddress
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "ha_promote") || len(c.MovingAddresses()) != 0 {
		t.Errorf("%v, %v", err, c.MovingAddresses())
	}
	c.TCPListen = []string{":2049", "192.0.2.10:2049"}
	c.RDMAListen = []string{"mlx5_0:20049", "192.0.2.10:20049", "soft://[2001:db8::1]:20049", "0.0.0.0:20050"}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::1")}
	if got := c.MovingAddresses(); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if err := c.Validate(); err != nil && strings.Contains(err.Error(), "ha_promote") {
		t.Error(err)
	}
}

// TestAgentControl: Pacemaker's agent looks for the control socket where rstorectl does.
func TestAgentControl(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "pacemaker", "rstored"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		": \"${OCF_RESKEY_control=" + systemControl + "}\"", "interface.\" " + systemControl + "\n",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("there is no %q", want)
		}
	}
}
