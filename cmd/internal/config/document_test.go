package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestDocument: what a file that is applied says, what it leaves alone, and what is wrong with it.
func TestDocument(t *testing.T) {
	for _, tc := range []struct{ syntax, text, want, err string }{
		{
			SyntaxYAML, "exports:\n- path: /a\n  clients:\n  - cidr: 10.0.0.7\n    read_only: true\n",
			"/a 10.0.0.7/32(ro,root_squash) | map[] []", "",
		},
		{SyntaxYAML, "exports: []\n", "| map[] []", ""},
		{SyntaxYAML, "tcp_listen: [':2049']\n", "none | map[tcp_listen:[:2049]] []", ""},
		{
			SyntaxYAML, "tcp_listen: []\nops_listen: 127.0.0.1:9049\n",
			"none | map[ops_listen:[127.0.0.1:9049] tcp_listen:[]] []", "",
		},
		{SyntaxYAML, "exports: []\nstate_dir: /x\nlog_level: debug\n", "| map[] [state_dir log_level]", ""},
		{SyntaxYAML, "exports:\n- path: /a\n  fast: true\n", "", `f:3: exports[0]: key "fast" is unknown`},
		{SyntaxYAML, "exports:\n- path: /a/x\n- path: /b/x\n", "", "would both appear at /x"},
		{SyntaxYAML, "exports:\n- path: a\n", "", "not absolute"},
		{SyntaxYAML, "exports_file: /etc/exports\n", "", "--syntax exports"},
		{SyntaxYAML, "tcp_listen: [nowhere]\n", "", "not ADDR:PORT"},
		{SyntaxYAML, "log_level: info\n", "", "neither exports nor ports"},
		{SyntaxYAML, "", "", "neither exports nor ports"},
		{SyntaxYAML, "exports: {", "", "f:1: this is not YAML: "},
		{SyntaxTable, "/a 10.0.0.7(rw,insecure)\n", "/a 10.0.0.7/32(rw,root_squash,sec=sys) | map[] []", ""},
		{SyntaxTable, "# nothing\n", "| map[] []", ""},
		{SyntaxTable, "/a *(nonsense)\n", "", "f:1: "},
		{"toml", "", "", "neither yaml nor exports"},
		{SyntaxTable, strings.Repeat("#", DocumentMax+1), "", "more than the"},
	} {
		d, err := ParseDocument("f", tc.syntax, []byte(tc.text))
		if tc.err != "" || err != nil {
			if err == nil || tc.err == "" || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%.40q: %v, want %q", tc.text, err, tc.err)
			}
			continue
		}
		var got string
		if d.Exports == nil {
			got = "none "
		}
		for _, e := range d.Exports {
			got += e.Path + " "
			for i := range e.Clients {
				got += e.Clients[i].String() + " "
			}
		}
		if got += fmt.Sprintf("| %v %v", d.Listen, d.Ignored); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.text, got, tc.want)
		}
	}
}

// TestWith: a document takes the place of what it names, and of nothing else.
func TestWith(t *testing.T) {
	c := Default()
	c.Exports = []Export{{Path: "/a"}}
	n := c.With(&Document{Listen: map[string][]string{"tcp_listen": {}}})
	if len(n.Exports) != 1 || len(n.TCPListen) != 0 || len(n.RDMAListen) != 1 || len(c.TCPListen) != 1 {
		t.Errorf("%+v of %+v", n, c)
	}
	if n = c.With(&Document{Exports: []Export{}}); len(n.Exports) != 0 || len(n.TCPListen) != 1 {
		t.Errorf("%+v", n)
	}
	if c.With(nil) != c {
		t.Error("no document changes something")
	}
}
