package ops

import (
	"path/filepath"
	"strings"
	"testing"

	tools "github.com/rstored/rstored/test/csi"
)

// TestCSIUnits: a real systemd runs the mounts by FUSE, so that they outlive the plugin and all of
// its processes, and end when they are unpublished.
func TestCSIUnits(t *testing.T) {
	need(t, "go")
	c := boot(t)
	unitFiles(t, c)
	dir := t.TempDir()
	if err := tools.Tools(t.Context(), root, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rstored-csi", "csicall"} {
		c.install(filepath.Join(dir, name), "/usr/local/bin/"+name, 0o755)
	}
	c.run("[ -c /dev/fuse ] || mknod /dev/fuse c 10 229; systemctl start rstored")
	const plugin = `systemd-run --quiet --unit=plugin rstored-csi --endpoint unix:///run/csi.sock --controller --node \
		--node-id here --address 127.0.0.1 --fuse-units --fuse-dir /var/lib/plugin`
	c.run(plugin)
	c.wait("[ -S /run/csi.sock ]")
	c.run(`csicall /run/csi.sock create one server=127.0.0.1 share=/data mount=fuse transport=tcp mode=0777 >/tmp/v
		mkdir -p /pods && csicall /run/csi.sock publish /tmp/v /pods/one && echo before >/pods/one/file`)
	got := c.run("cat /srv/data/one/file; systemctl list-units --no-legend --plain 'rstored-csi-*'")
	if !strings.HasPrefix(got, "before\nrstored-csi-") || !strings.Contains(got, "running") {
		t.Errorf("the file, and the units:\n%s", got)
	}
	// The plugin ends with everything that it has started, as a container does, and another one comes.
	c.run("exec 8>/pods/one/open; systemctl kill --signal=SIGKILL plugin; sleep 0.1; echo after >&8; exec 8>&-")
	c.wait("! systemctl is-active --quiet plugin")
	c.run("systemctl reset-failed plugin 2>/dev/null; rm -f /run/csi.sock; " + plugin)
	c.wait("[ -S /run/csi.sock ]")
	if got := c.run("cat /pods/one/file /srv/data/one/open; csicall /run/csi.sock publish /tmp/v /pods/one; " +
		"grep -c ' /pods/one ' /proc/mounts"); got != "before\nafter\n1" {
		t.Errorf("after the plugin's end: %q", got)
	}
	c.run("csicall /run/csi.sock stats /tmp/v /pods/one && csicall /run/csi.sock unpublish /tmp/v /pods/one")
	c.wait("[ -z \"$(systemctl list-units --all --no-legend 'rstored-csi-*')\" ]")
	// What the program has said is in the error.
	out, err := c.try(`sed -i 's/"directory": *"one"/"directory":"none"/' /tmp/v
		csicall /run/csi.sock publish /tmp/v /pods/two`)
	if err == nil || !strings.Contains(out, "NotFound") || !strings.Contains(out, "No such file or directory") {
		t.Errorf("a directory that is not there: %v\n%s", err, out)
	}
}
