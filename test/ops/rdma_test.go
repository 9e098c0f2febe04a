package ops

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// libraries is a directory with Debian's packages of rdma-core and of what they need, fetched the
// first time.
func libraries(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(cache(t), "libraries-bookworm")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	_ = os.RemoveAll(dir + ".part")
	command(t, "../../deploy/image/libraries", dir+".part")
	if err := os.Rename(dir+".part", dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// repository has apt of a container install from the packages of this host, those of its own
// release having no network to come by.
func repository(c *container, packages ...string) {
	c.t.Helper()
	const at = "/var/tmp/repository"
	var list bytes.Buffer
	for _, p := range packages {
		b, err := os.ReadFile(p)
		if err != nil {
			c.t.Fatal(err)
		}
		// As dpkg-scanpackages writes it.
		name := filepath.Base(p)
		fmt.Fprintf(&list, "%s\nFilename: ./%s\nSize: %d\nSHA256: %x\n\n", command(c.t, "dpkg-deb", "-f", p), name, len(b),
			sha256.Sum256(b))
		c.install(p, filepath.Join(at, name), 0o644)
	}
	c.write(filepath.Join(at, "Packages"), list.String())
	c.run("rm -f /etc/apt/sources.list /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] file:" + at +
		" ./' >/etc/apt/sources.list && apt-get update -q")
}

// TestPackageRDMA installs the package with the programs for RDMA devices beside the other in a
// clean system, as an administrator does by apt, upgrades both and removes it again. The service
// goes on, with its configuration and its state, and listens all the time.
func TestPackageRDMA(t *testing.T) {
	need(t, "systemd-nspawn", "dpkg-deb", "mmdebstrap", "gcc")
	c := boot(t)
	repo, err := filepath.Glob(filepath.Join(libraries(t), "*.deb"))
	if err != nil || len(repo) == 0 {
		t.Fatalf("%q, %v", repo, err)
	}
	out1, out2 := packages(t, "v1.0.0"), packages(t, "v1.1.0")
	one1, both1 := one(t, filepath.Join(out1, "rstored_1.0.0_*.deb")),
		one(t, filepath.Join(out1, "rstored-rdma_1.0.0_*.deb"))
	one2, both2 := one(t, filepath.Join(out2, "rstored_1.1.0_*.deb")),
		one(t, filepath.Join(out2, "rstored-rdma_1.1.0_*.deb"))
	const apt = "DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends "

	// serves is what the service must be after each change, and what must have stayed.
	var pid, key string
	serves := func(c *container, version, exe string) {
		t := c.t
		t.Helper()
		now := c.show("rstored", "MainPID")
		if now == pid || now == "0" {
			t.Errorf("process %s, before %s", now, pid)
		}
		pid = now
		if s := c.run("readlink /proc/" + pid + "/exe"); s != exe {
			t.Errorf("it runs %s, want %s", s, exe)
		}
		if s := c.run("rstorectl status"); !strings.Contains(s, version) {
			t.Errorf("not %s:\n%s", version, s)
		}
		core := exe != "/usr/sbin/rstored"
		for _, p := range []string{"rstored", "rstorectl"} {
			if s := c.run(p + " version"); !strings.HasPrefix(s, p+" "+version+" ") ||
				strings.HasSuffix(s, " rdma-core") != core {
				t.Errorf("version %q", s)
			}
		}
		for _, by := range []string{byRDMA, byTCP} {
			c.run("rstorectl cat --nfs-version 3 " + by + "/f | cmp - /tmp/f")
		}
		if s := c.run("sha256sum /var/lib/rstored/handle.key && cat /etc/rstored/rstored.yaml"); s != key {
			t.Errorf("state or configuration changed:\n%s\nbefore:\n%s", s, key)
		}
		if s := c.run("dpkg --verify | grep -v ' c '; stat -c %U /proc/" + pid +
			"; systemctl is-enabled rstored; systemctl show -P NeedDaemonReload rstored"); s != "rstored\nenabled\nno" {
			t.Errorf("%q", s)
		}
	}

	if ok := t.Run("the static one", func(t *testing.T) {
		c := c.in(t)
		repository(c, append(repo, one1, both1)...)
		c.run(apt + "install rstored && ! dpkg -s libibverbs1 2>/dev/null")
		c.run("mkdir -p /srv/data && chmod 777 /srv/data && head -c 3M /dev/urandom >/tmp/f")
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
		c.run("systemctl reload rstored && rstorectl put /tmp/f " + byTCP + "/f")
		key = c.run("sha256sum /var/lib/rstored/handle.key && cat /etc/rstored/rstored.yaml")
		serves(c, "v1.0.0", "/usr/sbin/rstored")
	}); !ok {
		t.FailNow()
	}

	const rdma = "/usr/lib/rstored/rdma/rstored"
	// load has clients connect all the time, while something changes.
	load := func(t *testing.T, change string) {
		t.Helper()
		c := c.in(t)
		c.run("rm -f /tmp/enough /tmp/n")
		done := make(chan string)
		go func() {
			out, _ := c.try("n=0; while [ ! -e /tmp/enough ]; do (exec 3<>/dev/tcp/127.0.0.1/2049) || echo failed; " +
				"n=$((n+1)); echo $n >/tmp/n; done 2>&1; echo $n times")
			done <- out
		}()
		c.wait("test -s /tmp/n")
		out, err := c.try(change)
		c.run("touch /tmp/enough")
		if s := <-done; strings.Contains(s, "failed") || !strings.Contains(s, "times") {
			t.Errorf("meanwhile: %s", s)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", change, err, out)
		}
	}
	if ok := t.Run("install", func(t *testing.T) {
		c := c.in(t)
		load(t, apt+"install rstored-rdma")
		serves(c, "v1.0.0", rdma)
		c.run("dpkg -s libibverbs1 librdmacm1 ibverbs-providers >/dev/null && ls /etc/libibverbs.d/mlx5.driver")
		c.run("systemd-analyze verify --man=no rstored.service rstored@red.service")
		if s := c.run("systemctl show -P DeviceAllow rstored; systemctl show -P DevicePolicy rstored; systemctl show -P " +
			"LimitMEMLOCK rstored"); !strings.Contains(s, "char-infiniband_verbs rw") ||
			!strings.Contains(s, "/dev/infiniband/rdma_cm rw") || !strings.HasSuffix(s, "closed\ninfinity") {
			t.Errorf("the unit: %s", s)
		}
		// What the program links is there without the package.
		if s := c.run("ldd " + rdma + " || true"); strings.Contains(s, "not found") || strings.Contains(s, "verbs") ||
			strings.Contains(s, "rdmacm") {
			t.Errorf("linked: %s", s)
		}
		if s := c.run("rstorectl device list"); s == "" {
			t.Error("no word of devices")
		}
	}); !ok {
		t.FailNow()
	}

	t.Run("upgrade of both", func(t *testing.T) {
		c := c.in(t)
		repository(c, append(repo, one2, both2)...)
		load(t, apt+"dist-upgrade")
		serves(c, "v1.1.0", rdma)
	})
	t.Run("one cannot go without the other", func(t *testing.T) {
		c := c.in(t)
		if out, err := c.try("dpkg -r rstored"); err == nil {
			t.Errorf("removed: %s", out)
		}
	})
	t.Run("without the libraries", func(t *testing.T) {
		c := c.in(t)
		c.run("dpkg -r --force-depends ibverbs-providers librdmacm1 libibverbs1 && systemctl restart rstored")
		if s := c.run("rstored version"); !strings.Contains(s, " rdma-core\n") || !strings.Contains(s, "libibverbs.so.1") {
			t.Errorf("version %q", s)
		}
		c.run("rstorectl cat --nfs-version 3 " + byRDMA + "/f | cmp - /tmp/f")
		if s := c.run("rstorectl doctor || true"); !strings.Contains(s, "RDMA devices cannot be used") ||
			!strings.Contains(s, "libibverbs1 librdmacm1") {
			t.Errorf("the doctor: %s", s)
		}
		if s := c.run("journalctl -u rstored -o cat -n 50"); !strings.Contains(s,
			"RDMA devices of the kernel cannot be used") || !strings.Contains(s, "libibverbs.so.1") {
			t.Errorf("the journal: %s", s)
		}
		c.run(apt + "install -f libibverbs1 librdmacm1 ibverbs-providers && systemctl restart rstored")
	})
	t.Run("back", func(t *testing.T) {
		c := c.in(t)
		load(t, apt+"remove rstored-rdma")
		serves(c, "v1.1.0", "/usr/sbin/rstored")
		if s := c.run(
			"ls -d /usr/lib/rstored/rdma /usr/lib/systemd/system/rstored*.service.d/rdma.conf 2>/dev/null; true"); s != "" {
			t.Errorf("left over: %s", s)
		}
	})
	t.Run("and there again", func(t *testing.T) {
		c := c.in(t)
		c.run("systemctl stop rstored && " + apt + "install rstored-rdma")
		if s, _ := c.try("systemctl is-active rstored"); s != "inactive" {
			t.Errorf("a service that was stopped is %s", s)
		}
		c.run("systemctl start rstored")
		serves(c, "v1.1.0", rdma)
		c.run(apt + "remove rstored rstored-rdma")
		if s, _ := c.try("systemctl is-active rstored; command -v rstored; pgrep -x rstored; true"); s != "inactive" {
			t.Errorf("after the removal: %q", s)
		}
		c.run("test -e /etc/rstored/rstored.yaml -a -e /var/lib/rstored/handle.key && cmp /tmp/f /srv/data/f")
	})
}

// TestRPMRDMA looks at the RPM package of them with rpm, and runs its scripts in a clean system.
// The system is Debian, so that dependencies are not looked at.
func TestRPMRDMA(t *testing.T) {
	need(t, "systemd-nspawn", "rpm", "gcc")
	out := packages(t, "v1.0.0")
	first, second := one(t, filepath.Join(out, "rstored-1.0.0-1.*.rpm")),
		one(t, filepath.Join(out, "rstored-rdma-1.0.0-1.*.rpm"))
	command(t, "rpm", "-K", "--nosignature", second)
	needs := command(t, "rpm", "-qpR", second) + "\n"
	for _, n := range []string{"rstored = 1.0.0\n", "libibverbs\n", "librdmacm\n", "glibc >= 2."} {
		if !strings.Contains(needs, n) {
			t.Errorf("it does not need %s:\n%s", n, needs)
		}
	}
	for _, tag := range []string{"POSTIN", "POSTUN"} {
		cmd := exec.Command("sh", "-n")
		cmd.Stdin = strings.NewReader(command(t, "rpm", "-qp", "--qf", "%{"+tag+"}", second))
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", tag, err, b)
		}
	}
	c := boot(t)
	c.install(first, "/var/tmp/1.rpm", 0o644)
	c.install(second, "/var/tmp/2.rpm", 0o644)
	c.run("mkdir -p /var/lib/rpm && rpm --initdb && rpm --nodeps -i /var/tmp/1.rpm")
	c.run("mkdir -p /srv/data && chmod 777 /srv/data && head -c 1M /dev/urandom >/tmp/f")
	c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
	c.run("systemctl enable --now rstored && rstorectl put /tmp/f " + byRDMA + "/f")
	for _, s := range []struct{ do, exe string }{
		{"-i /var/tmp/2.rpm", "/usr/lib/rstored/rdma/rstored"}, {"-e rstored-rdma", "/usr/sbin/rstored"},
	} {
		pid := c.show("rstored", "MainPID")
		c.run("rpm --nodeps " + s.do +
			" && rpm -Va --nodeps 'rstored*' | grep -v '  c ' && exit 1; rstorectl cat --nfs-version 3 " + byRDMA +
			"/f | cmp - /tmp/f")
		now := c.show("rstored", "MainPID")
		if exe := c.run("readlink /proc/" + now + "/exe"); now == pid || exe != s.exe {
			t.Errorf("rpm %s: process %s, %s before, of %s", s.do, now, pid, exe)
		}
	}
}
