package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// TestTLS finds what is wrong with certificates.
func TestTLS(t *testing.T) {
	now := time.Now()
	day := 24 * time.Hour
	good := control.TLS{
		Certificate: "/c", Key: "/k", ClientCA: "/a", Names: []string{"server"}, NotBefore: now.Add(-day),
		NotAfter: now.Add(100 * day),
	}
	with := func(f func(*control.TLS)) *control.TLS {
		c := good
		f(&c)
		return &c
	}
	soon := now.Add(day)
	export := func(sec ...string) []control.Export {
		return []control.Export{{Export: config.Export{Pseudo: "/e", Clients: []config.Client{{CIDR: "*", XprtSec: sec}}}}}
	}
	for _, c := range []struct {
		about   string
		tls     *control.TLS
		exports []control.Export
		level   Level
		want    string
	}{
		{"none", nil, export("none", "tls"), OK, ""},
		{"good", &good, export("mtls"), OK, "valid until"},
		{"unusable", with(func(c *control.TLS) { c.Error = "no key" }), nil, Fail, "no key"},
		{"early", with(func(c *control.TLS) { c.NotBefore = soon }), nil, Fail, "not valid before"},
		{"expired", with(func(c *control.TLS) { c.NotAfter = now.Add(-day) }), nil, Fail, "has expired"},
		{"expiring", with(func(c *control.TLS) { c.NotAfter = soon }), nil, Warn, "expires at"},
		{"nameless", with(func(c *control.TLS) { c.Names = nil }), nil, Fail, "no name"},
		{"old authorities", with(func(c *control.TLS) { c.ClientCANotAfter = &soon }), nil, Warn, "authorities of clients"},
		{"wanted and not there", nil, export("tls", "mtls"), Fail, "/e wants xprtsec=tls:mtls of *, but TLS is not offered"},
		{
			"wanted of nobody", with(func(c *control.TLS) { c.ClientCA = "" }), export("mtls"), Fail,
			"no certificate of a client is verified",
		},
	} {
		var r Report
		r.tls(c.tls, now)
		r.wantTLS(c.tls, c.exports)
		if c.want == "" {
			if len(r) > 0 {
				t.Errorf("%s: %+v", c.about, r)
			}
			continue
		}
		found := slices.ContainsFunc(r,
			func(f Finding) bool { return f.Level == c.level && strings.Contains(f.What, c.want) })
		if !found || r.Failed() != (c.level == Fail) {
			t.Errorf("%s: %+v", c.about, r)
		}
	}
}
