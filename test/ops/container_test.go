package ops

import (
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// container is a booted system of its own: Debian with systemd as its first process, and
// a network that only has loopback.
type container struct {
	t    *testing.T
	dir  string
	lead string // process id of its first process, here
}

// root of the repository.
const root = "../.."

// boot starts a container from a fresh Debian root, which goes away with the test.
func boot(t *testing.T) *container {
	t.Helper()
	need(t, "systemd-nspawn", "mmdebstrap", "nsenter")
	dir := t.TempDir()
	merged := filepath.Join(dir, "root")
	for _, d := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "mount", "-t", "overlay", "overlay", "-o",
		fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", debian(t), dir, dir), merged)
	t.Cleanup(func() { command(t, "umount", merged) })

	log, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("systemd-nspawn", "-D", merged, "--register=no", "--keep-unit", "--private-network",
		"--capability=CAP_NET_ADMIN", "--boot", "--console=pipe")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting systemd-nspawn (Debian: systemd-container): %v", err)
	}
	c := &container{t: t, dir: merged}
	t.Cleanup(func() {
		if c.lead != "" {
			_, _ = c.in(t).try("systemctl poweroff --force --force")
		}
		stuck := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		stuck.Stop()
		if t.Failed() {
			if b, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("console:\n%s", b)
			}
		}
	})
	for deadline := time.Now().Add(30 * time.Second); c.lead == ""; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the container has no first process")
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if err != nil {
			continue
		}
		for child := range strings.FieldsSeq(string(b)) { // among them, for a moment, who prepares it
			if name, err := os.ReadFile("/proc/" + child + "/comm"); err == nil && string(name) == "systemd\n" {
				c.lead = child
			}
		}
	}
	c.wait("systemctl is-system-running --wait | grep -qE 'running|degraded'")
	c.run("ip link set lo up")
	return c
}

// in is the container for a part of a test.
func (c *container) in(t *testing.T) *container { return &container{t: t, dir: c.dir, lead: c.lead} }

// try runs a script by bash inside, and returns what it prints.
func (c *container) try(script string) (string, error) {
	cmd := exec.Command("nsenter", "-t", c.lead, "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "/bin/bash", "-c", script)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run is try for what has to work.
func (c *container) run(script string) string {
	c.t.Helper()
	out, err := c.try(script)
	if err != nil {
		journal, _ := c.try("journalctl -n 40 --no-pager -o cat")
		c.t.Fatalf("%s: %v\n%s\njournal:\n%s", script, err, out, journal)
	}
	return out
}

// wait runs a script until it succeeds.
func (c *container) wait(script string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out, err := c.try(script)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
}

// write makes a file inside.
func (c *container) write(name, text string) {
	c.t.Helper()
	at := filepath.Join(c.dir, name)
	err := os.MkdirAll(filepath.Dir(at), 0o755)
	if err == nil {
		err = os.WriteFile(at, []byte(text), 0o644)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// install copies a file of the host inside.
func (c *container) install(from, to string, mode os.FileMode) {
	c.t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(to, string(b))
	if err := os.Chmod(filepath.Join(c.dir, to), mode); err != nil {
		c.t.Fatal(err)
	}
}

// files are the names of all files inside, except for what the system and the tests themselves
// write.
func (c *container) files() []string {
	c.t.Helper()
	return strings.Split(c.run("find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp "+
		"-o -path /root -o -path /srv -o -path /var/tmp -o -path /var/cache -o -path /var/log -o -path /var/lib/rpm "+
		"-o -path /var/lib/dnf -o -path /var/lib/dpkg -o -path /var/lib/systemd \\) -prune -o -print | LC_ALL=C sort"), "\n")
}

// leftOver are the files inside that were not there before.
func (c *container) leftOver(before []string) (out []string) {
	c.t.Helper()
	was := make(map[string]bool, len(before))
	for _, f := range before {
		was[f] = true
	}
	for _, f := range c.files() {
		if !was[f] {
			out = append(out, f)
		}
	}
	return out
}

// command runs a program of the host that has to work.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// cache is where what takes long to make is kept for the next run.
func cache(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("RSTORED_OPS_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(base, "rstored-ops")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// debian is a root with Debian and systemd, and what Ansible and RPM packages need there, made by
// mmdebstrap the first time.
func debian(t *testing.T) string {
	t.Helper()
	const programs = "systemd,systemd-sysv,dbus,iproute2,procps,ca-certificates,python3,python3-apt,rpm,dnf"
	dir := filepath.Join(cache(t), fmt.Sprintf("debian-%08x", crc32.ChecksumIEEE([]byte(programs))))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	_ = os.RemoveAll(dir + ".part")
	command(t, "mmdebstrap", "--variant=minbase", "--include="+programs, "bookworm", dir+".part")
	if err := os.Rename(dir+".part", dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

var built string

// binaries is a directory with rstored and rstorectl, built once.
func binaries(t *testing.T) string {
	t.Helper()
	if built == "" {
		dir, err := os.MkdirTemp(cache(t), "bin")
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/rstored", "./cmd/rstorectl")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		built, temporary = dir, append(temporary, dir)
	}
	return built
}

// temporary is what is removed in the end.
var temporary []string

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range temporary {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}
