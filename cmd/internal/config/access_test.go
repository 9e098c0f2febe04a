package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestNoClientIsNobody: a rule that names nobody is refused, in every form, with its place.
func TestNoClientIsNobody(t *testing.T) {
	const file = "exports: [{path: /a}, {path: /b, clients: [{cidr: 10.0.0.0/8}, {squash: no_root_squash}]}]\n"
	_, err := load(t, file)
	if err == nil || !strings.Contains(err.Error(), "rstored.yaml:1: exports[1]: clients[1]: ") ||
		!strings.Contains(err.Error(), "names no client") {
		t.Errorf("a file: %v", err)
	}
	if _, err = ParseDocument("x.yaml", SyntaxYAML, []byte(file)); err == nil ||
		!strings.Contains(err.Error(), "x.yaml:1: exports[1]: clients[1]: ") {
		t.Errorf("a document: %v", err)
	}
	if e, err := ParseExport("/a (rw)"); err == nil || !strings.Contains(err.Error(), "a blank too many") {
		t.Errorf("one line with a blank too many: %+v, %v", e, err)
	}
	e := Export{Path: "/a", Clients: []Client{{}}}
	if err := e.Normalize(); err == nil {
		t.Errorf("by the control interface: %+v", e)
	}
}

// TestYAMLTypes: no value becomes root, rw, or everybody by being empty or of another type, and no
// key is dropped.
func TestYAMLTypes(t *testing.T) {
	client := func(s string) string {
		return "exports:\n  - path: /a\n    clients:\n      - cidr: 10.0.0.0/8\n        " + s + "\n"
	}
	export := func(s string) string { return "exports:\n  - path: /a\n    " + s + "\n" }
	for _, tc := range []struct{ file, want string }{
		{client("squash:"), ":5: exports[0].clients[0].squash: has no value"},
		{client("squash: ''"), "squash: has no value"},
		{client("squash: no"), "squash"},
		{client("squash: false"), "is not a string"},
		{client("read_only:"), "read_only: has no value"},
		{client("read_only: ''"), "read_only: has no value"},
		{client("read_only: 0.5"), "neither true nor false"},
		{client("read_only: 2"), "neither true nor false"},
		{client("read_only: []"), "single value"},
		{client("anonuid:"), "anonuid: has no value"},
		{client("anonuid: ''"), "anonuid: has no value"},
		{client("anonuid: 1.5"), "is not a whole number"},
		{client("anonuid: 0.5"), "is not a whole number"},
		{client("anongid: false"), "is not a whole number"},
		{client("anonuid: 4294967296"), "is not a whole number"},
		{client("anonuid: '4294967296'"), "is not a whole number"},
		{client("anonuid: -4294967296"), "is not a whole number"},
		{client("iops: 0.5"), "is not a whole number"},
		{client("xprtsec:"), "xprtsec: has no value"},
		{client("transports: ['']"), "transports[0]: has no value"},
		{client("Read_Only: true"), `key "Read_Only" is written "read_only"`},
		{client("read_only: true\n        READ_ONLY: false"), `"READ_ONLY"`},
		{export("pkeys:"), "pkeys: has no value"},
		{export("pkeys: ['']"), "pkeys[0]: has no value"},
		{export("fsid: false"), "is not a string"},
		{export("Clients: [{cidr: 10.0.0.0/8}]"), `key "Clients" is written "clients"`},
		{export("clients: {Cidr: 10.0.0.0/8}"), `"Cidr"`},
		{
			"x: &x\n  Read_Only: true\n" + "exports: [{path: /a, clients: [{cidr: 10.0.0.0/8, <<: {Read_Only: true}}]}]\n",
			`"Read_Only"`,
		},
		{"exports: [{path: /a, clients: [&r {cidr: 10.0.0.0/8, anonuid: 0.1}]}]\n", "is not a whole number"},
		{"Exports: [{path: /a}]\n", `key "Exports" is written "exports"`},
		{"exports: [{path: /a}]\nEXPORTS: []\n", `"EXPORTS"`},
		{"tls: {XprtSec: [mtls]}\n", `key "XprtSec" is written "xprtsec"`},
		{"max_client_connections: 0.5\n", "is not a whole number"},
		{"ops_pprof: 7\n", "neither true nor false"},
	} {
		if _, err := load(t, tc.file); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.file, err, tc.want)
		}
		if _, err := ParseDocument("x", SyntaxYAML, []byte(tc.file)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("document %q: %v, want %q", tc.file, err, tc.want)
		}
	}
	c, err := load(t, client("read_only: 'true'\n        anonuid: '7'\n        sec: sys\n        anongid: 0x10"))
	if err != nil {
		t.Fatal(err)
	}
	r := c.Exports[0].Clients[0]
	if uid, gid := r.Anon(); !r.ReadOnly || uid != 7 || gid != 16 || !slices.Equal(r.Sec, []string{"sys"}) {
		t.Errorf("values in quotes: %+v", r)
	}
	if c, err = load(t, "log_level:\nexports: [{path: /a, clients: []}]\nshards: 4\nnfs_versions: [3, "+
		"4.2]\nlease_time: 20s\n"); err != nil || c.LogLevel != "info" || c.Shards != 4 {
		t.Errorf("what is right: %+v, %v", c, err)
	}
}

// TestAllSquashStays: all_squash and root_squash are two flags of exports(5).
func TestAllSquashStays(t *testing.T) {
	for _, tc := range []struct{ spec, want string }{
		{"/a *(all_squash,no_root_squash)", AllSquash},
		{"/a *(no_root_squash,all_squash)", AllSquash},
		{"/a *(all_squash,root_squash)", AllSquash},
		{"/a(all_squash) *(no_root_squash)", AllSquash},
		{"/a(all_squash) *(no_all_squash,no_root_squash)", NoRootSquash},
		{"/a *(all_squash,no_root_squash,no_all_squash)", RootSquash},
	} {
		e, err := ParseExport(tc.spec)
		if err != nil || e.Clients[0].Squash != tc.want {
			t.Errorf("%s: %+v, %v, want %s", tc.spec, e.Clients, err, tc.want)
		}
	}
	name := filepath.Join(t.TempDir(), "exports")
	if err := os.WriteFile(name, []byte("/a -all_squash h(rw,no_root_squash)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, _, err := ReadExports(name); err != nil || list[0].Clients[0].Squash != AllSquash {
		t.Errorf("a table: %+v, %v", list, err)
	}
}

// TestOwnHost: an export that names no clients is for the server's own host, whichever way it is
// configured.
func TestOwnHost(t *testing.T) {
	rules := func(e *Export) string {
		var s []string
		for _, c := range e.Rules() {
			s = append(s, c.String())
		}
		return strings.Join(s, " ")
	}
	const safe = "127.0.0.0/8(rw,root_squash) ::1/128(rw,root_squash)"
	for _, tc := range []struct{ spec, flag, api string }{
		{"/a", "127.0.0.0/8(rw,no_root_squash) ::1/128(rw,no_root_squash)", safe},
		{
			"/a(ro)", "127.0.0.0/8(ro,no_root_squash) ::1/128(ro,no_root_squash)",
			"127.0.0.0/8(ro,root_squash) ::1/128(ro,root_squash)",
		},
		{"/a(root_squash)", safe, safe},
		{
			"/a(all_squash)", "127.0.0.0/8(rw,all_squash) ::1/128(rw,all_squash)",
			"127.0.0.0/8(rw,all_squash) ::1/128(rw,all_squash)",
		},
		{"/a 10.0.0.0/8", "10.0.0.0/8(rw,root_squash)", "10.0.0.0/8(rw,root_squash)"},
		{"/a *", "*(rw,root_squash)", "*(rw,root_squash)"},
	} {
		c, err := load(t, "", "--config", os.DevNull, "--export", tc.spec)
		if err != nil || rules(&c.Exports[0]) != tc.flag {
			t.Errorf("--export %s: %v, %v", tc.spec, rules(&c.Exports[0]), err)
		}
		e, err := ParseExport(tc.spec)
		if err != nil || rules(&e) != tc.api {
			t.Errorf("export add %s: %v, %v", tc.spec, rules(&e), err)
		}
	}
	t.Setenv("RSTORED_EXPORT", "/a")
	if c, err := load(t, "", "--config", os.DevNull); err != nil || rules(&c.Exports[0]) != safe {
		t.Errorf("RSTORED_EXPORT: %+v, %v", c, err)
	}
	for _, file := range []string{"exports: [{path: /a}]", "exports: [{path: /a, clients: []}]"} {
		if d, err := ParseDocument("x", SyntaxYAML, []byte(file)); err != nil || rules(&d.Exports[0]) != safe {
			t.Errorf("%s: %+v, %v", file, d, err)
		}
	}
}

// TestExposure: what everybody may do is found in every spelling, and nothing else is.
func TestExposure(t *testing.T) {
	const w, r = "may write", "is root here"
	for _, tc := range []struct {
		spec string
		want []string
	}{
		{"/a", nil},
		{"/a(rw,no_root_squash)", nil},
		{"/a *(ro)", nil},
		{"/a *", []string{w}},
		{"/a *(rw,all_squash)", []string{w}},
		{"/a *(ro,no_root_squash)", []string{r}},
		{"/a *(rw,no_root_squash)", []string{w, r}},
		{"/a 0.0.0.0/0(rw,no_root_squash)", []string{w, r}},
		{"/a ::/0(no_root_squash)", []string{w, r}},
		{"/a 0.0.0.0/1 128.0.0.0/1(no_root_squash)", []string{w}},
		{"/a 0.0.0.0/1(ro,no_root_squash) 128.0.0.0/2(ro,no_root_squash) 192.0.0.0/2(ro,no_root_squash)", []string{r}},
		{"/a 0.0.0.0/1 128.0.0.0/2 192.0.0.0/3", nil},
		{"/a ::/1 8000::/1(ro)", nil},
		{"/a ::/1 8000::/2 c000::/2", []string{w}},
		{"/a 10.0.0.0/8(no_root_squash) *(ro)", nil},
		{"/a ??*(rw)", []string{w}},
		{"/a *.example.org(rw)", nil},
		{"/a(pkey=0x8001) *(rw,no_root_squash)", nil},
		{"/a *(rw,no_root_squash,xprtsec=mtls)", nil},
	} {
		e, err := ParseExport(tc.spec)
		if err != nil {
			t.Fatal(err)
		}
		got := e.Exposure()
		ok := len(got) == len(tc.want)
		for i := range min(len(got), len(tc.want)) {
			ok = ok && strings.Contains(got[i], tc.want[i]) && strings.Contains(got[i], "/a")
		}
		if !ok {
			t.Errorf("%s: %q, want %q", tc.spec, got, tc.want)
		}
	}
	e := Export{Path: "/a", ReadOnly: true, Clients: []Client{{CIDR: "*"}}}
	if err := e.Normalize(); err != nil || e.Exposure() != nil {
		t.Errorf("read-only for all: %q, %v", e.Exposure(), err)
	}
	// A table is exports(5): who names no client there means everybody.
	d, err := ParseDocument("x", SyntaxTable, []byte("/srv -rw\n"))
	if err != nil || len(d.Exports[0].Exposure()) != 1 || len(d.Warnings) == 0 {
		t.Errorf("a table: %+v, %v", d, err)
	}
}

// TestControlSocket: no default is in a directory that others may have made, and rstorectl finds
// the service's.
func TestControlSocket(t *testing.T) {
	home, run := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	for _, v := range []string{"RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "STATE_DIRECTORY"} {
		t.Setenv(v, "")
	}
	want := filepath.Join(home, ".local/state/rstored/rstored.sock")
	if os.Geteuid() == 0 {
		want = systemControl
	}
	if got := DefaultControl(); got != want {
		t.Errorf("without a runtime directory: %s, want %s", got, want)
	}
	t.Setenv("HOME", "")
	if got := DefaultControl(); strings.HasPrefix(got, os.TempDir()) ||
		strings.HasPrefix(defaultStateDir(), os.TempDir()) {
		t.Errorf("without a home: %s, %s", got, defaultStateDir())
	}
	t.Setenv("RUNTIME_DIRECTORY", run)
	own := filepath.Join(run, "rstored.sock")
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := FindControl(); got != own {
		t.Errorf("the own daemon: %s", got)
	}
	if err := os.Chmod(run, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(systemControl); err == nil {
		if got := FindControl(); got != systemControl {
			t.Errorf("a directory that others can write: %s", got)
		}
	}
}

// TestNobodyControls: a configuration that lets nobody control the server from other hosts is good,
// and says so.
func TestNobodyControls(t *testing.T) {
	const ctl = "control_tls: {listen: ['127.0.0.1:9048'], certificate: /c, key: /k, client_ca: /a%s}\n"
	for more, want := range map[string]int{"": 1, ", admins: [alice]": 0, ", readers: [bob]": 0} {
		c, err := load(t, strings.Replace(ctl, "%s", more, 1))
		if err != nil || len(c.Advice()) != want {
			t.Errorf("%q: %q, %v", more, c.Advice(), err)
		}
	}
}

// TestShowMount: what the lists of MOUNT tell is one of two things.
func TestShowMount(t *testing.T) {
	if c, err := load(t, "log_level: info\n"); err != nil || c.ShowMount != ShowOwn {
		t.Errorf("the default: %v, %v", c, err)
	}
	if c, err := load(t, "showmount: all\nops_hosts: [store.example]\n"); err != nil || c.ShowMount != ShowAll ||
		!slices.Equal(c.OpsHosts, []string{"store.example"}) {
		t.Errorf("all: %v, %v", c, err)
	}
	if _, err := load(t, "showmount: some\n"); err == nil || !strings.Contains(err.Error(), "showmount") {
		t.Errorf("another: %v", err)
	}
}
