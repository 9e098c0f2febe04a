// Package creds has the Kerberos credentials of a client: of a credential cache as kinit fills it,
// of a keytab, or of a password. It reads krb5.conf(5) and talks to KDCs.
package creds

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/rstored/rstored/nfs/krb5"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Creds are the credentials of one principal. Its methods may be called from any goroutine.
type Creds struct {
	// login returns a client with a ticket for the KDC. It is called for each context.
	login func() (*client.Client, error)
}

// conf reads krb5.conf(5). What gokrb5 does not know in it is left out.
func conf() (*config.Config, error) {
	path := os.Getenv("KRB5_CONFIG")
	if path == "" {
		path = "/etc/krb5.conf"
	}
	path, _, _ = strings.Cut(path, ":") // more files are for systems without one of their own
	cfg, err := config.Load(path)
	var unknown config.UnsupportedDirective
	if err != nil && !errors.As(err, &unknown) {
		return nil, fmt.Errorf("reading the configuration of Kerberos, %s: %w", path, err)
	}
	return cfg, nil
}

// FromCache uses the tickets in a credential cache, as the variable KRB5CCNAME names it: a path,
// FILE:path or DIR:path. Empty means what the variable says, or else /tmp/krb5cc_UID. The cache is
// read again for each context, so that a new ticket is used.
func FromCache(name string) (*Creds, error) {
	if name == "" {
		name = os.Getenv("KRB5CCNAME")
	}
	path, err := cachePath(name)
	if err != nil {
		return nil, err
	}
	cfg, err := conf()
	if err != nil {
		return nil, err
	}
	return &Creds{func() (*client.Client, error) {
		cc, err := credentials.LoadCCache(path)
		if err != nil {
			return nil, fmt.Errorf("there are no Kerberos tickets; kinit gets one: %w", err)
		}
		cl, err := client.NewFromCCache(cc, cfg, client.DisablePAFXFAST(true))
		if err != nil {
			return nil, fmt.Errorf("the tickets in %s: %w; kinit gets others", path, err)
		}
		for _, e := range cc.GetEntries() {
			names := e.Server.PrincipalName.NameString
			if len(names) > 0 && names[0] == "krbtgt" && time.Now().After(e.EndTime) {
				return nil, fmt.Errorf("the ticket in %s expired %v ago; kinit gets another", path,
					time.Since(e.EndTime).Round(time.Second))
			}
		}
		return cl, nil
	}}, nil
}

func cachePath(name string) (string, error) {
	kind, path, ok := strings.Cut(name, ":")
	switch {
	case name == "":
		return fmt.Sprintf("/tmp/krb5cc_%d", os.Getuid()), nil
	case !ok || strings.Contains(kind, "/"):
		return name, nil
	case kind == "FILE":
		return path, nil
	case kind == "DIR":
		primary, err := os.ReadFile(filepath.Join(path, "primary"))
		if err != nil {
			return "", fmt.Errorf("the credential cache %s: %w", name, err)
		}
		return filepath.Join(path, filepath.Base(strings.TrimSpace(string(primary)))), nil
	}
	return "", fmt.Errorf("the credential cache %s is of a kind that only MIT's library reads: use kinit -c FILE:PATH "+
		"and KRB5CCNAME=FILE:PATH", name)
}

// FromKeytab uses the key of a principal in a keytab. An empty principal is the first one in it.
func FromKeytab(path, principal string) (*Creds, error) {
	keys, err := keytab.Load(path)
	if err != nil {
		return nil, fmt.Errorf("the keytab %s: %w", path, err)
	}
	cfg, err := conf()
	if err != nil {
		return nil, err
	}
	if principal == "" && len(keys.Entries) > 0 {
		p := &keys.Entries[0].Principal
		principal = strings.Join(p.Components, "/") + "@" + p.Realm
	}
	name, realm := split(principal, cfg)
	cl := client.NewWithKeytab(name, realm, keys, cfg, client.DisablePAFXFAST(true))
	return &Creds{func() (*client.Client, error) { return cl, affirm(cl, name, "key in "+path) }}, nil
}

// affirm gets a ticket for the KDC, if there is none that is valid.
func affirm(cl *client.Client, name, proof string) error {
	err := cl.AffirmLogin()
	if err == nil {
		return nil
	}
	for text, why := range map[string]string{
		"keytab incorrect":            "the " + proof + " is wrong",
		"PREAUTH_FAILED":              "the " + proof + " is wrong",
		"KDC_ERR_C_PRINCIPAL_UNKNOWN": "the KDC does not know this principal",
		"KRB_AP_ERR_SKEW":             "the clocks of KDC and this host differ too much",
	} {
		if strings.Contains(err.Error(), text) {
			return fmt.Errorf("logging in as %s: %s: %w", name, why, err)
		}
	}
	return fmt.Errorf("logging in as %s: %w", name, err)
}

// FromPassword uses a password. A principal without a realm is of the default realm.
func FromPassword(principal, password string) (*Creds, error) {
	cfg, err := conf()
	if err != nil {
		return nil, err
	}
	name, realm := split(principal, cfg)
	cl := client.NewWithPassword(name, realm, password, cfg, client.DisablePAFXFAST(true))
	return &Creds{func() (*client.Client, error) { return cl, affirm(cl, name, "password") }}, nil
}

func split(principal string, cfg *config.Config) (name, realm string) {
	name, realm, _ = strings.Cut(principal, "@")
	if realm == "" {
		realm = cfg.LibDefaults.DefaultRealm
	}
	return name, realm
}

// Initiate begins a context with the NFS service of a host. The host's name is not looked up: it
// must be the name in the service's principal.
func (c *Creds) Initiate(ctx context.Context, host string) (rpc.Initiation, error) {
	var out rpc.Initiation
	if err := ctx.Err(); err != nil {
		return out, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return out, fmt.Errorf("Kerberos knows servers by name: use the name of %s", host) //nolint:staticcheck // a name
	}
	cl, err := c.login()
	if err != nil {
		return out, err
	}
	service := "nfs/" + host
	ticket, session, err := cl.GetServiceTicket(service)
	if err != nil {
		if strings.Contains(err.Error(), "KDC_ERR_S_PRINCIPAL_UNKNOWN") {
			return out, fmt.Errorf("the KDC has no principal %s: is that the server's name?", service)
		}
		return out, fmt.Errorf("getting a ticket for %s: %w", service, err)
	}
	i, token, err := krb5.NewInitiator(cl.Credentials.CName(), cl.Credentials.Domain(), ticket, session, time.Now())
	if err != nil {
		return out, err
	}
	return rpc.Initiation{Token: token, Finish: i.Finish}, nil
}
