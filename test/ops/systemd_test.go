package ops

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/keytab"
)

// unitFiles installs the binaries and units as a package does, but for the paths of make install.
func unitFiles(t *testing.T, c *container) {
	t.Helper()
	bin := binaries(t)
	c.install(filepath.Join(bin, "rstored"), "/usr/local/sbin/rstored", 0o755)
	c.install(filepath.Join(bin, "rstorectl"), "/usr/local/bin/rstorectl", 0o755)
	for _, u := range []string{
		"rstored.service", "rstored@.service", "rstored.socket", "rstored-snapshots.service", "rstored-snapshots.timer",
	} {
		c.install(filepath.Join(root, "systemd", u), "/etc/systemd/system/"+u, 0o644)
	}
	c.install(filepath.Join(root, "systemd", "rstored.sysusers.conf"), "/usr/lib/sysusers.d/rstored.conf", 0o644)
	c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
	c.run("systemd-sysusers && mkdir -p /srv/data /srv/red && chmod 777 /srv/data /srv/red && systemctl daemon-reload")
}

func config(dir, addr string) string {
	return fmt.Sprintf(`exports:
  - path: %s
    pseudo: /data
    clients: [{cidr: "*", squash: no_root_squash}]
rdma_listen: ["%s:20049"]
tcp_listen: ["%s:2049"]
`, dir, addr, addr)
}

const (
	byRDMA = "nfs+rdma://127.0.0.1/data"
	byTCP  = "nfs+tcp://127.0.0.1/data"
)

// show is a property of a unit.
func (c *container) show(unit, property string) string {
	c.t.Helper()
	return c.run("systemctl show -P " + property + " " + unit)
}

// TestSystemd has a real systemd start, reload, restart, lose, watch and stop the service.
func TestSystemd(t *testing.T) {
	c := boot(t)
	unitFiles(t, c)
	c.run("systemd-analyze verify --man=no rstored.service rstored@red.service rstored.socket rstored-snapshots.timer")

	t.Run("start", func(t *testing.T) {
		c := c.in(t)
		c.run("systemctl start rstored")
		if s := c.show("rstored", "StatusText"); !strings.HasPrefix(s, "serving 1 exports on 2 ports") {
			t.Errorf("status %q", s)
		}
		if uid := c.run("stat -c %U /proc/$(systemctl show -P MainPID rstored)"); uid != "rstored" {
			t.Errorf("it runs as %s", uid)
		}
		// What clients make is theirs, though the daemon is not root.
		c.run("echo hello >/tmp/f && rstorectl put /tmp/f " + byRDMA + "/f")
		if got := c.run("stat -c '%u %a' /srv/data/f && rstorectl cat " + byTCP + "/f"); got != "0 644\nhello" {
			t.Errorf("the file: %q", got)
		}
	})

	t.Run("reload", func(t *testing.T) {
		c := c.in(t)
		pid := c.show("rstored", "MainPID")
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1")+"log_level: debug\n")
		c.run("systemctl reload rstored")
		if s := c.run("rstorectl status"); !strings.Contains(s, "debug") {
			t.Errorf("after the reload:\n%s", s)
		}
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1")+"no_such_key: 1\n")
		if out, err := c.try("systemctl reload rstored"); err == nil {
			t.Errorf("a bad configuration was taken:\n%s", out)
		}
		if out := c.run("journalctl -u rstored -o cat"); !strings.Contains(out, "no_such_key") {
			t.Errorf("the journal does not say what is wrong:\n%s", out)
		}
		c.run("rstorectl cat " + byRDMA + "/f")
		if now := c.show("rstored", "MainPID"); now != pid {
			t.Errorf("another process serves: %s, was %s", now, pid)
		}
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
		c.run("systemctl reload rstored")
	})

	t.Run("keytab as credential", func(t *testing.T) {
		c := c.in(t)
		keys := keytab.New()
		err := keys.AddEntry("nfs/server.example.org", "EXAMPLE.ORG", "secret", time.Now(), 1,
			etypeID.AES256_CTS_HMAC_SHA1_96)
		b, bad := keys.Marshal()
		file := filepath.Join(t.TempDir(), "keytab")
		if err := errors.Join(err, bad, os.WriteFile(file, b, 0o600)); err != nil {
			t.Fatal(err)
		}
		c.install(file, "/etc/rstored/keytab", 0o600) // of root: the service could not read it
		c.run("mkdir -p /etc/systemd/system/rstored.service.d")
		const dropIn = "/etc/systemd/system/rstored.service.d/keytab.conf"
		c.write(dropIn, "[Service]\nLoadCredential=keytab:/etc/rstored/keytab\n")
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1")+
			"kerberos:\n  keytab: /run/credentials/rstored.service/keytab\n")
		c.run("systemctl daemon-reload && systemctl restart rstored")
		log := c.run("journalctl -u rstored -o cat")
		if !strings.Contains(log, "keytab loaded") || strings.Contains(log, "others can read the keytab") ||
			strings.Contains(log, "no client can use Kerberos") {
			t.Errorf("the log:\n%s", log)
		}
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
		c.run("rm " + dropIn + " && systemctl daemon-reload && systemctl restart rstored")
	})

	t.Run("reload with other addresses", func(t *testing.T) {
		c := c.in(t)
		for range 5 {
			for _, addr := range []string{"", "127.0.0.1"} { // all, and one of them
				c.write("/etc/rstored/rstored.yaml", config("/srv/data", addr))
				c.run("systemctl reload rstored && rstorectl cat " + byRDMA + "/f && rstorectl cat " + byTCP + "/f")
			}
		}
	})

	t.Run("restart", func(t *testing.T) {
		c := c.in(t)
		// Whoever connects while there is no process waits; nobody is refused.
		out := make(chan string, 1)
		go func() {
			s, _ := c.try(`n=0; while [ ! -e /tmp/enough ]; do
				(exec 3<>/dev/tcp/127.0.0.1/2049) 2>/dev/null || echo refused
				n=$((n+1)); done; echo $n attempts`)
			out <- s
		}()
		for range 3 {
			c.run("systemctl restart rstored && rstorectl cat " + byTCP + "/f")
		}
		c.run("touch /tmp/enough")
		if s := <-out; strings.Contains(s, "refused") || !strings.Contains(s, "attempts") {
			t.Errorf("during restarts: %s", s)
		} else {
			t.Log(s)
		}
		if n := c.show("rstored", "NFileDescriptorStore"); n != "2" {
			t.Errorf("%s descriptors are kept, want 2: TCP and RDMA", n)
		}
	})

	t.Run("restart with other addresses", func(t *testing.T) {
		c := c.in(t)
		for range 3 {
			for _, addr := range []string{"", "127.0.0.1"} { // all, and one of them, which the kept socket is in the way of
				c.write("/etc/rstored/rstored.yaml", config("/srv/data", addr))
				c.run("systemctl reset-failed rstored") // so many restarts are too many for a manager
				c.run("systemctl restart rstored && rstorectl cat " + byRDMA + "/f && rstorectl cat " + byTCP + "/f")
			}
		}
		if n := c.show("rstored", "NRestarts"); n != "0" {
			t.Errorf("%s starts failed", n)
		}
		c.wait(`[ "$(systemctl show -P NFileDescriptorStore rstored)" = 2 ]`)
	})

	t.Run("crash", func(t *testing.T) {
		c := c.in(t)
		c.run("kill -9 $(systemctl show -P MainPID rstored)")
		c.wait("systemctl is-active -q rstored && rstorectl cat " + byRDMA + "/f")
		if n := c.show("rstored", "NRestarts"); n != "1" {
			t.Errorf("%s restarts", n)
		}
		if out := c.run("journalctl -u rstored -o cat"); !strings.Contains(out, "listening on an inherited socket") {
			t.Errorf("the sockets were not kept:\n%s", out)
		}
	})

	t.Run("bad configuration", func(t *testing.T) {
		c := c.in(t)
		c.write("/etc/rstored/rstored.yaml", "no_such_key: 1\n")
		c.run("systemctl reset-failed rstored") // the restarts of before do not count
		if out, err := c.try("systemctl restart rstored"); err == nil {
			t.Errorf("it started:\n%s", out)
		}
		if s, out := c.show("rstored", "ActiveState"),
			c.run("journalctl -u rstored -o cat | tail"); s != "failed" || !strings.Contains(out, "status=78/CONFIG") {
			t.Errorf("%s; a bad configuration is not tried again:\n%s", s, out)
		}
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
		c.run("systemctl reset-failed rstored && systemctl start rstored")
	})

	t.Run("watchdog", func(t *testing.T) {
		c := c.in(t)
		c.write("/etc/systemd/system/rstored.service.d/quick.conf", "[Service]\nWatchdogSec=2\n")
		c.run("systemctl daemon-reload && systemctl restart rstored")
		pid := c.show("rstored", "MainPID")
		time.Sleep(5 * time.Second) // more than twice what the manager waits
		if now := c.show("rstored", "MainPID"); now != pid {
			t.Errorf("a server that is well was ended")
		}
		c.run("kill -STOP " + pid)
		c.wait("test $(systemctl show -P MainPID rstored) != " + pid + " && rstorectl cat " + byRDMA + "/f")
		if out := c.run("journalctl -u rstored -o cat"); !strings.Contains(out, "Watchdog timeout") {
			t.Errorf("the journal:\n%s", out)
		}
		c.run("rm -r /etc/systemd/system/rstored.service.d && systemctl daemon-reload && systemctl restart rstored")
	})

	t.Run("live upgrade", func(t *testing.T) {
		c := c.in(t)
		const replace = "cp /usr/local/sbin/rstored /usr/local/sbin/new && mv /usr/local/sbin/new /usr/local/sbin/rstored && "
		c.run("head -c 100M /dev/urandom >/srv/data/big; (exec 3<>/dev/tcp/127.0.0.1/2049; exec sleep 1000) >/dev/null " +
			"2>&1 </dev/null & echo $! >/tmp/holder")
		// The oldest connection over TCP, which nobody uses.
		const held = `rstorectl connections -o json | tr -d ' \n' | grep -oE '\{[^{}]*\}' |
			grep '"transport":"tcp"' | grep '"calls":0[,}]' |
			sed 's/.*"address":"\([^"]*\)".*"since":"\([^"]*\)".*/\2 \1/' | sort | head -n 1 | grep 127.0.0.1`
		c.wait(held)
		out := make(chan string, 1)
		go func() {
			s, _ := c.try(`while [ ! -e /tmp/enough.live ]; do for u in ` + byRDMA + ` ` + byTCP + `; do
				rstorectl get -q $u/big /tmp/copy && cmp /tmp/copy /srv/data/big || echo failed; rm -f /tmp/copy
				done; done; echo over`)
			out <- s
		}()
		conn, restarts := c.run(held), c.show("rstored", "NRestarts")
		for _, how := range []string{
			"systemctl reload rstored", "rstored upgrade --config /etc/rstored/rstored.yaml",
			"systemctl reload rstored",
		} {
			pid := c.show("rstored", "MainPID")
			t.Log(c.run(replace + how))
			now := c.show("rstored", "MainPID")
			if now == pid || c.run("readlink /proc/"+now+"/exe") != "/usr/local/sbin/rstored" {
				t.Errorf("after '%s' process %s serves, before it %s", how, now, pid)
			}
			if _, err := c.try("test -e /proc/" + pid + "/exe"); err == nil {
				c.wait("test ! -e /proc/" + pid + "/exe")
			}
			c.wait(`systemctl show -P StatusText rstored | grep '^serving 1 exports on 2 ports'`)
			if s := c.show("rstored", "ActiveState") + c.show("rstored", "SubState"); s != "activerunning" {
				t.Errorf("after '%s': %s", how, s)
			}
			if is := c.run(held); is != conn {
				t.Errorf("the connection was %s, and is %s", conn, is)
			}
			if n := c.show("rstored", "NFileDescriptorStore"); n != "2" {
				t.Errorf("%s descriptors are kept, want 2", n)
			}
		}
		t.Log(c.run("journalctl -u rstored -o cat | grep '\"upgraded'"))
		if n := c.show("rstored", "NRestarts"); n != restarts {
			t.Errorf("%s restarts, were %s", n, restarts)
		}
		// The other type of service, in which the manager sends the signal.
		c.run("mkdir -p /etc/systemd/system/rstored.service.d")
		c.install(filepath.Join(root, "systemd", "notify-reload.conf"),
			"/etc/systemd/system/rstored.service.d/notify-reload.conf", 0o644)
		c.run("systemctl daemon-reload")
		before := c.show("rstored", "MainPID")
		c.run(replace + "systemctl reload rstored")
		if now := c.show("rstored", "MainPID"); now == before || c.show("rstored", "ActiveState") != "active" ||
			c.run(held) != conn {
			t.Errorf("process %s serves, before it %s", now, before)
		}
		c.run("rm -r /etc/systemd/system/rstored.service.d && systemctl daemon-reload")
		// A program that cannot take over: the old one goes on.
		pid := c.show("rstored", "MainPID")
		c.run("cp /usr/local/sbin/rstored /tmp/good && printf '#!/bin/sh\nexit 1\n' >/usr/local/sbin/new && chmod 755 " +
			"/usr/local/sbin/new && mv /usr/local/sbin/new /usr/local/sbin/rstored")
		if s, err := c.try("systemctl reload rstored"); err == nil {
			t.Errorf("a program that ends at once took over: %s", s)
		}
		if now := c.show("rstored", "MainPID"); now != pid || c.show("rstored", "ActiveState") != "active" {
			t.Errorf("process %s serves, before it %s", now, pid)
		}
		c.run("cp /tmp/good /usr/local/sbin/new && mv /usr/local/sbin/new /usr/local/sbin/rstored && systemctl reload " +
			"rstored")
		c.run("touch /tmp/enough.live")
		if s := <-out; strings.TrimSpace(s) != "over" {
			t.Errorf("the clients: %s", s)
		}
		c.run("kill $(cat /tmp/holder); rm -f /srv/data/big /tmp/good")
	})

	t.Run("upgrade", func(t *testing.T) {
		c := c.in(t)
		// A package replaces the binary and restarts; what was stored is there.
		c.run("cp /usr/local/sbin/rstored /usr/local/sbin/new && mv /usr/local/sbin/new /usr/local/sbin/rstored && " +
			"systemctl restart rstored")
		c.run("rstorectl cat " + byRDMA + "/f")
	})

	t.Run("stop under load", func(t *testing.T) {
		c := c.in(t)
		c.run("head -c 200M /dev/urandom >/tmp/big")
		c.run("for i in 1 2 3; do rstorectl put /tmp/big " + byRDMA + "/big$i >/dev/null 2>&1 & done; sleep 0.2")
		began := time.Now()
		c.run("systemctl stop rstored")
		if s := c.show("rstored", "Result"); s != "success" || time.Since(began) > 20*time.Second {
			t.Errorf("result %s after %v", s, time.Since(began))
		}
		c.run("pkill rstorectl; rm -f /tmp/big /srv/data/big*; true")
		if n := c.show("rstored", "NFileDescriptorStore"); n != "0" {
			t.Errorf("%s descriptors are kept after a stop", n)
		}
	})

	t.Run("socket activation", func(t *testing.T) {
		c := c.in(t)
		// The socket has all addresses, so the service asks for all as well.
		c.write("/etc/rstored/rstored.yaml", strings.Replace(config("/srv/data", "127.0.0.1"), "127.0.0.1:2049", ":2049", 1))
		c.run("systemctl start rstored.socket")
		if s, _ := c.try("systemctl is-active rstored"); s != "inactive" {
			t.Errorf("before the first connection: %s", s)
		}
		if s := c.run("rstorectl cat " + byTCP + "/f"); s != "hello" {
			t.Errorf("read %q", s)
		}
		c.run("systemctl is-active rstored && systemctl restart rstored && rstorectl cat " + byTCP + "/f")
		c.run("systemctl stop rstored.socket rstored")
		c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1"))
	})

	t.Run("instances", func(t *testing.T) {
		c := c.in(t)
		c.write("/etc/rstored/red.yaml", config("/srv/red", "127.0.0.2"))
		c.run("systemctl start rstored rstored@red")
		c.run("echo red >/tmp/r && rstorectl put /tmp/r nfs+rdma://127.0.0.2/data/r")
		if s := c.run(
			"ls /srv/red; ls /srv/data; rstorectl --control /run/rstored-red/rstored.sock export list -o json",
		); !strings.HasPrefix(s, "r\nf\n") || !strings.Contains(s, "/srv/red") {
			t.Errorf("the instance: %s", s)
		}
		c.run("systemctl stop rstored@red && rstorectl cat " + byRDMA + "/f && systemctl stop rstored")
	})

	t.Run("hardening", func(t *testing.T) {
		c := c.in(t)
		out := c.run("systemd-analyze security --no-pager rstored.service | tail -1")
		t.Log(out)
	})
}
