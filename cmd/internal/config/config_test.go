package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/rstored/rstored/rdma/perf"
)

func load(t *testing.T, file string, args ...string) (*Config, error) {
	t.Helper()
	f := pflag.NewFlagSet("rstored", pflag.ContinueOnError)
	AddFlags(f)
	if file != "" {
		name := filepath.Join(t.TempDir(), "rstored.yaml")
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", name)
	}
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(f)
}

// TestPrecedence: flag over environment over file over default, for a scalar
// and for a list.
func TestPrecedence(t *testing.T) {
	file := "log_level: warn\ntcp_listen: ['127.0.0.1:3049']\n"
	c, err := load(t, "log_format: json\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.LogLevel != "info" || !reflect.DeepEqual(c.TCPListen, []string{":2049"}) || c.LogFormat != LogJSON {
		t.Errorf("defaults: %+v", c)
	}
	if c, err = load(t, file); err != nil || c.LogLevel != "warn" || c.TCPListen[0] != "127.0.0.1:3049" {
		t.Errorf("file: %+v, %v", c, err)
	}
	t.Setenv("RSTORED_LOG_LEVEL", "error")
	t.Setenv("RSTORED_TCP_LISTEN", "127.0.0.2:1,127.0.0.2:2")
	if c, err = load(t, file); err != nil || c.LogLevel != "error" ||
		!reflect.DeepEqual(c.TCPListen, []string{"127.0.0.2:1", "127.0.0.2:2"}) {
		t.Errorf("environment: %+v, %v", c, err)
	}
	c, err = load(t, file, "--log-level", "debug", "--tcp-listen", "127.0.0.3:1", "--tcp-listen", "127.0.0.3:2")
	if err != nil || c.LogLevel != "debug" || !reflect.DeepEqual(c.TCPListen, []string{"127.0.0.3:1", "127.0.0.3:2"}) {
		t.Errorf("flags: %+v, %v", c, err)
	}
	if c, err = load(t, file, "--tcp-listen="); err != nil || len(c.TCPListen) != 0 {
		t.Errorf("--tcp-listen= : %+v, %v", c, err)
	}
}

// TestExportsInFile: a complete entry, with the case of names kept.
func TestExportsInFile(t *testing.T) {
	c, err := load(t, `
exports:
  - path: /srv/Data
    clients:
      - cidr: 10.1.2.3/8
        squash: no_root_squash
      - cidr: "*"
        read_only: true
        anonuid: 7
  - type: memory
    path: scratch
    pseudo: /mem/
    async: true
`)
	if err != nil {
		t.Fatal(err)
	}
	e := c.Exports[0]
	if e.Path != "/srv/Data" || e.Pseudo != "/Data" || e.Type != TypePosix {
		t.Errorf("export 0: %+v", e)
	}
	if e.Clients[0].CIDR != "10.0.0.0/8" || e.Clients[1].Squash != RootSquash {
		t.Errorf("clients: %+v", e.Clients)
	}
	if uid, gid := e.Clients[1].Anon(); uid != 7 || gid != NobodyID {
		t.Errorf("anon %d %d", uid, gid)
	}
	if e = c.Exports[1]; e.Pseudo != "/mem" || !e.Async {
		t.Errorf("export 1: %+v", e)
	}
}

// TestBadFiles: each mistake is refused with words that name it.
func TestBadFiles(t *testing.T) {
	for _, tc := range []struct{ file, want string }{
		{"exprots: []\n", "exprots"},
		{"log_level: loud\n", "loud"},
		{"log_format: xml\n", "xml"},
		{"tcp_listen: ['example.org:2049']\n", "not an IP address"},
		{"tcp_listen: ['127.0.0.1:0']\n", "not a port"},
		{"tcp_listen: ['127.0.0.1']\n", "not ADDR:PORT"},
		{"rdma_listen: ['localhost:20049']\n", "not an IP address"},
		{"rdma_listen: ['rxe://10.0.0.1:20049']\n", "unknown RDMA provider"},
		{"rdma_listen: ['://10.0.0.1:20049']\n", "unknown RDMA provider"},
		{"rdma_listen: ['soft://mlx5_0:20049']\n", "name an address"},
		{"rdma_listen: ['verbs://mlx5_0']\n", "not ADDR:PORT"},
		{"rdma_listen: ['verbs://mlx5_0:0']\n", "not a port"},
		{"rdma_listen: ['verbs://example.org:20049']\n", "not an IP address"},
		{"tcp_listen: ['soft://10.0.0.1:2049']\n", "soft://"},
		{"rdma_provider: hardware\n", "hardware"},
		{"perf: {listen: ['verbs://:20049'], clients: ['*']}\n", "taken by rdma_listen"},
		{"shards: 3\n", "power of two"},
		{"workers: -1\n", "workers"},
		{"nfs_versions: [3, 5]\n", "nfs_versions"},
		{"nfs_versions: []\n", "nfs_versions"},
		{"idmap: {method: both}\n", "both"},
		{"idmap: {domain: a@b}\n", "a@b"},
		{"idmap: {realm: x}\n", "realm"},
		{"utf8: sometimes\n", "utf8"},
		{"max_connections: 0\n", "max_connections"},
		{"perf: {listen: [':18515']}\n", "clients"},
		{"perf: {listen: [':0'], clients: ['*']}\n", "not a port"},
		{"perf: {clients: [example.org]}\n", "example.org"},
		{"perf: {listen: ['127.0.0.1:20049'], clients: ['*']}\n", "taken by rdma_listen"},
		{"perf: {max_size: 16777216}\n", "max_size"},
		{"perf: {max_qps: 0}\n", "max_qps"},
		{"perf: {max_duration: 10ms}\n", "max_duration"},
		{"perf: {colour: red}\n", "colour"},
		{"control_tls: {listen: ['127.0.0.1:9048'], certificate: /c, key: /k}\n", "client_ca"},
		{"control_tls: {listen: ['127.0.0.1:9048'], certificate: /c, client_ca: /a}\n", "certificate and key"},
		{"control_tls: {certificate: c.pem}\n", "not an absolute path"},
		{"control_tls: {listen: [':0'], certificate: /c, key: /k, client_ca: /a}\n", "not a port"},
		{"kerberos: {rc4: true}\n", "say which tickets are accepted, but none is accepted without keytab"},
		{"kerberos: {require_pac: true}\n", "say which tickets are accepted, but none is accepted without keytab"},
		{"kerberos: {users: [a@R=b]}\n", "there is no Kerberos without keytab"},
		{"exports: [{path: data}]\n", "not absolute"},
		{"exports: [{path: /a/x}, {path: /b/x}]\n", "both appear at /x"},
		{"exports: [{path: /a, type: tape}]\n", "tape"},
		{"exports: [{path: /a, clients: [{cidr: local/host}]}]\n", "local/host"},
		{"exports: [{path: /a, clients: [{cidr: 10.0.0.0/8}, {cidr: 10.9.9.9/8}]}]\n", "twice"},
		{"exports: [{path: /a, clients: [{cidr: '*', squash: maybe}]}]\n", "maybe"},
		{"exports: [{path: /a, colour: red}]\n", "colour"},
		{"exports: {a: b\n", "yaml"},
	} {
		_, err := load(t, tc.file)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error %v, want it to mention %q", tc.file, err, tc.want)
		}
	}
	if _, err := load(t, "", "--config", "/nonexistent/rstored.yaml"); err == nil {
		t.Error("a configuration file that was named but is missing was not an error")
	}
}

func TestParseExport(t *testing.T) {
	id := func(n uint32) *uint32 { return &n }
	for _, tc := range []struct {
		in   string
		want Export
	}{
		{"/srv/data", Export{Path: "/srv/data", Pseudo: "/data", Type: TypePosix}},
		{"/srv/data=/d", Export{Path: "/srv/data", Pseudo: "/d", Type: TypePosix}},
		{"/", Export{Path: "/", Pseudo: "/", Type: TypePosix}},
		{`/srv/my\040data *(rw)`, Export{
			Path: "/srv/my data", Pseudo: "/my data", Type: TypePosix,
			Clients: []Client{{CIDR: Everyone, Squash: RootSquash}},
		}},
		{"/d(ro,all_squash,anonuid=-2) *", Export{
			Path: "/d", Pseudo: "/d", Type: TypePosix,
			Clients: []Client{{CIDR: Everyone, ReadOnly: true, Squash: AllSquash, AnonUID: id(4294967294)}},
		}},
		{"/d(async,ro) 10.0.0.0/8(rw,no_root_squash) ::1", Export{
			Path: "/d", Pseudo: "/d", Type: TypePosix, Async: true,
			Clients: []Client{{CIDR: "10.0.0.0/8", Squash: NoRootSquash}, {CIDR: "::1/128", ReadOnly: true, Squash: RootSquash}},
		}},
		{"memory:scratch", Export{Path: "scratch", Pseudo: "/scratch", Type: TypeMemory}},
	} {
		got, err := ParseExport(tc.in)
		if err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%q:\n got %+v, %v\nwant %+v", tc.in, got, err, tc.want)
		}
	}
	for _, bad := range []string{
		"", "data", "/d(ro", "/d(ro))", "/d(fast)", "/d(anonuid=x)", "/d(ro=1)",
		"/d host/example(rw)", "/d=e", "memory:",
	} {
		if e, err := ParseExport(bad); err == nil {
			t.Errorf("%q was accepted as %+v", bad, e)
		}
	}
}

// TestPerf: off by default; a section that says little keeps the other defaults.
func TestPerf(t *testing.T) {
	c, err := load(t, "", "--config", os.DevNull)
	if err != nil || len(c.Perf.Listen) != 0 || c.Perf.MaxSize != 1<<23 {
		t.Errorf("default: %+v, %v", c.Perf, err)
	}
	t.Setenv("RSTORED_PERF_MAX_DEPTH", "7")
	c, err = load(t, "perf:\n  listen: ['10.0.0.1:18515']\n  clients: [10.0.0.0/8, 127.0.0.1, '*']\n  max_qps: 3\n  "+
		"idle_timeout: 5s\n", "--perf-max-size", "4096")
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Perf.Limits()
	want := perf.DefaultLimits()
	want.MaxQPs, want.IdleTimeout, want.MaxDepth, want.MaxSize = 3, 5*time.Second, 7, 4096
	for _, p := range []string{"10.0.0.0/8", "127.0.0.1/32", "0.0.0.0/0", "::/0"} {
		want.Clients = append(want.Clients, netip.MustParsePrefix(p))
	}
	if err != nil || !reflect.DeepEqual(l, want) || !reflect.DeepEqual(c.Perf.Listen, []string{"10.0.0.1:18515"}) {
		t.Errorf("%+v, %v; want %+v", l, err, want)
	}
}

// TestYAMLRoundTrip: what config dump prints is a file that means the same.
func TestYAMLRoundTrip(t *testing.T) {
	c, err := load(t, "", "--config", os.DevNull, "--export", "/d(async,ro) 10.0.0.0/8(rw,anongid=9) ::1",
		"--stop-timeout", "90s")
	if err != nil {
		t.Fatal(err)
	}
	y, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := load(t, string(y))
	if err != nil {
		t.Fatalf("%v\n%s", err, y)
	}
	again.File, c.File = "", ""
	y2, err := again.YAML()
	if err != nil || string(y) != string(y2) {
		t.Errorf("%v\n%s\nbecame\n%s", err, y, y2)
	}
}

func FuzzParseExport(f *testing.F) {
	f.Add("/srv/data=/x(ro,anonuid=5) 10.0.0.0/8(rw) *")
	f.Add(`/a\040b`)
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseExport(s)
		if err != nil {
			return
		}
		if err := e.Normalize(); err != nil {
			t.Errorf("%q: accepted, then refused: %v", s, err)
		}
	})
}
