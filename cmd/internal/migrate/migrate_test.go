package migrate

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/rstored/rstored/cmd/internal/config"
)

var update = flag.Bool("update", false, "write the expected files")

// golden compares an import with testdata/NAME, and loads it as a start of rstored does.
func golden(t *testing.T, im *Import, name string) *config.Config {
	t.Helper()
	text, err := im.YAML()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	return load(t, text)
}

func load(t *testing.T, text []byte) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rstored.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.String(config.FlagConfig, file, "")
	cfg, err := config.Load(f)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return cfg
}

func add(t *testing.T, im *Import, file string) {
	t.Helper()
	if err := im.Add(file, ""); err != nil {
		t.Fatal(err)
	}
}

func TestGanesha(t *testing.T) {
	im := New()
	add(t, im, "testdata/ganesha.conf")
	cfg := golden(t, im, "ganesha.yaml")
	var got []string
	for i := range cfg.Exports {
		e := &cfg.Exports[i]
		for j := range e.Clients {
			got = append(got, e.Pseudo+" "+e.Clients[j].String())
		}
	}
	const want = `/more host.rack.example(rw,root_squash,secure,sec=sys,manage_gids)
/data 10.0.0.7/32(rw,no_root_squash,sec=sys,rsize=65536)
/data 10.1.0.0/16(rw,no_root_squash,sec=sys,rsize=65536)
/data *.rack.example(ro,all_squash,anonuid=4294967294,anongid=100,sec=sys,rsize=65536)
/data *(ro,root_squash,sec=sys,rsize=65536)
/scratch *(rw,root_squash,sec=sys,transport=tcp:rdma)
/late *(ro,root_squash,sec=sys)`
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("got\n%s\nwant\n%s", s, want)
	}
	notes := strings.Join(im.Notes(), "\n")
	for _, n := range []string{
		"ganesha.conf:8: nlm_port", "ganesha.conf:9: clustered has no counterpart",
		"ganesha.conf:13: a grace period of 30s",
		"ganesha.conf:17: slot_table_size", "/ceph is left out: rstored has no store for the FSAL ceph",
		"ganesha.conf:33: sectype = other", "/k is left out", "/hole is left out: some clients have no access",
		"client 10.0.0.7/32 of export /late is left out: * before it counts", "/nobody is left out: nobody",
		"block rados_urls is not carried over",
	} {
		if !strings.Contains(notes, n) {
			t.Errorf("there is no note %q in\n%s", n, notes)
		}
	}
	for _, n := range []string{"user_id", "prefread", "export_id", "recoverybackend"} {
		if strings.Contains(notes, n) {
			t.Errorf("there is a note about %s", n)
		}
	}
}

func TestNFSConf(t *testing.T) {
	im := New()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(dir, "etc", "exports")
	im.table = table
	if err := os.WriteFile(table, []byte("/srv/a 10.0.0.0/8(rw) *(ro,subtree_check)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	add(t, im, "testdata/nfs.conf")
	for i := range im.notes {
		im.notes[i] = strings.ReplaceAll(im.notes[i], dir, "")
	}
	golden(t, im, "nfs.yaml")
	add(t, im, table) // a second time
	if n := len(im.cfg.Exports); n != 1 {
		t.Errorf("%d exports", n)
	}
}

// TestNFSConfTable: without manage-gids and rootdir the table stays where it is.
func TestNFSConfTable(t *testing.T) {
	dir := t.TempDir()
	file, table := filepath.Join(dir, "nfs.conf"), filepath.Join(dir, "exports")
	for name, content := range map[string]string{file: "[nfsd]\nvers4=no\n", table: "/srv/a 10.0.0.0/8(rw)\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	im := New()
	im.table = table
	add(t, im, file)
	text, err := im.YAML()
	if err != nil || !strings.Contains(string(text), "exports_file: "+table+"\n") ||
		!strings.Contains(string(text), "nfs_versions:\n  - \"3\"\n") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct{ kind, text, want string }{
		{Ganesha, "EXPORT {\n", "f:1: block export is not closed"},
		{Ganesha, "EXPORT { Path = /a }\n}", `f:2: "}" where a name`},
		{Ganesha, "A { b = \"c\n\"; }", "f:1: a quotation mark"},
		{Ganesha, "\nA { b }", `f:2: after "b"`},
		{Ganesha, "A { b = c = d; }", "b has no ;"},
		{Ganesha, "%include nope", "nope"},
		{Ganesha, "%include f", "files are included"},
		{Ganesha, strings.Repeat("A {", nestingMax+2), "nested deeper"},
		{Ganesha, "EXPORT { Pseudo = /a; }", "without Path"},
		{Ganesha, "EXPORT { Path = /a; Access_Type = Much; }", "f:1: access_type = Much"},
		{Ganesha, "EXPORT { Path = /a; Access_Type = RW; Squash = Much; }", "squash"},
		{Ganesha, "NFS_CORE_PARAM { NFS_Port = 70000; }", "0 to 65535"},
		{NFSConf, "[nfsd\n", "f:1: "},
		{NFSConf, "[nfsd]\nport\n", "f:2: "},
		{NFSConf, "[nfsd]\ntcp=perhaps\n", "f:2: tcp"},
		{NFSConf, "[nfsd]\nport=x\n", "f:2: port"},
		{NFSConf, "include=nope\n", "nope"},
		{NFSConf, "include=f\n", "deeper"},
		{Exports, "/a *(fast)\n", "f:1: unknown export option"},
		{"", "hello\n", "--from"},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "f")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		im := New()
		im.table = filepath.Join(dir, "etc", "exports")
		err := im.Add(file, c.kind)
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), dir+"/", ""), c.want) {
			t.Errorf("%s %q: %v, want %q", c.kind, c.text, err, c.want)
		}
	}
	if err := New().Add(filepath.Join(t.TempDir(), "none"), ""); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzImport: whatever a file says, there is an error with a place, or a configuration that loads,
// and nobody who was refused by every block gets in.
func FuzzImport(f *testing.F) {
	for _, name := range []string{"ganesha.conf", "nfs.conf"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, name == "nfs.conf")
	}
	root := f.TempDir() // without an export table
	f.Fuzz(func(t *testing.T, text []byte, ini bool) {
		if strings.Contains(strings.ToLower(string(text)), "include") {
			return // other files
		}
		im := New()
		im.table = filepath.Join(root, "etc", "exports")
		var err error
		if ini {
			err = im.nfsConf("f", text)
		} else {
			err = im.ganesha("f", text)
		}
		var at *Error
		if err != nil {
			if !errors.As(err, &at) || at.Line < 1 || at.Line > 1+strings.Count(string(text), "\n") {
				t.Fatalf("an error without a place: %v", err)
			}
			return
		}
		if !strings.Contains(strings.ToLower(string(text)), "access_type") && len(im.cfg.Exports) > 0 {
			t.Fatalf("exports without access: %+v", im.cfg.Exports)
		}
		_, _ = im.YAML()
	})
}
