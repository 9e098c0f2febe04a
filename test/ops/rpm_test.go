package ops

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRPM looks at the other package with rpm.
func TestRPM(t *testing.T) {
	need(t, "rpm", "rpm2cpio")
	file := one(t, filepath.Join(packages(t, "v1.0.0-rc1", "FORMATS=rpm", "RDMA=no"), "rstored-1.0.0~rc1-1.*.rpm"))
	command(t, "rpm", "-K", "--nosignature", file)
	list := strings.Fields(command(t, "rpm", "-qlp", file))
	for _, f := range []string{
		"/usr/sbin/rstored", "/usr/bin/rstorectl", "/usr/lib/systemd/system/rstored.service",
		"/usr/lib/systemd/system/rstored@.service", "/usr/lib/systemd/system/rstored-snapshots.timer",
		"/usr/lib/systemd/system/rstored.socket", "/usr/lib/sysusers.d/rstored.conf",
		"/usr/lib/firewalld/services/rstored.xml", "/etc/rstored/rstored.yaml",
	} {
		if !slices.Contains(list, f) {
			t.Errorf("%s is not in it", f)
		}
	}
	if s := command(t, "rpm", "-qp", "--configfiles",
		file); s != "/etc/rstored/rstored.yaml\n/etc/ufw/applications.d/rstored" {
		t.Errorf("configuration: %q", s)
	}
	if s := command(t, "rpm", "-qp", "--qf", "%{LICENSE} %{ARCH}\n[%{FILENAMES} %{FILEUSERNAME}:%{FILEGROUPNAME}\n]",
		file); strings.Count(s, " root:root") != len(list) {
		t.Errorf("owners:\n%s", s)
	}
	for _, tag := range []string{"POSTIN", "PREUN", "POSTUN"} {
		cmd := exec.Command("sh", "-n")
		cmd.Stdin = strings.NewReader(command(t, "rpm", "-qp", "--qf", "%{"+tag+"}", file))
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", tag, err, b)
		}
	}
}

// TestRPMScripts installs the RPM package in a clean system, whose presets leave services off as
// those of Fedora do, has it serve, upgrades it and removes it. The system is Debian, so that
// dependencies are not looked at.
func TestRPMScripts(t *testing.T) {
	need(t, "systemd-nspawn")
	c := boot(t)
	rpm := func(version string) string {
		to := "/var/tmp/rstored-" + version + ".rpm"
		c.install(one(t, filepath.Join(packages(t, version), "rstored-"+strings.TrimPrefix(version, "v")+"-*.rpm")), to,
			0o644)
		return to
	}
	first, second := rpm("v1.0.0"), rpm("v1.1.0")
	c.write("/etc/systemd/system-preset/99-default.preset", "disable *\n")
	c.run("mkdir -p /var/lib/rpm && rpm --initdb")
	before := c.files()
	const do = "rpm --nodeps "
	states := func(c *container) string {
		s, _ := c.try("systemctl is-enabled rstored; systemctl is-active rstored")
		return strings.ReplaceAll(s, "\n", " ")
	}
	if ok := t.Run("install", func(t *testing.T) {
		c := c.in(t)
		c.run(do + "-i " + first + " && rpm -V --nodeps rstored")
		if s := states(c); s != "disabled inactive" {
			t.Errorf("after the installation it is %s", s)
		}
		c.run("getent passwd rstored && systemd-analyze verify --man=no rstored.service")
		if s := c.run("rstored config validate --config /etc/rstored/rstored.yaml"); s != "the configuration is good" {
			t.Error(s)
		}
		c.run("mkdir -p /srv/data && chmod 777 /srv/data && head -c 1M /dev/urandom >/tmp/f")
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
		c.run("systemctl enable --now rstored && rstorectl put /tmp/f " + byRDMA + "/f && cmp /tmp/f /srv/data/f")
	}); !ok {
		t.FailNow()
	}
	t.Run("upgrade", func(t *testing.T) {
		c := c.in(t)
		pid := c.show("rstored", "MainPID")
		c.run(do + "-U " + second)
		if now := c.show("rstored", "MainPID"); now == pid || now == "0" || states(c) != "enabled active" {
			t.Errorf("process %s, %s before; %s", now, pid, states(c))
		}
		if s := c.run("rstorectl status && rstorectl cat --nfs-version 3 " + byRDMA +
			"/f | cmp - /tmp/f"); !strings.Contains(s, "v1.1.0") {
			t.Errorf("after the upgrade:\n%s", s)
		}
		if s := c.run("cat /etc/rstored/rstored.yaml"); s != strings.TrimSpace(config("/srv/data", "127.0.0.1")) {
			t.Errorf("the configuration was replaced:\n%s", s)
		}
		if s := c.run("journalctl -u rstored -o cat | grep -c 'listening on an inherited socket'"); s == "0" {
			t.Error("the sockets were not kept")
		}
	})
	t.Run("an upgrade respects the administrator", func(t *testing.T) {
		c := c.in(t)
		c.run("systemctl disable --now rstored && " + do + "-U --replacepkgs " + second)
		if s := states(c); s != "disabled inactive" {
			t.Errorf("a service that was turned off is %s", s)
		}
		c.run("systemctl enable --now rstored && rstorectl cat --nfs-version 3 " + byTCP + "/f | cmp - /tmp/f")
	})
	t.Run("downgrade and reinstall", func(t *testing.T) {
		c := c.in(t)
		key := c.run("sha256sum /var/lib/rstored/handle.key")
		for _, s := range []struct{ command, version string }{
			{"-U --oldpackage " + first, "v1.0.0"},
			{"-U --replacepkgs " + first, "v1.0.0"},
			{"--reinstall " + first, "v1.0.0"},
			{"-U " + second, "v1.1.0"},
			{"--reinstall " + second, "v1.1.0"},
		} {
			c.run(do + s.command + " && rpm -V --nodeps rstored | grep -v ' c ' | (! grep .) && rstorectl cat --nfs-version 3 " +
				byRDMA + "/f | cmp - /tmp/f")
			if now := c.run("sha256sum /var/lib/rstored/handle.key"); now != key {
				t.Errorf("rpm %s: another state", s.command)
			}
			if now := states(c); now != "enabled active" {
				t.Errorf("rpm %s: %s", s.command, now)
			}
			if now := c.run("rstorectl status"); !strings.Contains(now, s.version) {
				t.Errorf("rpm %s:\n%s", s.command, now)
			}
		}
		if s := c.run("cat /etc/rstored/rstored.yaml; ls /etc/rstored"); s != config("/srv/data", "127.0.0.1")+
			"rstored.yaml" {
			t.Errorf("the configuration was replaced:\n%s", s)
		}
	})
	t.Run("remove", func(t *testing.T) {
		c := c.in(t)
		c.run(do + "-e rstored")
		if s, _ := c.try("systemctl is-active rstored; command -v rstored; pgrep -x rstored; true"); s != "inactive" {
			t.Errorf("after the removal: %q", s)
		}
		c.run("test -e /var/lib/rstored/handle.key && cmp /tmp/f /srv/data/f && grep pseudo " +
			"/etc/rstored/rstored.yaml.rpmsave")
		onlyState(t, c, before)
	})
	t.Run("installed again", func(t *testing.T) {
		c := c.in(t)
		key := c.run("sha256sum /var/lib/rstored/handle.key")
		c.run(do + "-i " + second + " && mv /etc/rstored/rstored.yaml.rpmsave /etc/rstored/rstored.yaml && systemctl " +
			"enable --now rstored && rstorectl cat --nfs-version 3 " + byTCP + "/f | cmp - /tmp/f")
		if now := c.run("sha256sum /var/lib/rstored/handle.key"); now != key {
			t.Error("another state")
		}
		c.run(do + "-e rstored")
		onlyState(t, c, before)
		// What docs/install.md has instead of a purge.
		c.run("rm -rf /etc/rstored /var/lib/rstored /var/log/rstored")
		if s := c.leftOver(before); len(s) > 0 {
			t.Errorf("left over: %q", s)
		}
	})
}

// onlyState fails if more is left of an RPM package than the configuration that was changed, and
// the state.
func onlyState(t *testing.T, c *container, before []string) {
	t.Helper()
	for _, f := range c.leftOver(before) {
		if !strings.HasPrefix(f+"/", "/var/lib/rstored/") && f != "/etc/rstored" && f != "/etc/rstored/rstored.yaml.rpmsave" {
			t.Errorf("left over: %s", f)
		}
	}
}
