package nfs4

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumented holds docs/protocols.md against the table of operations: each has a row, which has
// its minor version and says whether it is served.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocols.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## NFS version 4\n")
	section, _, _ = strings.Cut(section, "\nCallbacks:\n")
	type row struct{ minor, served, limit, tests string }
	rows := make(map[string]row)
	for _, m := range regexp.MustCompile(
		`(?m)^\| ([A-Z][A-Z_, ]+) \| (\d) \| ([^|]+) \| ([^|]*) ?\| ([^|]+) \|$`).FindAllStringSubmatch(section, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			rows[name] = row{m[2], m[3], m[4], m[5]}
		}
	}
	tests, names := testBodies(t), identifiers(t)
	for n := range table {
		o := &table[n]
		if o.name == "" {
			continue
		}
		r, ok := rows[o.name]
		if !ok {
			t.Errorf("%s has no row", o.name)
			continue
		}
		delete(rows, o.name)
		tested(t, o.name, names[o.name], r.tests, tests)
		if minor := string(rune('0' + o.minor)); r.minor != minor {
			t.Errorf("%s is of minor version %s, its row says %s", o.name, minor, r.minor)
		}
		want := "yes"
		switch {
		case o.do == nil, n == OpSetSSV:
			want = "no"
		case o.is(minor0):
			want = "4.0 only"
		}
		if r.served != want {
			t.Errorf("%s: served is %q, its row says %q", o.name, want, r.served)
		}
		if notSupp := strings.HasPrefix(r.limit, "NOTSUPP"); notSupp != (want == "no" && n != OpSetSSV) {
			t.Errorf("%s: its row says %q", o.name, r.limit)
		}
	}
	for name := range rows {
		t.Errorf("there is no operation %s", name)
	}
}

// tested holds the last cell of an operation's row against the tests that there are: one of those
// named has to use the operation, and each has to exist.
func tested(t *testing.T, name, identifier, cell string, tests map[string]string) {
	uses := false
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		if !strings.HasPrefix(m[1], "Test") {
			if _, err := os.Stat("../../test/guest/scripts/" + m[1] + ".sh"); err != nil {
				t.Errorf("%s: there is no script %s: %v", name, m[1], err)
			}
			continue
		}
		body, ok := tests[m[1]]
		if !ok {
			t.Errorf("%s: there is no test %s", name, m[1])
		}
		uses = uses || regexp.MustCompile(`\b`+identifier+`\b`).MatchString(body)
	}
	if !uses {
		t.Errorf("%s: no test of %q has %s", name, cell, identifier)
	}
}

// identifiers are the constants of operations by their names.
func identifiers(t *testing.T) map[string]string {
	b, err := os.ReadFile("table.go")
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, m := range regexp.MustCompile(`(Op\w+): +\{"([A-Z_]+)"`).FindAllStringSubmatch(string(b), -1) {
		out[m[2]] = m[1]
	}
	return out
}

// testBodies are the tests of this package by their names.
func testBodies(t *testing.T) map[string]string {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?ms)^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}`).
			FindAllStringSubmatch(string(b), -1) {
			out[m[1]] = m[2]
		}
	}
	return out
}
