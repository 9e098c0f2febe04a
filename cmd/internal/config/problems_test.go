package config

import (
	"errors"
	"strings"
	"testing"
)

// TestProblems: all mistakes of a file are reported at once, each with its line and its key, in
// words that are no type or function of Go.
func TestProblems(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		want       []string
	}{
		{"types", `exprots: []
lease_time: 5
tls: yes
exports:
  - path: /a
    clients: {cdir: 10.0.0.0/8}
  - path: [/b]
workers: many
grace_time: soon
otlp: [1]
otlp_x: {}
`, []string{
			`:1: key "exprots" is unknown; did you mean "exports"?`,
			`:2: lease_time: 5 has no unit; write 5s for seconds, 5m for minutes or 5h for hours`,
			`:3: tls: "yes" is a single value, but keys with values belong here`,
			`:6: exports[0].clients: key "cdir" is unknown; did you mean "cidr"?`,
			`:7: exports[1].path: is to be a single value`,
			`:8: workers: "many" is not a whole number`,
			`:9: grace_time: "soon" is not a duration, such as 90s`,
			`:10: otlp: is a list, but keys with values belong here`,
			`:11: key "otlp_x" is unknown`,
		}},
		{"values", `exports:
  - path: a
  - path: /b
    clients:
      - cidr: 10.0.0.0/8
      - squash: root_squash
tcp_listen: [here]
lease_time: 1s
log_level: loud
shards: 3
`, []string{
			":2: exports[0]: ", ":6: exports[1]: clients[1]: the rule names no client", ":7: tcp_listen: ",
			":8: lease_time: 1s is not within", ":9: log_level: ", ":10: shards: ",
		}},
		{"types and values", "exprots: []\nlease_time: 1s\ntcp_listen: [here]\nworkers: many\n", []string{
			`:1: key "exprots" is unknown`, ":2: lease_time: 1s is not within", ":3: tcp_listen: ", `:4: workers: "many" is not`,
		}},
		{"no YAML", "exports: []\nlease_time: [\n", []string{":2: this is not YAML: "}},
		{"good", "grace_time: 0\nlease_time: 90s\nidmap:\notlp: {sample: 0.5}\nstop_timeout: 0s\n", nil},
	} {
		_, err := load(t, tc.file)
		var got []string
		if err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if len(got) != len(tc.want) {
			t.Errorf("%s:\n%v", tc.name, err)
			continue
		}
		for i, w := range tc.want {
			if _, rest, _ := strings.Cut(got[i], "rstored.yaml"); !strings.HasPrefix(rest, w) {
				t.Errorf("%s: %q, want %q", tc.name, got[i], w)
			}
			for _, word := range []string{"strconv", "expected type", "decoding", "map[", " time:", "unmarshal"} {
				if strings.Contains(got[i], word) {
					t.Errorf("%s: %q", tc.name, got[i])
				}
			}
		}
	}
	t.Setenv("RSTORED_LEASE_TIME", "5")
	t.Setenv("RSTORED_WORKERS", "many")
	if _, err := load(t, "exports: []\n"); err == nil ||
		!strings.Contains(err.Error(), "RSTORED_LEASE_TIME: 5 has no unit") ||
		!strings.Contains(err.Error(), "RSTORED_WORKERS: ") {
		t.Errorf("from the environment: %v", err)
	}
	var p *Problems
	_, err := ParseDocument("t", SyntaxTable, []byte("/a *(rw,fsdi=1)\nb *\n/c 10.0.0.1(ro,anonuid=x) (rw\n/d *(ro)\n"))
	if err == nil || errors.As(err, &p) {
		t.Fatal(err)
	}
	got := strings.Split(err.Error(), "\n")
	if len(got) != 2 || !strings.HasPrefix(got[0], `t:2: path "b"`) || !strings.HasPrefix(got[1], "t:3: ") {
		t.Errorf("a table that cannot be read: %q", got)
	}
	_, err = ParseDocument("t", SyntaxTable, []byte("/a *(rw,fsdi=1)\n/c 10.0.0.1(ro,anonuid=x)\n/d *(ro)\n"))
	if err == nil {
		t.Fatal("good")
	}
	got = strings.Split(err.Error(), "\n")
	if len(got) != 2 || got[0] != `t:1: unknown export option "fsdi=1"; did you mean "fsid"?` ||
		!strings.HasPrefix(got[1], "t:2: ") {
		t.Errorf("options of a table: %q", got)
	}
}
