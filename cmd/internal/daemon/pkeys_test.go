package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestTenants: an export of a partition is for its members, who come by RDMA; leaving a
// partition ends their connections; what was changed is the same after a restart.
func TestTenants(t *testing.T) {
	ctx := t.Context()
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b} {
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(dir), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg := testConfig(t, a+"=/a(pkey=0x8001)", b+"=/b(pkey=2)", t.TempDir()+"=/all")
	cfg.PKeys = []string{"0xffff", "0x8001"}
	d, ctl := startDaemon(t, cfg)
	defer func() { stopDaemon(t, d) }()
	if err := ctl.AddPKey(ctx, "0x8002"); err != nil {
		t.Fatal(err)
	}
	if err := ctl.AddPKey(ctx, "0x0002"); err == nil {
		t.Error("two memberships in one partition")
	}
	if err := ctl.AddPKey(ctx, "0x8000"); err == nil {
		t.Error("a key without a partition was taken")
	}

	lookup := func(url string, pkey uint16) error {
		dl := dial.Dialer{Cred: &rpc.Cred{Flavor: rpc.AuthSys}, PKey: pkey, GiveUp: 5 * time.Second}
		defer func() { _ = dl.Close() }()
		_, err := dl.FS(ctx, url)
		return err
	}
	rdma, tcp := "nfs+rdma://"+cfg.RDMAListen[0], "nfs+tcp://"+cfg.TCPListen[0]
	for _, c := range []struct {
		who  string
		url  string
		pkey uint16
		ok   bool
	}{
		{"a member", rdma + "/a", 1, true},
		{"a full member", rdma + "/a", 0x8001, true},
		{"a member of another partition", rdma + "/a", 2, false},
		{"everybody", rdma + "/a", 0, false},
		{"a client over TCP", tcp + "/a", 0, false},
		{"a member of the second", rdma + "/b", 2, true},
		{"one of the first", rdma + "/b", 1, false},
		{"anybody to what is for all", rdma + "/all", 1, true},
		{"TCP to what is for all", tcp + "/all", 0, true},
	} {
		err := lookup(c.url, c.pkey)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, nfs.ErrAcces) && !errors.Is(err, nfs.ErrNoEnt) {
			t.Errorf("%s at %s: %v", c.who, c.url, err)
		}
	}

	describe := func(keys []control.PKey) (out []string) {
		for _, k := range keys {
			out = append(out, k.PKey+" "+k.Membership+" "+k.Origin)
		}
		return out
	}
	if err := ctl.RemovePKey(ctx, "0x8001"); err != nil {
		t.Error(err)
	}
	if err := lookup(rdma+"/all", 1); err == nil {
		t.Error("a connection in a partition that the server has left")
	}
	want := []string{"0xffff full config", "0x8002 full runtime"}
	for range 2 {
		keys, err := ctl.PKeys(ctx)
		if err != nil || !slices.Equal(describe(keys), want) {
			t.Errorf("%q, %v", describe(keys), err)
		}
		if got := d.devices.List()[0].Soft.PKeys(); !slices.Equal(got, []uint16{0xffff, 0x8002}) {
			t.Errorf("the device has %#x", got)
		}
		stopDaemon(t, d)
		d, ctl = startDaemon(t, cfg)
	}
	for _, k := range []string{"0xffff", "0x8002"} {
		err := ctl.RemovePKey(ctx, k)
		if (err == nil) != (k == "0xffff") {
			t.Errorf("removing %s: %v", k, err)
		}
	}
}
