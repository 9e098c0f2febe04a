package nfs4

import (
	"os"
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
	type row struct{ minor, served, limit string }
	rows := make(map[string]row)
	for _, m := range regexp.MustCompile(
		`(?m)^\| ([A-Z][A-Z_, ]+) \| (\d) \| ([^|]+) \| ([^|]*) ?\|$`).FindAllStringSubmatch(section, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			rows[name] = row{m[2], m[3], m[4]}
		}
	}
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
