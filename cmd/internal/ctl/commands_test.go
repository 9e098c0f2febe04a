package ctl

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// TestCommands: exit code and a word of the output of every command.
func TestCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcap")
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"status"}, 0, "export /x: gone"},
		{[]string{"status"}, 0, "5.0 GiB (RES of top, RSS of ps): 1.0 GiB of its own, 4.0 GiB of page cache that it lends"},
		{[]string{"status"}, 0, "at most 4.0 GiB (mapped_memory)"},
		{[]string{"status", "-o", "yaml"}, 0, "state: running\n"},
		{[]string{"stats"}, 0, "nfs3.READ"},
		{[]string{"stats", "-o", "json"}, 0, `"rdma_write_bytes": 12`},
		{
			[]string{"top", "-n", "1", "-d", "100ms"},
			0,
			"10.0.0.9        rdma     1000       0     4.10    90us   127us   0.09      0",
		},
		{
			[]string{"top", "-b", "-n", "2", "-d", "100ms", "-t", "operations", "-s", "p99"},
			0,
			"nfs4.READ       rdma     1000",
		},
		{[]string{"top", "--json", "-n", "1", "-d", "100ms"}, 0, `"out_bytes_per_second":4096000`},
		{[]string{"top", "-o", "json", "-n", "1", "-d", "100ms"}, 0, `"interval_seconds":1,"since_start":false`},
		{[]string{"top", "-o", "yaml"}, 2, "tables or JSON"},
		{[]string{"top", "-d", "1ms"}, 2, "--interval"},
		{[]string{"top", "-t", "x"}, 2, "there is no table"},
		{[]string{"top", "-s", "x"}, 2, "there is no column"},
		{[]string{"clients"}, 0, "127.0.0.9:1"},
		{[]string{"client", "list"}, 0, "DELEGATIONS"},
		{[]string{"client", "delegations"}, 0, "7       read   held      1m30s"},
		{[]string{"client", "delegations"}, 0, "8       write  recalled  1h0m0s"},
		{[]string{"client", "delegations", "-o", "json"}, 0, `"recalled": true`},
		{[]string{"qp", "list"}, 0, "0x1234"},
		{[]string{"qp", "show", "0x1234"}, 0, "sent_pkts"},
		{[]string{"qp", "show", "4660", "-o", "json"}, 0, `"rtt_us": 25`},
		{[]string{"qp", "show", "7"}, 1, "there is no queue pair 0x7"},
		{[]string{"qp", "show", "x"}, 2, "not a queue pair number"},
		{[]string{"clients", "--failed"}, 0, "remote access error"},
		{[]string{"clients", "--failed"}, 0, "-> mend it"},
		{[]string{"clients", "--failed"}, 0, "our device: rxe0/10.0.0.1, RoCE v2, path MTU up to 1024"},
		{[]string{"clients", "--failed"}, 0, "last event of the connection manager: RDMA_CM_EVENT_ESTABLISHED\n"},
		{[]string{"clients", "--failed"}, 0, "last event of the device: IBV_EVENT_PORT_ERR, 5s before the end"},
		{[]string{"clients", "--failed"}, 0, "QPN 0x63, the peer's 0x11, path MTU"},
		{
			[]string{"clients", "--failed"},
			0,
			"failed request: WRITE: transport retry counter exceeded (completion status 12, vendor error 0x81), 2µs before " +
				"the end",
		},
		{
			[]string{"clients", "--failed"},
			0,
			"requests: 8 of 9 bytes posted, 4 outstanding (the oldest for 4ms), 2 flushed; 3 messages of 300 bytes received, " +
				"receives for 30 more",
		},
		{[]string{"clients", "--failed"}, 0, "-6ms        posted   WRITE and 2 more, 3000 bytes"},
		{[]string{"clients", "--failed"}, 0, "failed   WRITE: retries, vendor error 0x81"},
		{[]string{"clients", "--failed", "-o", "json"}, 0, `"outcome": "broken"`},
		{[]string{"doctor"}, 1, "FAIL  nothing is exported  -> rstorectl export add"},
		{[]string{"doctor", "-o", "json"}, 1, `"level": "FAIL"`},
		{[]string{"doctor", "-o", "yaml"}, 1, "level: FAIL"},
		{[]string{"doctor", "--fix", "-o", "json"}, 2, "--fix is for a terminal"},
		{[]string{"doctor", "--fix"}, 1, "FAIL  nothing is exported  -> rstorectl export add"},
		{[]string{"doctor", "/data"}, 2, "is not a URL"},
		{[]string{"export", "list"}, 0, "PSEUDO"},
		{[]string{"export", "add", "/srv/data"}, 0, "exported /srv/data as /data"},
		{[]string{"export", "add", "/srv/data", "--pseudo", "/more"}, 0, "as /more"},
		{[]string{"export", "add", "/srv/with blank(ro)"}, 0, "/with blank"},
		{[]string{"export", "add", "scratch", "--type", "memory"}, 0, "exported scratch as /scratch"},
		{[]string{"export", "add"}, 2, "usage:"},
		{[]string{"export", "add", "/d(fast)"}, 2, "fast"},
		{[]string{"export", "add", "/d", "--client", "ho/st"}, 2, "neither an address"},
		{[]string{"export", "add", "/d", "--ro", "--rw"}, 2, "exclude"},
		{[]string{"export", "remove", "/data"}, 0, "removed export /data"},
		{[]string{"export", "remove", "/nope", "/data"}, 1, "not found"},
		{[]string{"export", "show", "/nope"}, 1, "not found"},
		{[]string{"export", "set", "/data"}, 2, "nothing to change"},
		{[]string{"export", "polish"}, 2, "unknown command"},
		{[]string{"import", "../migrate/testdata/ganesha.conf"}, 0, "/testdata/ganesha.conf:9: clustered has"},
		{[]string{"import", "../migrate/testdata/ganesha.conf"}, 0, "\ntcp_listen:\n  - 192.0.2.1:2050\n"},
		{[]string{"import", "--from", "nfs.conf", "../migrate/testdata/ganesha.conf"}, 78, "ganesha.conf:2: "},
		{[]string{"import", "--from", "samba", "x"}, 2, "--from"},
		{[]string{"import", "/nonexistent"}, 1, "no such file"},
		{[]string{"import"}, 2, "usage:"},
		{[]string{"port", "list"}, 0, "TRANSPORT"},
		{[]string{"port", "add", "rdma"}, 0, "listening on rdma :20049"},
		{[]string{"port", "add", "iwarp"}, 2, "unknown transport"},
		{[]string{"port", "add", "tcp", "no:where:at:all"}, 2, "ADDR:PORT"},
		{[]string{"port", "add", "ops", "127.0.0.1"}, 0, "listening on ops 127.0.0.1:9049"},
		{[]string{"ops", "show"}, 0, "pprof      off"},
		{[]string{"ops", "pprof", "on"}, 0, ""},
		{[]string{"ops", "pprof", "maybe"}, 2, "neither on nor off"},
		{[]string{"slow"}, 0, "1.5ms  0s     200µs  1.2ms  nfs4.WRITE  OK      /data"},
		{[]string{"slow", "-o", "json"}, 0, `"store_us": 1200`},
		{[]string{"trace", "10.0.0.7"}, 0, "10.0.0.7:1  xid  uid 0 nfs3.READ fh=0x1: OK"},
		{[]string{"trace", "10.0.0.7", "-o", "json", "-c", "2"}, 0, `"arguments":"fh=0x1"`},
		{[]string{"trace", "host"}, 2, "not an IP address"},
		{[]string{"slow", "-n", "0"}, 2, "at least 1"},
		{[]string{"reload"}, 1, "rstored.yaml: no"},
		{[]string{"log-level", "debug"}, 0, ""},
		{[]string{"capture", "-w", file}, 0, "captured 10 B"},
		{[]string{"capture", "-w", "-"}, 0, "0123456789"},
		{[]string{"capture", "-w", "-", "--peer", "10.0.0.9", "--qp", "0x1234", "-c", "7", "-s", "64"}, 0, "0123456789"},
		{[]string{"capture", "-w", "-", "--peer", "host"}, 2, "not an IP address"},
		{[]string{"capture", "-w", "-", "--qp", "-1"}, 2, "not a queue pair number"},
		{[]string{"capture", "-w", "-", "--count", "-1"}, 2, "not negative"},
		{[]string{"capture"}, 2, "-w FILE"},
		{[]string{"version", "-o", "json"}, 0, `"go": `},
		{[]string{"status", "-o", "xml"}, 2, "xml"},
		{[]string{"status", "--nope"}, 2, "nope"},
		{[]string{"nope"}, 2, "unknown command"},
		{[]string{"completion", "bash"}, 0, "__start_rstorectl"},
	} {
		_, run := start(t)
		code, out, errOut := run(tc.args...)
		if code != tc.code || !strings.Contains(out+errOut, tc.want) {
			t.Errorf("rstorectl %q: exit code %d, want %d and %q\n%s%s", tc.args, code, tc.code, tc.want, out, errOut)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "0123456789" {
		t.Errorf("capture file: %q, %v", b, err)
	}
}

// TestCaptureRefused: a server that refuses leaves the file of an earlier capture as it was, and
// makes none.
func TestCaptureRefused(t *testing.T) {
	f, run := start(t)
	f.refuse = control.ErrNotFound
	dir := t.TempDir()
	earlier := filepath.Join(dir, "earlier")
	if err := os.WriteFile(earlier, []byte("packets"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{earlier, filepath.Join(dir, "new")} {
		if code, _, _ := run("capture", "-w", file); code != 1 {
			t.Errorf("exit code %d", code)
		}
	}
	if b, err := os.ReadFile(earlier); err != nil || string(b) != "packets" {
		t.Errorf("the earlier file has %q, %v", b, err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestRequests: what arrives at the daemon.
func TestRequests(t *testing.T) {
	f, run := start(t)
	for _, args := range [][]string{
		{"export", "set", "/data", "--ro", "--client", "10.0.0.0/8(ro,anonuid=5)", "--client", "*"},
		{"port", "add", "rdma", "10.0.0.1"},
		{"port", "add", "tcp", "3049"},
		{"port", "remove", "tcp", "[::1]:7"},
		{"port", "add", "portmap", "0.0.0.0"},
		{"log-level", "debug"},
		{"ops", "pprof", "on"},
	} {
		if code, out, errOut := run(args...); code != 0 {
			t.Errorf("%q: %d\n%s%s", args, code, out, errOut)
		}
	}
	if f.patch.ReadOnly == nil || !*f.patch.ReadOnly || f.patch.Async != nil || f.patch.Clients == nil {
		t.Fatalf("patch %+v", f.patch)
	}
	if c := *f.patch.Clients; len(c) != 2 || !c[0].ReadOnly || *c[0].AnonUID != 5 || c[1].CIDR != config.Everyone ||
		c[1].ReadOnly {
		t.Errorf("clients %+v", c)
	}
	want := `[{"transport":"rdma","listen":"10.0.0.1:20049"},{"transport":"tcp","listen":":3049"},{"transport":"tcp",` +
		`"listen":"[::1]:7"},{"transport":"portmap","listen":"0.0.0.0:111"}]`
	if got, _ := json.Marshal(f.ports); string(got) != want {
		t.Errorf("ports %s", got)
	}
	if !f.pprof {
		t.Error("profiles are off")
	}
	if f.level != "debug" {
		t.Errorf("level %q", f.level)
	}
}

// TestNoDaemon: the error says what to look at.
func TestNoDaemon(t *testing.T) {
	var errOut bytes.Buffer
	root := Root(&cli.Globals{Out: io.Discard, Err: &errOut})
	root.SetArgs([]string{"--control", filepath.Join(t.TempDir(), "none.sock"), "status"})
	if code := cli.Run(root, &errOut); code != cli.ExitFailed || !strings.Contains(errOut.String(), "is it running") {
		t.Errorf("exit code %d: %s", code, errOut.String())
	}
}

func (*fake) FlushIDMap() {}

// TestExportAddSays: the command says for whom an export is, and what it lets everybody do; options
// after the path hold for clients of --client.
func TestExportAddSays(t *testing.T) {
	f, run := start(t)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"/srv/data"}, "own host alone"},
		{[]string{"/srv/data", "--client", "10.0.0.0/8"}, ""},
		{[]string{"/srv/data", "--client", "*"}, "warning: export /data: every host that can reach this server may write"},
		{[]string{"/srv/data", "--client", "*(ro,no_root_squash)"}, "warning: export /data: root of every host"},
	} {
		code, out, errs := run(append([]string{"export", "add"}, tc.args...)...)
		said := strings.Contains(out+errs, "warning") || strings.Contains(out+errs, "alone")
		if code != 0 || !strings.Contains(out+errs, tc.want) || said != (tc.want != "") {
			t.Errorf("%q: %d, %q, %q, want %q", tc.args, code, out, errs, tc.want)
		}
	}
	if code, _, errs := run("export", "add", "/srv/data(ro,all_squash)", "--client",
		"10.0.0.0/8(no_root_squash)"); code != 0 {
		t.Fatal(errs)
	}
	if e := f.exports[len(f.exports)-1]; len(e.Clients) != 1 || !e.Clients[0].ReadOnly ||
		e.Clients[0].Squash != config.AllSquash {
		t.Errorf("options after the path: %+v", e.Clients)
	}
}
