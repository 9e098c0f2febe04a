package ops

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// ansibleRole is where the role is.
const ansibleRole = deploy + "/ansible/roles/rstored"

// TestAnsibleLint: ansible-lint has nothing to say.
func TestAnsibleLint(t *testing.T) {
	need(t, "ansible-lint", "ansible-playbook")
	dir := t.TempDir()
	command(t, "cp", "-r", filepath.Join(deploy, "ansible"), dir)
	cmd := exec.Command("ansible-lint", "--offline", "--strict", "--profile=production", "--project-dir", ".", "site.yml",
		"roles/rstored")
	cmd.Dir = filepath.Join(dir, "ansible")
	cmd.Env = append(os.Environ(), "HOME="+dir, "ANSIBLE_ROLES_PATH="+filepath.Join(dir, "ansible", "roles"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

var recap = regexp.MustCompile(`ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)`)

// TestAnsible has the role install, configure, change and remove rstored in a clean system. What
// has been done is not done again.
func TestAnsible(t *testing.T) {
	need(t, "ansible-playbook", "systemd-nspawn")
	dir := t.TempDir()
	c := boot(t)
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	inventory := write("inventory",
		"[storage]\nnode ansible_connection=nsenter nsenter_pid="+c.lead+" ansible_python_interpreter=/usr/bin/python3\n")
	play := func(t *testing.T, vars string, flags ...string) (changed int, out string, err error) {
		t.Helper()
		book := write("book.yml", fmt.Sprintf("- hosts: storage\n  gather_facts: false\n  roles:\n    - role: rstored\n   "+
			"   vars:\n%s", vars))
		cmd := exec.Command("ansible-playbook", append(flags, "-i", inventory, book)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "ANSIBLE_NOCOLOR=1",
			"ANSIBLE_ROLES_PATH="+filepath.Join(here, filepath.Dir(ansibleRole)),
			"ANSIBLE_CONNECTION_PLUGINS="+filepath.Join(here, "ansible"), "ANSIBLE_PIPELINING=1")
		b, err := cmd.CombinedOutput()
		m := recap.FindSubmatch(b)
		if m == nil {
			t.Fatalf("%v\n%s", err, b)
		}
		changed, _ = strconv.Atoi(string(m[2]))
		return changed, string(b), err
	}
	// twice plays: the first time something changes, the second time nothing.
	twice := func(t *testing.T, vars string) {
		t.Helper()
		n, out, err := play(t, vars)
		if err != nil || n == 0 {
			t.Fatalf("%d changes, %v\n%s", n, err, out)
		}
		if n, out, err = play(t, vars); err != nil || n != 0 {
			t.Fatalf("again: %d changes, %v\n%s", n, err, out)
		}
	}
	vars := func(squash, more string) string {
		return `        rstored_package: ` + one(t, filepath.Join(packages(t, "v1.0.0"), "rstored_1.0.0_*.deb")) + `
        rstored_directories: [{path: /srv/data, mode: "0777"}]
        rstored_exports:
          - path: /srv/data
            pseudo: /data
            clients: [{cidr: "*", squash: ` + squash + `}]
        rstored_config:
          rdma_listen: ["127.0.0.1:20049"]
          tcp_listen: ["127.0.0.1:2049"]
` + more
	}

	if ok := t.Run("present", func(t *testing.T) {
		twice(t, vars("no_root_squash", ""))
		c := c.in(t)
		c.run("systemctl is-enabled rstored && systemctl is-active rstored")
		c.run("head -c 1M /dev/urandom >/tmp/f && chmod 644 /tmp/f")
		for _, to := range []string{byRDMA, byTCP} {
			c.run("rstorectl put /tmp/f " + to + "/f && rstorectl cat " + to + "/f | cmp - /tmp/f && cmp /tmp/f /srv/data/f")
		}
		if s := c.run("stat -c '%U %a' /srv/data/f"); s != "root 644" {
			t.Errorf("what a client has made: %s", s)
		}
	}); !ok {
		t.FailNow()
	}
	t.Run("change", func(t *testing.T) {
		c := c.in(t)
		pid := c.show("rstored", "MainPID")
		if n, out, err := play(t, vars("all_squash", ""), "--check", "--diff"); err != nil || n == 0 ||
			!strings.Contains(out, "+    squash: all_squash") {
			t.Errorf("a check: %d changes, %v\n%s", n, err, out)
		}
		if s := c.run("rstorectl export list -o json"); strings.Contains(s, "all_squash") {
			t.Errorf("a check has changed something: %s", s)
		}
		twice(t, vars("all_squash", ""))
		if now := c.show("rstored", "MainPID"); now != pid {
			t.Errorf("process %s after a reload, %s before", now, pid)
		}
		if s := c.run("rstorectl put --nfs-version 3 /tmp/f " + byTCP +
			"/nobodys && stat -c %u /srv/data/nobodys"); !strings.HasSuffix(s, "65534") {
			t.Errorf("the new rule does not hold: %s", s)
		}
	})
	t.Run("devices", func(t *testing.T) {
		c := c.in(t)
		repo, err := filepath.Glob(filepath.Join(libraries(t), "*.deb"))
		if err != nil || len(repo) == 0 {
			t.Fatalf("%q, %v", repo, err)
		}
		repository(c, repo...)
		rdma := "        rstored_rdma: true\n"
		if _, out, err := play(t, vars("all_squash", rdma)); err == nil ||
			!strings.Contains(out, "both packages are given or none") {
			t.Errorf("one package alone: %v\n%s", err, out)
		}
		twice(t, vars("all_squash", rdma+"        rstored_rdma_package: "+
			one(t, filepath.Join(packages(t, "v1.0.0"), "rstored-rdma_1.0.0_*.deb"))+"\n"))
		if s := c.run("rstored version; readlink /proc/$(systemctl show -P MainPID rstored)/exe"); !strings.HasSuffix(s,
			" rdma-core\n/usr/lib/rstored/rdma/rstored") {
			t.Errorf("%s", s)
		}
	})
	t.Run("mistake", func(t *testing.T) {
		c := c.in(t)
		before := c.run("sha256sum /etc/rstored/rstored.yaml")
		if _, out, err := play(t, vars("all_squash", "          no_such_key: 1\n")); err == nil ||
			!strings.Contains(out, "no_such_key") {
			t.Errorf("a bad configuration: %v\n%s", err, out)
		}
		if c.run("sha256sum /etc/rstored/rstored.yaml") != before {
			t.Error("a bad configuration is in place")
		}
		c.run("rstorectl cat --nfs-version 3 " + byRDMA + "/f | cmp - /tmp/f")
	})
	t.Run("disabled", func(t *testing.T) {
		c := c.in(t)
		if n, out, err := play(t, vars("all_squash", "        rstored_enabled: false\n")); err != nil || n == 0 {
			t.Fatalf("%d changes, %v\n%s", n, err, out)
		}
		if s, _ := c.try("systemctl is-enabled rstored; systemctl is-active rstored"); s != "disabled\ninactive" {
			t.Errorf("%q", s)
		}
	})
	t.Run("absent", func(t *testing.T) {
		c := c.in(t)
		if n, out, err := play(t, "        rstored_state: absent\n"); err != nil || n == 0 {
			t.Fatalf("%d changes, %v\n%s", n, err, out)
		}
		if s, _ := c.try("command -v rstored; pgrep -x rstored; ls /var/cache/rstored*.deb"); strings.Contains(s, "/usr/") ||
			strings.Contains(s, ".deb\n") {
			t.Errorf("left: %s", s)
		}
		c.run("test -e /etc/rstored/rstored.yaml -a -e /var/lib/rstored/handle.key && cmp /tmp/f /srv/data/f")
		twice(t, "        rstored_state: absent\n        rstored_purge: true\n")
		if s := c.run("ls -d /etc/rstored /var/lib/rstored 2>/dev/null; true"); s != "" {
			t.Errorf("left after a purge: %s", s)
		}
		c.run("cmp /tmp/f /srv/data/f")
	})
}
