package config

import (
	"slices"
	"strings"
	"testing"
)

// TestTLSSection checks the section, and what it wants of the exports.
func TestTLSSection(t *testing.T) {
	const pair = "  certificate: /c\n  key: /k\n"
	for _, c := range []struct {
		about, yaml, fail, warn string
		want                    []string
	}{
		{about: "nothing", yaml: "", want: []string{"none", "tls", "mtls"}},
		{about: "all", yaml: "tls:\n" + pair + "  client_ca: /a\n  xprtsec: [mtls, tls]\n", want: []string{"tls", "mtls"}},
		{about: "colons", yaml: "tls:\n" + pair + "  xprtsec: [\"mtls:NONE\"]\n", want: []string{"none", "mtls"}},
		{about: "no key", yaml: "tls:\n  certificate: /c\n", fail: "belong together"},
		{about: "authorities alone", yaml: "tls:\n  client_ca: /c\n", fail: "without certificate and key"},
		{about: "relative", yaml: "tls:\n  certificate: c\n  key: /k\n", fail: "not an absolute path"},
		{about: "no such security", yaml: "tls:\n  xprtsec: [ssl]\n", fail: "not one of none, tls, mtls"},
		{about: "nobody", yaml: "tls:\n  xprtsec: []\n", fail: "the list is empty"},
		{
			about: "an export without TLS",
			yaml:  "exports:\n  - path: /a\n    clients:\n      - {cidr: 10.0.0.0/8, xprtsec: [tls]}\n",
			warn:  "/a wants xprtsec=tls, but there is no TLS",
		},
		{
			about: "an export without authorities",
			yaml:  "tls:\n" + pair + "exports:\n  - path: /a\n    clients:\n      - {cidr: 10.0.0.0/8, xprtsec: [mtls]}\n",
			warn:  "without tls.client_ca",
		},
		{
			about: "all exports without TLS", yaml: "tls:\n  xprtsec: [tls, mtls]\nexports:\n  - path: /a\n",
			warn: "/a wants xprtsec=tls:mtls, but there is no TLS",
		},
		{
			about: "an export that says it itself",
			yaml: "tls:\n  xprtsec: [tls, mtls]\nexports:\n  - path: /a\n    clients:\n      - {cidr: 10.0.0.0/8, xprtsec: " +
				"[none]}\n",
		},
	} {
		cfg, err := load(t, c.yaml)
		if c.fail != "" {
			if err == nil || !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%s: %v", c.about, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.about, err)
			continue
		}
		if c.want != nil && !slices.Equal(cfg.TLS.XprtSec, c.want) {
			t.Errorf("%s: %q", c.about, cfg.TLS.XprtSec)
		}
		if warned := strings.Join(cfg.Warnings, "\n"); (c.warn == "") != (warned == "") || !strings.Contains(warned, c.warn) {
			t.Errorf("%s: warnings %q", c.about, warned)
		}
		if err := cfg.Validate(); err != nil || len(cfg.Warnings) > 1 {
			t.Errorf("%s: again %v %q", c.about, err, cfg.Warnings)
		}
	}
}
