package e2e

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestControlFromOtherHosts: rstorectl over TLS, by flags and by the environment, as somebody who
// may do everything and as one who may look; and the audit log has their names.
func TestControlFromOtherHosts(t *testing.T) {
	ca, addr := newAuthority(t), loopback()
	cert, key := ca.issue(addr.String())
	log := filepath.Join(ca.dir, "audit.log")
	at := addr.String() + ":9048"
	d := newDaemon(t, "--control-tls-listen", at, "--control-tls-certificate", cert, "--control-tls-key", key,
		"--control-tls-client-ca", ca.file,
		"--control-tls-admins", "alice", "--control-tls-readers", "bob", "--audit", "file "+log)
	as := func(who string, args ...string) (string, error) {
		t.Helper()
		cert, key := ca.issue(who)
		out, err := exec.Command(filepath.Join(binDir, "rstorectl"),
			append([]string{"--server", at, "--cert", cert, "--key", key, "--ca", ca.file}, args...)...).CombinedOutput()
		return string(out), err
	}
	extra := filepath.Join(d.export, "more")
	if err := os.Mkdir(extra, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		who  string
		args []string
		ok   bool
		want string
	}{
		{"alice", []string{"status"}, true, "running"},
		{"alice", []string{"export", "add", extra}, true, "/more"},
		{"alice", []string{"top", "-b", "-n", "1", "-d", "100ms"}, true, "connections"},
		{"alice", []string{"capture", "-w", "-", "--for", "100ms"}, true, ""},
		{"alice", []string{"doctor"}, true, "of its host cannot be seen from here"},
		{"bob", []string{"port", "list"}, true, "control"},
		{"bob", []string{"export", "remove", "/more"}, false, "certificate CN=bob may look at this server"},
		{"bob", []string{"trace", "--for", "1s"}, false, "may look"},
		{"mallory", []string{"status"}, false, "certificate CN=mallory may not control this server"},
		{"alice", []string{"--control", d.control, "status"}, false, "only one of them"},
		{"alice", []string{"export", "remove", "/more"}, true, ""},
	} {
		out, err := as(tc.who, tc.args...)
		if (err == nil) != tc.ok || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %s: %v\n%s", tc.who, strings.Join(tc.args, " "), err, out)
		}
	}

	c := exec.Command(filepath.Join(binDir, "rstorectl"), "log-level", "debug")
	c.Env = append(os.Environ(), "RSTORECTL_SERVER="+at, "RSTORECTL_CERT="+filepath.Join(ca.dir, "alice.pem"),
		"RSTORECTL_KEY="+filepath.Join(ca.dir, "alice.key"), "RSTORECTL_CA="+ca.file)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("by the environment: %v\n%s", err, out)
	}

	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		var e struct{ Event, Subject, Serial, Client, Method, Request string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Event == "control" && e.Serial != "" && e.Client != "" {
			path, _, _ := strings.Cut(e.Request, "?")
			seen[e.Subject+" "+e.Method+" "+path] = true
		}
	}
	for _, want := range []string{
		"CN=alice POST /v1/exports", "CN=alice GET /v1/capture", "CN=alice PUT /v1/log-level",
		"CN=bob DELETE /v1/export", "CN=bob GET /v1/trace", "CN=mallory GET /v1/status",
	} {
		if !seen[want] {
			t.Errorf("the audit log does not have %q:\n%s", want, text)
		}
	}
}

// TestControlNeedsAuthority: without the authority of clients' certificates the server does not
// start. With one that cannot be read nobody controls it from other hosts, and it says so.
func TestControlNeedsAuthority(t *testing.T) {
	dir, ca := t.TempDir(), newAuthority(t)
	cert, key := ca.issue("127.0.0.1")
	for _, tc := range []struct {
		args  []string
		start bool
		want  string
	}{
		{[]string{"--control-tls-certificate", cert, "--control-tls-key", key}, false, "client_ca"},
		{[]string{"--control-tls-client-ca", cert}, false, "certificate and key"},
		{
			[]string{"--control-tls-certificate", cert, "--control-tls-key", key, "--control-tls-client-ca", key},
			true, "has no certificates",
		},
		{
			[]string{
				"--control-tls-certificate", cert, "--control-tls-key", key, "--control-tls-client-ca",
				filepath.Join(dir, "none.pem"),
			}, true, "none.pem",
		},
	} {
		at := loopback().String() + ":9048"
		d := &daemon{
			t: t, addr: loopback(), export: dir, state: t.TempDir(), control: filepath.Join(t.TempDir(), "c"),
			program: filepath.Join(binDir, "rstored"), args: append([]string{"--control-tls-listen", at}, tc.args...),
		}
		code, said := d.tryStart()
		if !tc.start {
			if code != 78 || !strings.Contains(said, tc.want) {
				t.Errorf("%q: exit code %d\n%s", tc.args, code, said)
			}
			continue
		}
		if code != 0 {
			t.Errorf("%q: exit code %d\n%s", tc.args, code, said)
			continue
		}
		if out := d.ctl("status"); !strings.Contains(out, tc.want) {
			t.Errorf("%q: the status says nothing of it:\n%s", tc.args, out)
		}
		if c, err := net.Dial("tcp", at); err == nil {
			_ = c.Close()
			t.Errorf("%q: somebody listens for other hosts", tc.args)
		}
		d.stop(syscall.SIGTERM)
	}
}
