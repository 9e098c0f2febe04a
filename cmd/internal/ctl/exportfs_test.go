package ctl

import (
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// TestExportSetEdit: what arrives at the daemon from the flags that change one part.
func TestExportSetEdit(t *testing.T) {
	f, run := start(t)
	code, _, errOut := run("export", "set", "/data", "--add-client", "10.0.0.7(ro,sec=sys)", "--add-client", "host",
		"--remove-client", "10.0.0.0/8", "--option", "direct,fsid=7", "--option", "sec=sys", "--unset", "pkey, iops")
	if code != 0 {
		t.Fatal(errOut)
	}
	p := f.patch
	if len(p.AddClients) != 2 || p.AddClients[0].String() != "10.0.0.7/32(ro,root_squash,sec=sys)" ||
		p.AddClients[1].Host != "host" || p.Clients != nil || p.ReadOnly != nil || p.HostLocks != nil {
		t.Errorf("%+v", p)
	}
	if !slices.Equal(p.RemoveClients, []string{"10.0.0.0/8"}) || !slices.Equal(p.Unset, []string{"pkey", "iops"}) ||
		!slices.Equal(p.Options, []string{"direct", "fsid=7", "sec=sys"}) {
		t.Errorf("%+v", p)
	}
	for _, c := range []struct{ flag, value, want string }{
		{"--add-client", "10.0.0.7(direct)", "direct belongs to the whole export"},
		{"--add-client", "10.0.0.7 (ro)", "one rule per flag"},
		{"--add-client", "10.0.0.7(fast)", "unknown export option"},
		{"--option", "fast", "unknown export option"},
		{"--option", "fsid", "needs a value"},
	} {
		if code, _, errOut := run("export", "set", "/data", c.flag, c.value); code != 2 || !strings.Contains(errOut, c.want) {
			t.Errorf("%s %s: %d %q, want %q", c.flag, c.value, code, errOut, c.want)
		}
	}
}

// served is an export as a daemon lists it.
func served(t *testing.T, spec string) control.Export {
	t.Helper()
	e, err := config.ParseExport(spec)
	if err != nil {
		t.Fatal(err)
	}
	return control.Export{Export: e, Aliases: []string{}}
}

func TestExportfsList(t *testing.T) {
	f, run := start(t)
	f.exports = []control.Export{
		served(t, "/srv/data 10.0.0.0/8(secure,sec=sys) *(ro)"),
		served(t, `/srv/a\040long\040directory(async) host(all_squash)`),
		served(t, "memory:scratch *"),
	}
	for _, c := range []struct{ flags, want string }{
		{"", "/srv/data     \t10.0.0.0/8\n/srv/data     \t<world>\n" +
			"/srv/a long directory\n\t\thost\n/scratch       \t<world>\n"},
		{"-v", "/srv/data     \t10.0.0.0/8(rw,root_squash,secure,sec=sys,sync)\n" +
			"/srv/data     \t<world>(ro,root_squash,sec=sys:none,insecure,sync)\n" +
			"/srv/a long directory\n\t\thost(rw,all_squash,sec=sys:none,insecure,async)\n" +
			"/scratch       \t<world>(rw,root_squash,sec=sys:none,insecure,sync)\n"},
		{"-s", "/srv/data 10.0.0.0/8(rw,root_squash,secure,sec=sys,sync)\n" +
			"/srv/data *(ro,root_squash,sec=sys:none,insecure,sync)\n" +
			"/srv/a\\040long\\040directory host(rw,all_squash,sec=sys:none,insecure,async)\n"},
	} {
		code, out, errOut := run(strings.Fields("exportfs " + c.flags)...)
		want := strings.ReplaceAll(c.want, "/scratch       \t", "scratch       \t")
		if code != 0 || out != want {
			t.Errorf("exportfs %s: %d\n%s%s\nwant\n%s", c.flags, code, out, errOut, want)
		}
	}
	if code, out, _ := run("exportfs", "--output", "json"); code != 0 || !strings.Contains(out, `"path": "/srv/data"`) {
		t.Errorf("%d %s", code, out)
	}
}

func TestExportfsChange(t *testing.T) {
	f, run := start(t)
	ok := func(want string, args ...string) {
		t.Helper()
		f.patch = control.ExportPatch{}
		code, out, errOut := run(append([]string{"exportfs"}, args...)...)
		if code != 0 || out != want {
			t.Errorf("%q: %d %q %s", args, code, out, errOut)
		}
	}
	ok("exporting 10.0.0.7:/srv/data\n", "-v", "-o", "rw,async", "-o", "no_root_squash", "10.0.0.7:/srv/data")
	if len(f.exports) != 1 || f.exports[0].Pseudo != "/srv/data" || !f.exports[0].Async ||
		f.exports[0].Clients[0].String() != "10.0.0.7/32(rw,no_root_squash,secure,sec=sys)" {
		t.Fatalf("%+v", f.exports)
	}
	ok("", "-io", "fsid=5", "[2001:db8::]/64:/srv/data/")
	if p := f.patch; len(p.AddClients) != 1 ||
		p.AddClients[0].String() != "2001:db8::/64(ro,root_squash,secure,sec=sys)" ||
		!slices.Equal(p.Options, []string{"fsid=5"}) {
		t.Errorf("%+v", f.patch)
	}
	f.exports[0].Clients = append(f.exports[0].Clients, config.Client{Host: "host"})
	ok("unexporting HOST:/srv/data\n", "-uv", "HOST:/srv/data")
	if p := f.patch; !slices.Equal(p.RemoveClients, []string{"HOST"}) || len(f.removed) > 0 {
		t.Errorf("%+v %v", f.patch, f.removed)
	}
	f.exports[0].Clients = f.exports[0].Clients[:1]
	f.exports[0].Pseudo = "/data"
	ok("", "-u", "10.0.0.7:/srv/data")
	if !slices.Equal(f.removed, []string{"/data"}) {
		t.Errorf("removed %q", f.removed)
	}
	f.removed = nil
	ok("unexporting 10.0.0.7:/srv/data\n", "-uav")
	if !slices.Equal(f.removed, []string{"/data"}) {
		t.Errorf("removed %q", f.removed)
	}
	f.reloads = nil
	for _, flag := range []string{"-a", "-ra", "-r"} {
		ok("", flag)
	}
	if !slices.Equal(f.reverted, []bool{true, false, false}) {
		t.Errorf("reverted %v", f.reverted)
	}
	for _, c := range []struct{ args, want string }{
		{"-u", "needs CLIENT:/PATH"},
		{"-a host:/d", "-a and -r are for all"},
		{"-ru", "exclude each other"},
		{"-u -o ro host:/d", "exclude each other"},
		{"-o ro", "-o needs"},
		{"host", "not CLIENT:/PATH"},
		{"host:d", "not CLIENT:/PATH"},
		{"[::1:/d", "not [IPv6"},
		{"-o fast host:/d", "unknown export option"},
		{"-x", "unknown shorthand"},
	} {
		code, _, errOut := run(strings.Fields("exportfs " + c.args)...)
		if code == 0 || !strings.Contains(errOut, c.want) {
			t.Errorf("%s: %d %q, want %q", c.args, code, errOut, c.want)
		}
	}
	if code, _, errOut := run("exportfs", "-u", "host:/nope"); code != 1 || !strings.Contains(errOut, "not found") {
		t.Errorf("%d %s", code, errOut)
	}
}
