package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
)

// table writes a table and reads it.
func table(t testing.TB, text string) ([]Export, []string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "exports")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return ReadExports(file)
}

// TestTableOptions has every option of exports(5), and ours.
func TestTableOptions(t *testing.T) {
	for _, c := range []struct {
		opts string
		want string // of the client
		all  string // of the export
		warn string
		fail string
	}{
		{opts: "", want: "*(ro,root_squash,secure,sec=sys)"},
		{opts: "rw", want: "*(rw,root_squash,secure,sec=sys)"},
		{opts: "rw,ro", want: "*(ro,root_squash,secure,sec=sys)"},
		{opts: "insecure", want: "*(ro,root_squash,sec=sys)"},
		{
			opts: "sync,wdelay,no_wdelay,no_subtree_check,acl,no_pnfs,auth_nlm,secure_locks,hide,nocrossmnt",
			want: "*(ro,root_squash,secure,sec=sys)",
		},
		{opts: "no_root_squash", want: "*(ro,no_root_squash,secure,sec=sys)"},
		{opts: "all_squash,anonuid=150,anongid=100", want: "*(ro,all_squash,anonuid=150,anongid=100,secure,sec=sys)"},
		{opts: "anonuid=-2", want: "*(ro,root_squash,anonuid=4294967294,secure,sec=sys)"},
		{opts: "all_squash,no_all_squash", want: "*(ro,root_squash,secure,sec=sys)"},
		{opts: "sec=sys:none", want: "*(ro,root_squash,secure,sec=sys:none)"},
		{opts: "sec=krb5p:krb5i", want: "*(ro,root_squash,secure,sec=krb5p:krb5i)"},
		{opts: "sec=lkey", fail: "krb5i"},
		{opts: "nohide,nordirplus", want: "*(ro,root_squash,secure,sec=sys,nohide,nordirplus)"},
		{opts: "crossmnt,mp", want: "*(ro,root_squash,secure,sec=sys)", all: "crossmnt,mountpoint"},
		{opts: "mountpoint=/mnt", want: "*(ro,root_squash,secure,sec=sys)", all: "mountpoint=/mnt"},
		{opts: "mountpoint=mnt", fail: "not absolute"},
		{opts: "fsid=5", want: "*(ro,root_squash,secure,sec=sys)", all: "fsid=5"},
		{opts: "fsid=root", want: "*(ro,root_squash,secure,sec=sys)", all: "fsid=root"},
		{opts: "fsid=01234567-89ab-cdef:0123456789ABCDEF,fsid=7", want: "*(ro,root_squash,secure,sec=sys)", all: "fsid=7"},
		{opts: "fsid=7,fsid=01234567-89ab-cdef:0123456789ABCDEF", want: "*(ro,root_squash,secure,sec=sys)", all: "fsid=7"},
		{opts: "fsid=xyz", fail: "UUID"},
		{opts: "fsid=-1", fail: "UUID"},
		{opts: "fsid", fail: "needs a value"},
		{opts: "subtree_check", want: "*(ro,root_squash,secure,sec=sys)", warn: "subtree_check does nothing"},
		{opts: "pnfs", want: "*(ro,root_squash,secure,sec=sys)", warn: "pnfs does nothing"},
		{opts: "security_label", want: "*(ro,root_squash,secure,sec=sys)", all: "security_label"},
		{opts: "no_auth_nlm", want: "*(ro,root_squash,secure,sec=sys,insecure_locks)"},
		{opts: "insecure_locks,sec=krb5p", want: "*(ro,root_squash,secure,sec=krb5p,insecure_locks)"},
		{opts: "insecure_locks,secure_locks", want: "*(ro,root_squash,secure,sec=sys)"},
		{opts: "no_acl", want: "*(ro,root_squash,secure,sec=sys)", warn: "no_acl does nothing"},
		{opts: "refer=/a@b", want: "*(ro,root_squash,secure,sec=sys)", all: "refer=/a@b"},
		{
			opts: "replicas=/a@b+[2001:db8::1]:/c@192.0.2.1", want: "*(ro,root_squash,secure,sec=sys)",
			all: "replicas=/a@b+[2001:db8::1]:/c@192.0.2.1",
		},
		{opts: "refer=/a@b,replicas=/a@b", fail: "exclude each other"},
		{opts: "refer=a@b", fail: "begins with /"},
		{opts: "refer=/a", fail: "PATH@HOST"},
		{opts: "refer=/a@", fail: "neither a host name"},
		{opts: "refer=/a@b+", fail: "neither a host name"},
		{opts: "refer=/a@[b]", fail: "IPv6"},
		{opts: "refer=/a@2001:db8::1", fail: "PATH@HOST"},
		{opts: "xprtsec=none", want: "*(ro,root_squash,secure,sec=sys,xprtsec=none)"},
		{opts: "xprtsec=mtls:tls:mtls", want: "*(ro,root_squash,secure,sec=sys,xprtsec=tls:mtls)"},
		{opts: "xprtsec=tls,xprtsec=mtls", want: "*(ro,root_squash,secure,sec=sys,xprtsec=mtls)"},
		{opts: "xprtsec=ssl", fail: "not one of none, tls, mtls"},
		{opts: "xprtsec=", fail: "not one of none, tls, mtls"},
		{opts: "xprtsec", fail: "needs a value"},
		{opts: "ro=1", fail: "takes no value"},
		{opts: "rdonly", fail: `unknown export option "rdonly"`},
		{opts: "transport=rdma", want: "*(ro,root_squash,secure,sec=sys,transport=rdma)"},
		{opts: "transport=udp", fail: "udp"},
		{opts: "rsize=65536,wsize=4096", want: "*(ro,root_squash,secure,sec=sys,rsize=65536,wsize=4096)"},
		{opts: "rsize=1000", fail: "multiple"},
		{
			opts: "bandwidth=100M,iops=500,export_bandwidth=1G,export_iops=9",
			want: "*(ro,root_squash,secure,sec=sys,bandwidth=100M,iops=500)", all: "export_bandwidth=1G,export_iops=9",
		},
		{opts: "quota=100G", want: "*(ro,root_squash,secure,sec=sys)", all: "quota=100G"},
		{opts: "quota=much", fail: "number of bytes such as"},
		{opts: "bandwidth=fast", fail: "bytes a second"},
		{opts: "bandwidth=0", fail: "bytes a second"},
		{opts: "direct", want: "*(ro,root_squash,secure,sec=sys)", all: "direct"},
		{opts: "security_label,no_security_label", want: "*(ro,root_squash,secure,sec=sys)"},
		{opts: "direct,no_direct", want: "*(ro,root_squash,secure,sec=sys)"},
		{
			opts: "manage_gids,pkey=0x8001,no_host_locks", want: "*(ro,root_squash,secure,sec=sys,manage_gids)",
			all: "no_host_locks,pkey=0x8001",
		},
	} {
		list, warnings, err := table(t, "# first\n/a *("+c.opts+")\n")
		if c.fail != "" {
			if err == nil || !strings.Contains(err.Error(), c.fail) || !strings.Contains(err.Error(), "exports:2: ") {
				t.Errorf("%s: error %v, want %q", c.opts, err, c.fail)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.opts, err)
			continue
		}
		if got := list[0].Clients[0].String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.opts, got, c.want)
		}
		if got := strings.Join(list[0].Options(), ","); got != c.all {
			t.Errorf("%s: export has %q, want %q", c.opts, got, c.all)
		}
		if w := strings.Join(warnings, "\n"); !strings.Contains(w, c.warn) || c.warn == "" && w != "" {
			t.Errorf("%s: warnings %q, want %q", c.opts, w, c.warn)
		}
	}
	if len(options) != 53 {
		t.Errorf("there are %d options: is each of them in this test and in docs/exports.md?", len(options))
	}
}

func TestTable(t *testing.T) {
	for name, c := range map[string]struct{ text, want, warn, fail string }{
		"merged": {
			"/a 10.0.0.0/8(rw)\n/b *\n/a/ host.example.org\n", "/a=/a 10.0.0.0/8 host.example.org; /b=/b *",
			"", "",
		},
		"twice": {"/a h(rw) H(ro)\n", "/a=/a h", "more than once", ""},
		"names": {
			"/a h *.x.org n[0-9] @g 10.1.2.3 10.0.0.0/255.255.0.0 2001:db8::/32 fe80::1 *\n",
			"/a=/a h *.x.org n[0-9] @g 10.1.2.3/32 10.0.0.0/16 2001:db8::/32 fe80::1/128 *", "", "",
		},
		"root": {
			"/export *(fsid=0)\n/export/data *\n/other *\n",
			"/export=/ *; /export/data=/data *; /other=/other *", "", "",
		},
		"blank":           {"/a h (rw)\n", "/a=/a h *", "a client of its own", ""},
		"two roots":       {"/a *(fsid=0)\n/b *(fsid=root)\n", "", "", "exports:2: fsid=0"},
		"one fsid twice":  {"/a *(fsid=3)\n/b *(fsid=3)\n", "", "", "exports:2: fsid 3"},
		"fsid of one":     {"/a h g(fsid=0)\n/a/b *\n", "/a=/ h g; /a/b=/b *", "", ""},
		"unlike":          {"/a h(async)\n\n/a g(sync)\n", "", "", "exports:3: async"},
		"a wrong address": {"/a 10.0.0.256(rw)\n", "", "", "exports:1: client"},
		"a wrong mask":    {"/a 10.0.0.0/255.0.255.0\n", "", "", "exports:1: client"},
		"gss":             {"/a gss/krb5(rw)\n", "", "", "sec=krb5 for Kerberos"},
		"address pattern": {"/a 10.0.*(rw)\n", "", "", "exports:1: client"},
		"continued":       {"/a \\\n h(rw) \\\n g(what)\n", "", "", "exports:3: unknown export option"},
	} {
		list, warnings, err := table(t, c.text)
		if c.fail != "" {
			if err == nil || !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%s: error %v, want %q", name, err, c.fail)
			}
			continue
		}
		var out []string
		for i := range list {
			s := list[i].Path + "=" + list[i].Pseudo
			for j := range list[i].Clients {
				s += " " + list[i].Clients[j].Name()
			}
			out = append(out, s)
		}
		if got := strings.Join(out, "; "); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
		if w := strings.Join(warnings, "\n"); !strings.Contains(w, c.warn) || c.warn == "" && w != "" {
			t.Errorf("%s: warnings %q, want %q", name, w, c.warn)
		}
	}
}

// TestExportsFile: the table is served beside the exports of the file, and is not dumped.
func TestExportsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "exports")
	if err := os.WriteFile(file, []byte("/t *(rw)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := load(t, "exports_file: "+file+"\nexports:\n  - path: /y\n")
	if err != nil || len(c.Exports) != 2 || c.Exports[1].Source != file+":1" {
		t.Fatalf("%+v, %v", c, err)
	}
	y, err := c.YAML()
	if err != nil || strings.Contains(string(y), "/t\n") || !strings.Contains(string(y), "exports_file: "+file) {
		t.Errorf("%v\n%s", err, y)
	}
	if err := os.WriteFile(file, []byte("/t *(rw)\n/u *(wrong)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, "exports_file: "+file+"\n"); err == nil || !strings.Contains(err.Error(), file+":2: ") {
		t.Errorf("a bad table: %v", err)
	}
}

// TestRuleNFS takes a rule over to the server.
func TestRuleNFS(t *testing.T) {
	e, err := ParseExport("/a @g(ro,secure,sec=none,transport=rdma:tcp,rsize=8192,xprtsec=mtls:tls,bandwidth=2K,iops=3," +
		"manage_gids,nohide,nordirplus,insecure_locks,all_squash,anonuid=1,anongid=2,export_bandwidth=1K)")
	if err != nil {
		t.Fatal(err)
	}
	want := nfs.ClientRule{
		RO: true, Squash: nfs.AllSquash, AnonUID: 1, AnonGID: 2, Secure: true, Flavors: nfs.FlavorNone,
		Transports: nfs.ByRDMA | nfs.ByTCP, Securities: nfs.ByTLS | nfs.ByMutualTLS,
		MaxRead: 8192, Limit: nfs.Limit{Bytes: 2048, Ops: 3}, ManageGIDs: true, NoHide: true, NoReadDirPlus: true,
		InsecureLocks: true, CIDR: netip.Prefix{},
	}
	if got := e.Clients[0].NFS(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if e.Clients[0].Host != "@g" || e.Limit() != (nfs.Limit{Bytes: 1024}) {
		t.Errorf("%+v", e)
	}
}

func FuzzTable(f *testing.F) {
	f.Add("/a h(rw,fsid=0) *.x(ro) @g\n/a/b 10.0.0.0/255.0.0.0(async)\n")
	f.Fuzz(func(t *testing.T, s string) {
		list, _, err := table(t, s)
		if err != nil {
			return
		}
		for i := range list {
			if err := list[i].Normalize(); err != nil {
				t.Errorf("%q: accepted, then refused: %v", s, err)
			}
		}
	})
}

func TestParseLocations(t *testing.T) {
	got, err := ParseLocations("/a/@one+[2001:db8::1]+192.0.2.1:/@two")
	want := []nfs.Location{{Path: "/a", Servers: []string{"one", "2001:db8::1", "192.0.2.1"}}, {
		Path: "/", Servers: []string{"two"},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ParseLocations("/a@b" + strings.Repeat("+b", locationsMax)); err == nil {
		t.Error("too many hosts are accepted")
	}
}
