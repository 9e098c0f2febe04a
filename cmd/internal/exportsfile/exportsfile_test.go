package exportsfile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// show writes a table in one form.
func show(t *Table) string {
	var b strings.Builder
	for _, e := range t.Entries {
		fmt.Fprintf(&b, "%d %s", e.Line, e.Path)
		for _, c := range e.Clients {
			fmt.Fprintf(&b, " %s(%s)", c.Host, strings.Join(c.Options, ","))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestKinds reads a table with a line of every kind that exports(5) shows.
func TestKinds(t *testing.T) {
	var got Table
	data, err := os.ReadFile("testdata/exports")
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Parse("exports", data); err != nil {
		t.Fatal(err)
	}
	const want = `2 / alpha(rw) beta(rw,no_root_squash)
3 /data node*.rack.example(rw)
4 /opt *.rack.example(ro) @admins(rw)
5 /home/ann pc7(rw,all_squash,anonuid=150,anongid=100)
6 /pub *(ro,insecure,all_squash)
7 /srv/www web(sync,rw) @admins(sync,rw) @guests(sync,rw,ro)
8 /both 2001:db8:9:e54::/64(rw) 192.0.2.0/24(rw)
9 /build build[0-9].rack.example(rw)
`
	if s := show(&got); s != want {
		t.Errorf("got\n%swant\n%s", s, want)
	}
	if len(got.Warnings) > 0 {
		t.Errorf("warnings %v", got.Warnings)
	}
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		in, want string
		warn     string // in the first warning
		fail     string
	}{
		"empty":           {in: ""},
		"comments":        {in: "# a\n\n  # b\n/a * # c\n", want: "4 /a *()\n"},
		"hash in a word":  {in: "/a#b *\n", want: "1 /a#b *()\n"},
		"continued":       {in: "/a h1(rw) \\\n\t h2(ro) \\\n  h3\n/b h\n", want: "1 /a h1(rw) h2(ro) h3()\n4 /b h()\n"},
		"continued word":  {in: "/a h1\\\nh2\n", want: "1 /a h1() h2()\n"},
		"carriage return": {in: "/a h1(rw)\\\r\n h2\r\n", want: "1 /a h1(rw) h2()\n"},
		"comment goes on": {in: "# a \\\n/a *\n/b *\n", want: "3 /b *()\n"},
		"octal":           {in: `/a\040b\011c *` + "\n", want: "1 /a b\tc *()\n"},
		"no octal":        {in: `/a\08b\9 *` + "\n", want: `1 /a\08b\9 *()` + "\n"},
		"quotes":          {in: `"/a b" h(rw)` + "\n" + `/c" d"e h`, want: "1 /a b h(rw)\n2 /c de h()\n"},
		"defaults": {
			in:   "/a -ro,async h1 h2(rw) -sync h3\n",
			want: "1 /a h1(ro,async) h2(ro,async,rw) h3(ro,async,sync)\n",
		},
		"no newline":    {in: "/a h", want: "1 /a h()\n"},
		"empty options": {in: "/a h() *(,ro,)", want: "1 /a h() *(ro)\n"},
		"blank before":  {in: "/a h (rw)\n", want: "1 /a h() *(rw)\n", warn: "f:1: (rw) is a client of its own"},
		"no client":     {in: "/x *\n/a\n", want: "1 /x *()\n2 /a *()\n", warn: "f:2: no client"},
		"only defaults": {in: "/a -rw\n", want: "1 /a *(rw)\n", warn: "f:1: no client"},
		"relative":      {in: "/a *\nb *\n", fail: "f:2: path"},
		"no end":        {in: "\n/a h(rw\n", fail: "f:2: "},
		"blank inside":  {in: "/a h(rw, sync)\n", fail: "brackets do not match"},
		"two brackets":  {in: "/a h(rw)(ro)\n", fail: "brackets"},
		"closing first": {in: "/a h)(rw)\n", fail: "brackets"},
		"empty word":    {in: "/a \"\"\n", fail: "an empty word"},
		"closing":       {in: "/a \\\nhrw)\n", fail: "f:2: "},
		"open quote":    {in: "/a *\n\"/b *\n", fail: "f:2: a quotation mark"},
		"NUL":           {in: "/a\x00 *\n", fail: "NUL"},
		"octal NUL":     {in: `/a\000 *`, fail: "NUL"},
		"long":          {in: "/" + strings.Repeat("a", tokenMax+1) + " *", fail: "a word of more"},
	} {
		t.Run(name, func(t *testing.T) {
			var got Table
			err := got.Parse("f", []byte(c.in))
			if c.fail != "" {
				var e *Error
				if err == nil || !strings.Contains(err.Error(), c.fail) || !errors.As(err, &e) {
					t.Fatalf("got error %v, want %q", err, c.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := show(&got); s != c.want {
				t.Errorf("got\n%swant\n%s", s, c.want)
			}
			switch {
			case c.warn == "" && len(got.Warnings) > 0:
				t.Errorf("warnings %v", got.Warnings)
			case c.warn != "" && (len(got.Warnings) == 0 || !strings.HasPrefix(got.Warnings[0].Error(), c.warn)):
				t.Errorf("warnings %v, want %q", got.Warnings, c.warn)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "exports")
	if _, err := Load(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(Directory(file), 0o755); err != nil {
		t.Fatal(err)
	}
	write("exports.d/b.exports", "/b *\n")
	write("exports.d/a.exports", "\n/a *\n")
	write("exports.d/.c.exports", "nonsense\n")
	write("exports.d/d.exports~", "nonsense\n")
	paths := func() (out []string) {
		t.Helper()
		got, err := Load(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range got.Entries {
			out = append(out, e.Path)
		}
		return out
	}
	if got := paths(); !slices.Equal(got, []string{"/a", "/b"}) {
		t.Errorf("without the file: %v", got)
	}
	write("exports", "/z *\n")
	if got := paths(); !slices.Equal(got, []string{"/z", "/a", "/b"}) {
		t.Errorf("with all: %v", got)
	}
	write("exports.d/a.exports", "\nwrong *\n")
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "a.exports:2: ") {
		t.Errorf("a bad table: %v", err)
	}
}

// TestExportfs holds the words of a table against what exportfs(8) makes of it, which needs
// that program, root, and no kernel server.
func TestExportfs(t *testing.T) {
	bin := os.Getenv("RSTORED_EXPORTFS")
	if bin == "" {
		var err error
		if bin, err = exec.LookPath("exportfs"); err != nil {
			t.Skip("no exportfs")
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	dir := t.TempDir()
	dirs := []string{"plain", "a b", "c\td"}
	for _, d := range dirs {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf(`# made by a test
%[1]s/plain 10.1.0.0/16(rw) \
	10.2.3.4(ro,all_squash) *.example.org # and so on
"%[1]s/a b" -rw,async 10.3.0.0/255.255.0.0 @group(ro)
%[1]s/c\011d 2001:db8::/32(rw,no_root_squash)
`, dir)
	file := filepath.Join(dir, "exports")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "-m", "sh", "-ec", `
mkdir "$2/etc"
cp -a /etc/. "$2/etc/"
cp "$2/exports" "$2/etc/exports"
rm -rf "$2/etc/exports.d"
mount --bind "$2/etc" /etc
mount -t tmpfs none /var/lib
mkdir /var/lib/nfs
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
"$1" -ra 2>&1 || true
echo ETAB
cat /var/lib/nfs/etab
`, "sh", bin, dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Skipf("exportfs does not run here: %v\n%s", err, out)
	}
	_, etab, _ := strings.Cut(string(out), "ETAB\n")
	if etab == "" {
		t.Skipf("exportfs exported nothing:\n%s", out)
	}
	var want, got Table
	if err := want.Parse("etab", []byte(etab)); err != nil {
		t.Fatalf("%v in\n%s", err, etab)
	}
	if err := got.Parse(file, []byte(text)); err != nil {
		t.Fatal(err)
	}
	// etab has each client in full on a line of its own.
	theirs := make(map[string][]string)
	for _, e := range want.Entries {
		for _, c := range e.Clients {
			theirs[e.Path+" "+c.Host] = c.Options
		}
	}
	ours := 0
	for _, e := range got.Entries {
		for _, c := range e.Clients {
			ours++
			host := strings.Replace(c.Host, "/255.255.0.0", "/16", 1)
			full, ok := theirs[e.Path+" "+host]
			if !ok {
				full, ok = theirs[e.Path+" "+c.Host]
			}
			if !ok {
				t.Errorf("exportfs has no %s for %s:\n%s", e.Path, host, etab)
				continue
			}
			options := make(map[string]bool)
			for _, o := range c.Options {
				options[o] = true
			}
			if options["rw"] && options["ro"] { // the later one counts
				options["rw"] = c.Options[len(c.Options)-1] == "rw"
				options["ro"] = !options["rw"]
			}
			for o, on := range options {
				if on && !slices.Contains(full, o) {
					t.Errorf("%s to %s: exportfs has %v, without %s", e.Path, host, full, o)
				}
			}
		}
	}
	if ours != len(theirs) {
		t.Errorf("%d clients, exportfs has %d:\n%s", ours, len(theirs), out)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"/a *\n", `"/a b" -ro h(rw,fsid=0) (x) \` + "\n @g", `/\040\777\0`, "# \\\n/a", "/a h(\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got Table
		err := got.Parse("f", data)
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("an error without a place: %v", err)
		}
		lines := 1 + strings.Count(string(data), "\n")
		if e != nil && (e.Line < 1 || e.Line > lines) {
			t.Fatalf("line %d of %d", e.Line, lines)
		}
		last := 0
		for _, en := range got.Entries {
			if !strings.HasPrefix(en.Path, "/") || strings.ContainsRune(en.Path, 0) || len(en.Clients) == 0 || en.Line < last ||
				en.Line > lines {
				t.Fatalf("entry %+v after line %d", en, last)
			}
			last = en.Line
			for _, c := range en.Clients {
				if c.Host == "" || strings.ContainsAny(c.Host, "()") || slices.Contains(c.Options, "") {
					t.Fatalf("client %+v", c)
				}
			}
		}
	})
}
