package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Protection of a connection over TCP (RFC 9289), with the names of exports(5) and of the mount
// option.
const (
	XprtNone   = "none" // nothing
	XprtTLS    = "tls"  // TLS
	XprtMutual = "mtls" // TLS, with a certificate of the client that was verified
)

var xprtsecs = []string{XprtNone, XprtTLS, XprtMutual}

// TLS is for NFS over TCP (RFC 9289). It is on if there is a certificate.
type TLS struct {
	// Certificate, with intermediate ones behind it, and Key are PEM files.
	Certificate string `mapstructure:"certificate" yaml:"certificate,omitempty"`
	Key         string `mapstructure:"key" yaml:"key,omitempty"`
	// ClientCA is a PEM file of the authorities that clients' certificates must come from.
	ClientCA string `mapstructure:"client_ca" yaml:"client_ca,omitempty"`
	// XprtSec is the default of exports.
	XprtSec []string `mapstructure:"xprtsec" yaml:"xprtsec"`
}

// On reports whether TLS is offered.
func (t *TLS) On() bool { return t.Certificate != "" }

func (t *TLS) validate() error {
	if (t.Certificate == "") != (t.Key == "") {
		return errors.New("tls: certificate and key belong together: one of the two is missing")
	}
	if t.ClientCA != "" && t.Certificate == "" {
		return errors.New("tls: client_ca says whose certificates are accepted, " +
			"but there is no TLS without certificate and key")
	}
	err := absolutePaths([]string{"certificate", "key", "client_ca"}, t.Certificate, t.Key, t.ClientCA)
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	if t.XprtSec, err = normalizeXprtSec(t.XprtSec); err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	if len(t.XprtSec) == 0 {
		return fmt.Errorf("tls: xprtsec: the list is empty, so no client could connect; name some of %s",
			strings.Join(xprtsecs, ", "))
	}
	return nil
}

// absolutePaths refuses files whose names are relative. Keys and names are in the same order; a
// name may be empty.
func absolutePaths(keys []string, names ...string) error {
	for i, name := range names {
		if name != "" && !filepath.IsAbs(name) {
			return fmt.Errorf("%s: %q is not an absolute path", keys[i], name)
		}
	}
	return nil
}

// normalizeXprtSec checks a list and brings it into one order. The colons of exports(5) are
// taken as well.
func normalizeXprtSec(list []string) ([]string, error) {
	var out []string
	for _, l := range list {
		for s := range strings.SplitSeq(l, ":") {
			s = strings.ToLower(strings.TrimSpace(s))
			if !slices.Contains(xprtsecs, s) {
				return nil, fmt.Errorf("xprtsec %q is not one of %s", s, strings.Join(xprtsecs, ", "))
			}
			if !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	slices.SortFunc(out, func(a, b string) int { return slices.Index(xprtsecs, a) - slices.Index(xprtsecs, b) })
	return out, nil
}

// OnlyTLS reports whether a normalized list admits no connection without TLS.
func OnlyTLS(list []string) bool { return len(list) > 0 && !slices.Contains(list, XprtNone) }

// tlsWarnings lists exports that no client over TCP can use with this TLS configuration.
func (c *Config) tlsWarnings() (list []string) {
	for i := range c.Exports {
		e := &c.Exports[i]
		for _, r := range e.Rules() {
			want := r.XprtSec
			if len(want) == 0 {
				want = c.TLS.XprtSec
			}
			var missing string
			switch {
			case OnlyTLS(want) && !c.TLS.On():
				missing = "there is no TLS without tls.certificate and tls.key"
			case slices.Equal(want, []string{XprtMutual}) && c.TLS.ClientCA == "":
				missing = "no certificate of a client is verified without tls.client_ca"
			default:
				continue
			}
			list = append(list, fmt.Sprintf("%s wants xprtsec=%s, but %s", e.Pseudo, strings.Join(want, ":"), missing))
			break
		}
	}
	return list
}
