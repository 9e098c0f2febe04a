package daemon

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// TestDenialsAreSaid: a client of either version that the rules of an export deny is listed with
// the rule.
func TestDenialsAreSaid(t *testing.T) {
	d, ctl := startDaemon(t, testConfig(t, t.TempDir()+"=/a 192.0.2.0/24(rw)", t.TempDir()+"=/b 127.0.0.0/8(ro,sec=none)"))
	defer stopDaemon(t, d)
	var at string
	for _, p := range d.Ports() {
		if p.Transport == control.TransportTCP {
			at = netip.MustParseAddrPort(p.Addresses[0]).String()
		}
	}
	for _, v := range []client.Version{client.Version3, client.Version42} {
		for _, path := range []string{"/a", "/b"} {
			dialer := dial.Dialer{Version: v}
			fs, err := dialer.FS(t.Context(), "nfs+tcp://"+at+path)
			if err == nil {
				_, err = fs.Open(".")
			}
			if err == nil {
				t.Errorf("version %v: %s is open", v, path)
			}
			_ = dialer.Close()
		}
	}
	list, err := ctl.Denials(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for export, reason := range map[string]string{
		"/a": "no rule is for this client", "/b": "sec, of the rule for 127.0.0.0/8: calls with sec=sys ",
	} {
		found := false
		for _, n := range list {
			found = found || n.Export == export && strings.HasPrefix(n.Reason, reason) &&
				strings.HasPrefix(n.Client, "127.") && n.Count > 0
		}
		if !found {
			t.Errorf("%s: %+v", export, list)
		}
	}
}

// TestVersionIsSaid: a client that asks for a version of NFS which is not served is listed with
// that version, whether the program, its version or the minor version is missing.
func TestVersionIsSaid(t *testing.T) {
	for _, c := range []struct {
		serves string
		asks   client.Version
		want   string
	}{
		{config.Version41, client.Version3, "3"},
		{config.Version41, client.Version42, "4.2"},
		{config.Version3, client.Version42, "4"},
	} {
		cfg := testConfig(t, t.TempDir()+"=/a 127.0.0.0/8")
		cfg.NFSVersions = []string{c.serves}
		d, ctl := startDaemon(t, cfg)
		for _, p := range d.Ports() {
			if p.Transport != control.TransportTCP {
				continue
			}
			dialer := dial.Dialer{Version: c.asks}
			if fs, err := dialer.FS(t.Context(), "nfs+tcp://"+p.Addresses[0]+"/a"); err == nil {
				if _, err = fs.Open("."); err == nil {
					t.Errorf("%v is served", c.asks)
				}
			}
			_ = dialer.Close()
		}
		list, err := ctl.Denials(t.Context())
		if err != nil || len(list) != 1 || list[0].Export != "" ||
			list[0].Reason != "version: NFS version "+c.want+" is not served" {
			t.Errorf("%s of a server with %s: %+v, %v", c.want, c.serves, list, err)
		}
		stopDaemon(t, d)
	}
}
