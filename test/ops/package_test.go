package ops

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// packages is a directory with what make packages makes of a version for this architecture, built
// once, with further variables.
func packages(t *testing.T, version string, more ...string) string {
	t.Helper()
	if dir := packaged[version]; dir != "" {
		return dir
	}
	dir, err := os.MkdirTemp(cache(t), "packages")
	if err != nil {
		t.Fatal(err)
	}
	temporary = append(temporary, dir)
	cmd := exec.Command("make", append([]string{
		"packages", "VERSION=" + version, "OUT=" + dir, "ARCHES=" + runtime.GOARCH,
		"FORMATS=deb rpm", "RDMA=yes",
	}, more...)...)
	cmd.Dir = root
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make packages: %v\n%s", err, b)
	}
	packaged[version] = dir
	return dir
}

var packaged = map[string]string{}

// one is the only file that matches a pattern.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// TestPackage installs the Debian package in a clean system, has it serve, upgrades it under load,
// removes and purges it.
func TestPackage(t *testing.T) {
	need(t, "systemd-nspawn", "dpkg-deb")
	c := boot(t)
	deb := func(version string) string {
		to := "/var/tmp/rstored_" + version + ".deb"
		c.install(one(t, filepath.Join(packages(t, version), "rstored_"+strings.TrimPrefix(version, "v")+"_*.deb")), to,
			0o644)
		return to
	}
	first, second := deb("v1.0.0"), deb("v1.1.0")
	before := c.files()
	if ok := t.Run("install", func(t *testing.T) {
		c := c.in(t)
		c.run("dpkg -i " + first)
		if out := c.run("dpkg --verify rstored"); out != "" {
			t.Errorf("what is installed is not what the package says:\n%s", out)
		}
		c.run("systemctl is-enabled rstored && systemctl is-active rstored && rstored config validate --config " +
			"/etc/rstored/rstored.yaml")
		if s := c.run("rstorectl export list"); strings.Contains(s, "/") {
			t.Errorf("something is exported:\n%s", s)
		}
		if s := c.run("rstored version"); !strings.HasPrefix(s, "rstored v1.0.0 ") {
			t.Errorf("version %q", s)
		}
		c.run("systemd-analyze verify --man=no rstored.service rstored@red.service rstored.socket rstored-snapshots.timer")
		c.run("for f in /usr/share/bash-completion/completions/rstore*; do bash -n $f || exit 1; done; zcat " +
			"/usr/share/doc/rstored/licenses.txt.gz | grep -c '^== github.com/spf13/cobra v'")
		if s := c.run("find / -xdev -lname '*/usr/local/*' -o -path /usr/local/'*' -type f; grep -rl usr/local " +
			"/usr/lib/systemd/system/rstored*; true"); s != "" {
			t.Errorf("/usr/local is not for packages: %s", s)
		}
	}); !ok {
		t.FailNow()
	}

	t.Run("serve", func(t *testing.T) {
		c := c.in(t)
		c.run("mkdir -p /srv/data && chmod 777 /srv/data")
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
		c.run("systemctl reload rstored")
		c.run("systemctl enable --now rstored")
		c.run("head -c 3M /dev/urandom >/tmp/f")
		for _, to := range []string{byRDMA, byTCP} {
			c.run("rstorectl put /tmp/f " + to + "/f && rstorectl get " + to +
				"/f /tmp/back && cmp /tmp/f /tmp/back && cmp /tmp/f /srv/data/f && rm /tmp/back")
		}
		if uid := c.run("stat -c %U /proc/$(systemctl show -P MainPID rstored)"); uid != "rstored" {
			t.Errorf("it runs as %s", uid)
		}
	})

	t.Run("upgrade", func(t *testing.T) {
		c := c.in(t)
		pid, key := c.show("rstored", "MainPID"), c.run("sha256sum /var/lib/rstored/handle.key")
		// Clients that connect all the time, and clients in the middle of something: of version 3, as
		// those of version 4 that open something new wait for the grace period.
		// A request to connect by RDMA that comes before the new process listens is repeated.
		scripts := []string{
			`(exec 3<>/dev/tcp/127.0.0.1/2049) 2>/dev/null`,
			"rstorectl cat --nfs-version 3 " + byTCP + "/f | cmp - /tmp/f",
			"rstorectl cat --nfs-version 3 " + byRDMA + "/f | cmp - /tmp/f",
		}
		done := make(chan string, len(scripts))
		for i, s := range scripts {
			go func() {
				out, _ := c.try("n=0; while [ ! -e /tmp/enough ]; do " + s + " || echo failed; n=$((n+1)); echo $n >/tmp/n" +
					string(rune('0'+i)) + "; done; echo $n times")
				done <- out
			}()
		}
		c.wait("test -s /tmp/n0 -a -s /tmp/n1 -a -s /tmp/n2")
		c.run("dpkg -i " + second)
		n := c.run("cat /tmp/n2")
		c.wait("test $(cat /tmp/n2) -gt $((" + n + " + 1))")
		c.run("touch /tmp/enough")
		for range scripts {
			if s := <-done; strings.Contains(s, "failed") || !strings.Contains(s, "times") {
				t.Errorf("during the upgrade: %s", s)
			} else {
				t.Log(s)
			}
		}
		if now := c.show("rstored", "MainPID"); now == pid {
			t.Error("the old program still serves")
		}
		if s := c.run("rstorectl status"); !strings.Contains(s, "v1.1.0") {
			t.Errorf("after the upgrade:\n%s", s)
		}
		if s := c.run("sha256sum /var/lib/rstored/handle.key; journalctl -u rstored -o cat | grep -c 'listening on an " +
			"inherited socket'"); !strings.HasPrefix(s, key) {
			t.Errorf("state was lost: %s, was %s", s, key)
		}
		if s := c.run("cat /etc/rstored/rstored.yaml"); s != strings.TrimSpace(config("/srv/data", "127.0.0.1")) {
			t.Errorf("the configuration was replaced:\n%s", s)
		}
	})

	t.Run("an upgrade respects the administrator", func(t *testing.T) {
		c := c.in(t)
		c.run("systemctl disable --now rstored && dpkg -i " + second)
		if s, _ := c.try("systemctl is-enabled rstored; systemctl is-active rstored"); s != "disabled\ninactive" {
			t.Errorf("a service that was turned off is %q", s)
		}
		c.run("systemctl enable --now rstored && rstorectl cat --nfs-version 3 " + byRDMA + "/f | cmp - /tmp/f")
	})

	t.Run("instances", func(t *testing.T) {
		c := c.in(t)
		c.run("mkdir -p /srv/red && chmod 777 /srv/red")
		c.write("/etc/rstored/red.yaml", config("/srv/red", "127.0.0.2"))
		c.run("systemctl start rstored@red")
		pid := c.show("rstored@red", "MainPID")
		c.run("dpkg -i " + second + " && rstorectl put --nfs-version 3 /tmp/f nfs+tcp://127.0.0.2/data/f")
		if now := c.show("rstored@red", "MainPID"); now == pid || now == "0" {
			t.Errorf("process %s after the upgrade, %s before", now, pid)
		}
	})

	t.Run("downgrade and reinstall", func(t *testing.T) {
		c := c.in(t)
		key := c.run("sha256sum /var/lib/rstored/handle.key")
		for _, deb := range []string{first, first, second} {
			c.run("dpkg -i " + deb + " && rstorectl cat --nfs-version 3 " + byRDMA + "/f | cmp - /tmp/f")
			if now := c.run("sha256sum /var/lib/rstored/handle.key"); now != key {
				t.Errorf("%s: another state", deb)
			}
		}
		if s := c.run("rstorectl status"); !strings.Contains(s, "v1.1.0") {
			t.Errorf("after the last one:\n%s", s)
		}
	})

	t.Run("remove", func(t *testing.T) {
		c := c.in(t)
		// An applied file, whose history is state too.
		c.run("rstorectl export add /srv/red && rstorectl apply --configuration --allow-disruption")
		c.run("printf 'exports:\n- path: /srv/data\n  pseudo: /data\n  clients: [{cidr: \"*\", squash: no_root_squash}]\n' " +
			">/tmp/applied.yaml && rstorectl apply --allow-disruption /tmp/applied.yaml && test -d /var/lib/rstored/history")
		// What is not the daemon's own, where its state is.
		c.run("mkdir /var/lib/rstored-mine && echo mine >/var/lib/rstored-mine/data && echo mine >/var/lib/rstored-red/data")
		c.run("dpkg -r rstored")
		if s, _ := c.try(
			"systemctl is-active rstored rstored@red; command -v rstored; pgrep -x rstored; true"); s != "inactive\ninactive" {
			t.Errorf("after the removal: %q", s)
		}
		c.run("test -e /etc/rstored/rstored.yaml -a -e /var/lib/rstored/handle.key && cmp /tmp/f /srv/data/f")
		c.run("dpkg -i " + second + " && rstorectl cat --nfs-version 3 " + byRDMA + "/f | cmp - /tmp/f && dpkg -r rstored")
	})

	t.Run("purge", func(t *testing.T) {
		c := c.in(t)
		c.run("dpkg -P rstored")
		if s := c.run("ls -d /var/lib/rstored /usr/lib/systemd/system/rstored* /etc/systemd/system/*/rstored* " +
			"/usr/share/*/rstored /etc/ufw/applications.d/rstored /etc/rstored/rstored.yaml 2>/dev/null; true"); s != "" {
			t.Errorf("left over: %s", s)
		}
		if s := c.run(
			"cd /var/lib && find rstored-* -type f; ls /etc/rstored"); s != "rstored-mine/data\nrstored-red/data\nred.yaml" {
			t.Errorf("what is not the package's own: %q", s)
		}
		c.run("cmp /tmp/f /srv/data/f && cmp /tmp/f /srv/red/f")
		// That, and what systemd made for the instance and the new user.
		own := regexp.MustCompile(`^/etc/rstored(/red\.yaml)?$|^/var/lib/rstored-(mine|red)(/data)?$|^/etc/(sub)?[ug]id-?$|` +
			`^/etc/(passwd|group|shadow|gshadow)-$`)
		for _, f := range c.leftOver(before) {
			if !own.MatchString(f) {
				t.Errorf("left over: %s", f)
			}
		}
	})
}

// TestSource is the way of docs/install.md without a package: make install, and the three commands
// that follow, in a clean system.
func TestSource(t *testing.T) {
	need(t, "systemd-nspawn")
	c := boot(t)
	if out, err := exec.Command("make", "-C", root, "install", "DESTDIR="+c.dir).CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	c.run("systemd-sysusers && systemctl daemon-reload && id rstored")
	c.run("mkdir -p /srv/data && chmod 777 /srv/data && rstored config validate --config /etc/rstored/rstored.yaml")
	c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
	c.run("systemctl enable --now rstored && systemd-analyze verify --man=no rstored.service rstored@red.service " +
		"rstored.socket")
	c.run("head -c 3M /dev/urandom >/tmp/f")
	for _, to := range []string{byRDMA, byTCP} {
		c.run("rstorectl put /tmp/f " + to + "/f && rstorectl get " + to +
			"/f /tmp/back && cmp /tmp/f /tmp/back && cmp /tmp/f /srv/data/f && rm /tmp/back")
	}
	if uid := c.run("stat -c %U /proc/$(systemctl show -P MainPID rstored)"); uid != "rstored" {
		t.Errorf("it runs as %s", uid)
	}
	c.run("rstorectl doctor | tee /dev/stderr | grep -c ^OK")
	c.run("test -s /usr/local/share/man/man8/rstored.8")
	// Again, as an upgrade: what the administrator wrote stays.
	if out, err := exec.Command("make", "-C", root, "install", "DESTDIR="+c.dir).CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	c.run("systemctl restart rstored && rstorectl cat --nfs-version 3 " + byTCP + "/f | cmp - /tmp/f")
}

// TestFirewall: the service of firewalld and the profile of ufw open the same ports.
func TestFirewall(t *testing.T) {
	var service struct {
		Ports []struct {
			Protocol string `xml:"protocol,attr"`
			Port     string `xml:"port,attr"`
		} `xml:"port"`
	}
	b, err := os.ReadFile(filepath.Join(deploy, "firewall", "firewalld.xml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(b, &service); err != nil {
		t.Fatal(err)
	}
	var ports []string
	for _, p := range service.Ports {
		ports = append(ports, p.Port+"/"+p.Protocol)
	}
	b, err = os.ReadFile(filepath.Join(deploy, "firewall", "ufw"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "ports=" + strings.Join(ports, "|") + "\n"; len(ports) == 0 || !strings.Contains(string(b), want) {
		t.Errorf("the profile of ufw has no line %q:\n%s", want, b)
	}
}
