package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rstored/rstored/nfs"
)

// Kerberos is for exports with sec=krb5, krb5i or krb5p. It is on if there is a keytab.
type Kerberos struct {
	// Keytab is a file with keys of nfs/ principals.
	Keytab string `mapstructure:"keytab" yaml:"keytab,omitempty"`
	// Realms are those of which user@REALM is the user of this host; empty means the keytab's.
	Realms []string `mapstructure:"realms" yaml:"realms,omitempty"`
	// AuthToLocal is a krb5.conf whose rules say which users principals are, in the place of Realms.
	AuthToLocal string `mapstructure:"auth_to_local" yaml:"auth_to_local,omitempty"`
	// Users are PRINCIPAL=USER.
	Users []string `mapstructure:"users" yaml:"users,omitempty"`
	// RC4 accepts tickets that are encrypted with RC4.
	RC4 bool `mapstructure:"rc4" yaml:"rc4,omitempty"`
	// RequirePAC refuses tickets of users that do not name the account.
	RequirePAC bool `mapstructure:"require_pac" yaml:"require_pac,omitempty"`
}

// On reports whether Kerberos is accepted.
func (k *Kerberos) On() bool { return k.Keytab != "" }

// User is the user of this host that a principal is by the setting users.
func (k *Kerberos) User(principal string) (name string, ok bool) {
	for _, u := range k.Users {
		if p, name, _ := strings.Cut(u, "="); p == principal {
			return name, true
		}
	}
	return "", false
}

func (k *Kerberos) validate() error {
	if err := absolutePaths([]string{"keytab", "auth_to_local"}, k.Keytab, k.AuthToLocal); err != nil {
		return fmt.Errorf("kerberos: %w", err)
	}
	if !k.On() && (k.RC4 || k.RequirePAC) {
		return errors.New("kerberos: rc4 and require_pac say which tickets are accepted, but none is accepted without keytab")
	}
	if !k.On() && len(k.Realms)+len(k.Users)+len(k.AuthToLocal) > 0 {
		return errors.New("kerberos: realms, auth_to_local and users say who principals are, but there is no Kerberos " +
			"without keytab")
	}
	if len(k.Realms) > 0 && k.AuthToLocal != "" {
		return fmt.Errorf("kerberos: the rules of %s (auth_to_local) say which realms count: leave out realms",
			k.AuthToLocal)
	}
	for _, r := range k.Realms {
		if r == "" || strings.ContainsAny(r, "@/= \t\n") {
			return fmt.Errorf("kerberos: realms: %q is not a realm", r)
		}
	}
	for _, u := range k.Users {
		p, name, ok := strings.Cut(u, "=")
		if _, realm, at := strings.Cut(p, "@"); !ok || !at || realm == "" || name == "" {
			return fmt.Errorf("kerberos: users: %q is not of the form PRINCIPAL@REALM=USER", u)
		}
	}
	return nil
}

// kerberosWarnings lists exports that no client can use without a keytab.
func (c *Config) kerberosWarnings() (list []string) {
	if c.Kerberos.On() {
		return nil
	}
	for i := range c.Exports {
		e := &c.Exports[i]
		if slices.ContainsFunc(e.Rules(), func(r Client) bool {
			f := r.NFS().Flavors
			return f != 0 && f&^nfs.FlavorsGSS == 0
		}) {
			list = append(list, e.Pseudo+" wants Kerberos, but there is none without kerberos.keytab")
		}
	}
	return list
}

// validateSecurity checks TLS and Kerberos, and warns of exports that need what is missing.
func (c *Config) validateSecurity() error {
	if err := errors.Join(c.TLS.validate(), c.Kerberos.validate()); err != nil {
		return err
	}
	for _, w := range append(c.tlsWarnings(), c.kerberosWarnings()...) {
		if !slices.Contains(c.Warnings, w) {
			c.Warnings = append(c.Warnings, w)
		}
	}
	return nil
}
