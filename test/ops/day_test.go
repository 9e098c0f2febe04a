package ops

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestDay is an administrator's first days, with the package of each kind, in a clean system:
// installation, first export, mount, a wrong configuration, a full disk, a disk that is missing
// after a restart, an upgrade, and the end.
func TestDay(t *testing.T) {
	need(t, "systemd-nspawn", "dpkg-deb")
	for _, kind := range []struct{ name, pattern, prepare, install, upgrade, remove string }{
		{"deb", "rstored_%s_*.deb", "true", "dpkg -i", "dpkg -i", "dpkg -P rstored"},
		{
			"rpm", "rstored-%s-*.rpm", "mkdir -p /var/lib/rpm && rpm --initdb", "rpm --nodeps -i", "rpm --nodeps -U",
			"rpm --nodeps -e rstored && rm -rf /etc/rstored /var/lib/rstored /var/log/rstored",
		},
	} {
		t.Run(kind.name, func(t *testing.T) {
			c := boot(t)
			file := func(version string) string {
				to := "/var/tmp/" + version + "." + kind.name
				c.install(one(t, filepath.Join(packages(t, version),
					strings.ReplaceAll(kind.pattern, "%s", strings.TrimPrefix(version, "v")))), to, 0o644)
				return to
			}
			first, second := file("v1.0.0"), file("v1.1.0")
			c.run(kind.prepare + " && " + kind.install + " " + first + " && systemctl enable --now rstored")
			(&day{container: c}).walk(t)
			c.run(kind.upgrade + " " + second)
			if s := c.run("rstorectl status"); !strings.Contains(s, "v1.1.0") || strings.Contains(s, "degraded") {
				t.Errorf("after the upgrade:\n%s", s)
			}
			c.run("rstorectl get nfs+tcp://127.0.0.1/data/f /tmp/back && cmp /tmp/f /tmp/back")
			c.run(kind.remove)
			if s := c.run("command -v rstored rstorectl; ls -d /etc/rstored /var/lib/rstored 2>/dev/null; pgrep -x rstored; " +
				"true"); s != "" {
				t.Errorf("left over:\n%s", s)
			}
			c.run("cmp /tmp/f /srv/data/f")
		})
	}
}

type day struct{ *container }

// fails runs what has to fail, and returns what it says, which has to contain words.
func (c *day) fails(t *testing.T, script string, words ...string) {
	t.Helper()
	out, err := c.try(script)
	if err == nil {
		t.Errorf("%s: it works", script)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("%s: it does not say %q:\n%s", script, w, out)
		}
	}
}

func (c *day) walk(t *testing.T) {
	// The first export, as docs/install.md has it.
	c.run("mkdir -p /srv/data && chmod 777 /srv/data && rstorectl export add /srv/data && rstorectl doctor")
	c.run("head -c 3M /dev/urandom >/tmp/f && rstorectl put /tmp/f nfs+tcp://127.0.0.1/data/f && cmp /tmp/f /srv/data/f")

	// A mount, by FUSE: the kernel of the host need not have a client of NFS.
	c.run("[ -e /dev/fuse ] || mknod /dev/fuse c 10 229")
	if _, err := c.try("exec 3<>/dev/fuse"); err != nil {
		t.Log("there is no FUSE here: nothing is mounted")
	} else {
		c.run("mount -t rstored nfs+tcp://127.0.0.1/data /mnt && cmp /tmp/f /mnt/f && echo mounted >/mnt/g && umount /mnt")
		c.run("grep mounted /srv/data/g")
	}

	// The audit log in a file, at the place that the shipped configuration names.
	c.run("echo 'audit: file /var/log/rstored/audit.log' >>/etc/rstored/rstored.yaml && rstored config validate " +
		"--config /etc/rstored/rstored.yaml && systemctl restart rstored && grep '\"start\"' /var/log/rstored/audit.log")

	// A wrong configuration: the mistake is named with its line and what was meant, and what was
	// served is served. A restart fails, too, and says the same.
	c.run("cp /etc/rstored/rstored.yaml /tmp/good.yaml && echo 'tcp_listn: [\":2049\"]' >>/etc/rstored/rstored.yaml")
	mistake := []string{"rstored.yaml:", "tcp_listn", "tcp_listen"}
	c.fails(t, "rstored config validate --config /etc/rstored/rstored.yaml", mistake...)
	c.fails(t, "rstorectl reload", mistake...)
	c.fails(t, "systemctl reload rstored")
	c.run("rstorectl get --nfs-version 3 nfs+tcp://127.0.0.1/data/f /tmp/back && cmp /tmp/f /tmp/back")
	c.fails(t, "systemctl restart rstored")
	c.fails(t, "journalctl -u rstored -n 20 -o cat; false", mistake...)
	if s := c.show("rstored", "ExecMainStatus"); s != "78" {
		t.Errorf("the exit code of a wrong configuration is %s", s)
	}
	c.run("cp /tmp/good.yaml /etc/rstored/rstored.yaml && systemctl reset-failed rstored && systemctl start rstored")

	// A full disk: who writes is told which side is full, and the administrator sees it.
	c.run("mkdir -p /srv/small && mount -t tmpfs -o size=8M,mode=777 small /srv/small && rstorectl export add /srv/small")
	c.run("head -c 16M /dev/urandom >/tmp/large")
	c.fails(t, "rstorectl put --nfs-version 3 /tmp/large nfs+tcp://127.0.0.1/small/large", "no space left", "server")
	c.run("dd if=/dev/zero of=/srv/small/rest bs=64k 2>/dev/null; true")
	c.wait("rstorectl status | grep 'small.*is full'")
	c.run("rstorectl doctor | grep 'WARN.*is full'")
	c.run("rm -f /srv/small/*")
	c.wait("! rstorectl status | grep degraded")

	// A disk that is missing after a restart: the others are served, and it as soon as it is there.
	c.run("mkdir -p /srv/disk && mount -t tmpfs disk /srv/disk && mkdir -m 777 /srv/disk/data && " +
		"rstorectl export add /srv/disk/data --pseudo /disk && systemctl stop rstored && umount /srv/disk && " +
		"systemctl start rstored")
	c.run("rstorectl status | grep degraded && rstorectl status | grep 'export /disk: '")
	c.run("rstorectl get --nfs-version 3 nfs+tcp://127.0.0.1/data/f /tmp/back && cmp /tmp/f /tmp/back")
	c.run("mount -t tmpfs disk /srv/disk && mkdir -m 777 /srv/disk/data")
	c.wait("! rstorectl status | grep degraded")
	c.run("rstorectl put --nfs-version 3 /tmp/f nfs+tcp://127.0.0.1/disk/f && cmp /tmp/f /srv/disk/data/f")
	c.run("rstorectl export remove /disk && rstorectl export remove /small && umount /srv/disk /srv/small")
}
