package daemon

import (
	"testing"

	"github.com/rstored/rstored/cmd/internal/control"
)

// TestHostLocksSetting: locks are taken on the host where that is not switched off, also
// while clients have some; what they have is given up there all the same.
func TestHostLocksSetting(t *testing.T) {
	cfg := testConfig(t, t.TempDir()+"=/on", t.TempDir()+"=/off(no_host_locks)", "memory:mem")
	cfg.RDMAListen = nil
	d, ctl := startDaemon(t, cfg)
	check := func(name string, want bool) {
		t.Helper()
		x, _ := d.Table.ByPath(name)
		if x == nil {
			t.Fatalf("no export %s", name)
		}
		if h, take := d.Table.HostLocker(x.ID); h == nil || take != want {
			t.Errorf("%s: by %v, taken %v", name, h, take)
		}
	}
	check("/on", true)
	check("/off", false)
	check("/mem", false)
	if h, _ := d.Table.HostLocker(99); h != nil {
		t.Error("an export that there is not")
	}
	for _, on := range []bool{false, true, false} {
		if _, err := ctl.SetExport(t.Context(), "/on", control.ExportPatch{HostLocks: &on}); err != nil {
			t.Fatal(err)
		}
		check("/on", on)
	}
	stopDaemon(t, d)
	d, _ = startDaemon(t, cfg)
	check("/on", false)
	stopDaemon(t, d)
}
