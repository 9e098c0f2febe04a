package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/live"
	history "github.com/rstored/rstored/cmd/internal/state"
)

// fake is a daemon that remembers what it was asked.
type fake struct {
	reverted []bool // each with its parameter
	removed  []string
	reloads  error
	exports  []control.Export
	patch    control.ExportPatch
	ports    []control.PortSpec
	level    string
	pprof    bool
	capture  control.CaptureSpec
	refuse   error // of captures
	mu       sync.Mutex
	samples  uint64
}

func (f *fake) Status() control.Status {
	return control.Status{Process: control.ProcessMemory{
		Resident: 5 << 30, Own: 1 << 30, Lent: 4 << 30, Mapped: 4 << 30, Limit: 4 << 30,
	}, State: control.StateRunning, Problems: []string{"export /x: gone"}}
}
func (f *fake) Config() ([]byte, error)   { return nil, nil }
func (f *fake) Exports() []control.Export { return f.exports }
func (f *fake) NFS4Clients() []control.NFS4Client {
	return []control.NFS4Client{{ID: "0x1", Owner: "a b"}}
}

func (f *fake) EvictClient(id string) error {
	if id == "0x1" {
		return nil
	}
	return fmt.Errorf("client %q: %w", id, control.ErrNotFound)
}
func (f *fake) NFS4Sessions() []control.NFS4Session { return []control.NFS4Session{} }
func (f *fake) Locks() []control.FileLock           { return []control.FileLock{} }
func (f *fake) Delegations() []control.Delegation {
	until := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	return []control.Delegation{
		{Export: "/a", FileID: 7, Client: "0x1", Given: time.Now().Add(-90 * time.Second)},
		{
			Export: "/a", FileID: 8, Client: "0x1", Write: true, Given: time.Now().Add(-time.Hour), Recalled: true,
			Acknowledged: true, Until: &until,
		},
	}
}
func (f *fake) Grace() control.Grace    { return control.Grace{On: true, Waiting: []string{"a b"}} }
func (f *fake) EndGrace() error         { return nil }
func (f *fake) PKeys() []control.PKey   { return []control.PKey{{PKey: "0xffff", Membership: "full"}} }
func (f *fake) AddPKey(string) error    { return nil }
func (f *fake) RemovePKey(string) error { return nil }
func (f *fake) AddExport(e config.Export) (control.Export, error) {
	f.exports = append(f.exports, control.Export{Export: e, Aliases: []string{}, Origin: control.OriginRuntime})
	return f.exports[len(f.exports)-1], nil
}

func (f *fake) SetExport(_ string, p control.ExportPatch) (control.Export, error) {
	f.patch = p
	return control.Export{}, nil
}

func (f *fake) RevertExports(removedOnly bool) error {
	f.reverted = append(f.reverted, removedOnly)
	return nil
}

func (f *fake) RemoveExport(name string) error {
	if name == "/data" {
		f.removed = append(f.removed, name)
		return nil
	}
	return fmt.Errorf("export %q: %w", name, control.ErrNotFound)
}
func (f *fake) Ports() []control.Port { return nil }
func (f *fake) AddPort(p control.PortSpec) (control.Port, error) {
	f.ports = append(f.ports, p)
	return control.Port{PortSpec: p, Addresses: []string{p.Listen}}, nil
}

func (f *fake) RemovePort(p control.PortSpec) error { f.ports = append(f.ports, p); return nil }
func (f *fake) Clients() []control.Client {
	return []control.Client{{Address: "127.0.0.9:1", Calls: 3}}
}

func (f *fake) QPs() []control.QP {
	return []control.QP{{
		QPN: 0x1234, Type: "RC", State: "RTS", Remote: "10.0.0.9:40000", RTTUS: 25,
		Counters: map[string]uint64{"retransmits": 5, "sent_pkts": 77},
	}}
}

func (f *fake) Stats() control.Stats {
	return control.Stats{
		RDMAWriteBytes: 12, Messages: map[string]uint64{"RDMA_MSG": 4},
		Procs: map[string]control.Proc{"nfs3.READ": {Calls: 2}},
	}
}
func (f *fake) Devices() []control.Device { return nil }

// Sample is one of a daemon that serves 1000 READs of 4096 bytes in each second of its life.
func (f *fake) Sample() live.Sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.samples++
	n := 1000 * f.samples
	return live.Sample{
		Host: "store1", Version: "v1", State: control.StateRunning, Started: time.Unix(1e9, 0),
		UptimeNS: int64(f.samples * 1e9),
		Operations: []live.Point{{
			Name: "nfs4.READ", Transport: "rdma", Out: 4096 * n, TookNS: 90_000 * n,
			Took: []uint64{0, 0, 0, 0, 0, 0, 0, n},
		}},
		Clients: []live.Point{{
			Name: "10.0.0.9", Transport: "rdma", Out: 4096 * n, TookNS: 90_000 * n,
			Took: []uint64{0, 0, 0, 0, 0, 0, 0, n},
		}},
		Server: live.Server{Problems: []string{}},
	}
}

func (f *fake) Ops() control.Ops          { return control.Ops{Addresses: []string{}, Pprof: f.pprof} }
func (f *fake) SetPprof(on bool)          { f.pprof = on }
func (f *fake) Denials() []control.Denial { return nil }

func (f *fake) Slow() []control.SlowCall {
	return []control.SlowCall{{
		Client: "10.0.0.9:700", Transport: "rdma", Operation: "nfs4.WRITE", Export: "/data",
		Status: "OK", TookUS: 1500, StoreUS: 1200, RDMAUS: 200,
	}}
}

func (f *fake) Trace(_ context.Context, client netip.Addr, w io.Writer, flush func() error) error {
	c := control.TraceCall{
		Arguments: "fh=0x1",
		SlowCall:  control.SlowCall{Client: client.String() + ":1", Operation: "nfs3.READ", Status: "OK"},
	}
	for range 3 {
		if err := json.NewEncoder(w).Encode(&c); err != nil {
			return err
		}
	}
	return flush()
}

func (f *fake) PostMortems() []control.PostMortem {
	uid := uint32(7)
	call := &control.PostMortemCall{Program: 100003, Version: 3, Procedure: 6, Name: "nfs3.READ", Flavor: 1, UID: &uid}
	return []control.PostMortem{{
		Count: 2, Device: "10.0.0.1", Peer: "10.0.0.9:40000", Local: "10.0.0.1:20049", Outcome: "broken", Reason: "it broke",
		Hint: "mend it",
		Request: &control.PostMortemREQ{
			Port: 20049, QPN: 17, PathMTU: 1024,
			Private: &control.PostMortemPrivate{Send: 4096, Receive: 4096},
		},
		Connection: &control.PostMortemConn{
			QPN:         99,
			NAKReceived: &control.PostMortemNAK{Count: 1, Syndrome: 0x62, Text: "remote access error"},
		},
		RPC: &control.PostMortemCalls{Calls: 5, First: call, Last: call},
	}, {
		Count: 1, Device: "rxe0/10.0.0.1", Provider: "verbs", Peer: "10.0.0.8:40000", Local: "10.0.0.1:20049",
		Outcome: "broken", Reason: "it broke", Hint: "mend it",
		PathMTUMax: 1024, Events: &control.PostMortemEvents{
			Transport: "RoCE v2", CM: "RDMA_CM_EVENT_ESTABLISHED",
			Async: "IBV_EVENT_PORT_ERR", AsyncUS: 5_000_000,
		},
		Request: &control.PostMortemREQ{Port: 20049, QPN: 17, PathMTU: 1024, RetryCount: 7},
		Connection: &control.PostMortemConn{
			QPN: 99, RemoteQPN: 17, Status: "transport retry counter exceeded",
			Failed: &control.PostMortemFailed{BeforeUS: 2, Op: "WRITE", Code: 12, Vendor: 0x81},
			Work: &control.PostMortemWork{
				Posted: 8, PostedBytes: 9, Received: 3, ReceivedBytes: 300, Flushed: 2,
				Outstanding: 4, OldestUS: 4_000, Receives: 30,
			},
			Requests: []control.PostMortemRequest{
				{BeforeUS: 6_000, Did: "posted", Op: "WRITE", Count: 3, Bytes: 3000},
				{Did: "failed", Op: "WRITE", Count: 1, Status: "retries", Vendor: 0x81},
			},
		},
	}}
}

func (f *fake) SetLogLevel(l string) error { f.level = l; return nil }
func (f *fake) Rescan() error              { return nil }

func (f *fake) Reload() error { return f.reloads }
func (f *fake) Upgrade(path string) (control.Upgraded, error) {
	return control.Upgraded{
		Executable: path, OldVersion: "1.2", NewVersion: "1.3", OldPID: 6, PID: 7, PrepareMillis: 80,
		PauseMillis: 12.5, RDMA: 3, TCP: 1,
	}, nil
}
func (f *fake) Metrics(io.Writer) error                  { return nil }
func (f *fake) RecentLog() []byte                        { return nil }
func (f *fake) Goroutines(io.Writer) error               { return nil }
func (f *fake) Profile(context.Context, io.Writer) error { return nil }
func (f *fake) Plan(control.File) (control.Plan, error)  { return control.Plan{}, nil }
func (f *fake) Apply(control.Apply, control.Peer) (control.Applied, error) {
	return control.Applied{}, nil
}
func (f *fake) History() ([]history.Entry, error)       { return []history.Entry{}, nil }
func (f *fake) HistoryEntry(int) (history.Entry, error) { return history.Entry{}, control.ErrNotFound }
func (f *fake) Drift() control.Drift                    { return control.Drift{} }

func (f *fake) Capture(_ context.Context, c control.CaptureSpec, w io.Writer) error {
	f.capture = c
	if f.refuse != nil {
		return f.refuse
	}
	_, err := io.WriteString(w, "0123456789")
	return err
}

// run is rstorectl with the arguments: exit code and outputs.
type runner func(args ...string) (code int, out, errOut string)

func start(t *testing.T) (*fake, runner) {
	t.Helper()
	f := &fake{reloads: errors.New("rstored.yaml: no")}
	sock := filepath.Join(t.TempDir(), "c.sock")
	access, err := control.NewAccess("")
	if err != nil {
		t.Fatal(err)
	}
	l, err := control.Listen(sock, access)
	if err != nil {
		t.Fatal(err)
	}
	s := control.NewServer(f, access, zap.NewNop(), nil)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return f, func(args ...string) (int, string, string) {
		var out, errOut bytes.Buffer
		g := &cli.Globals{Out: &out, Err: &errOut}
		root := Root(g)
		root.SetArgs(append([]string{"--control", sock}, args...))
		code := cli.Run(root, &errOut)
		return code, out.String(), errOut.String()
	}
}

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
