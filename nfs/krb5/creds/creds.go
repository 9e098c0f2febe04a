package creds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
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
	dns   resolver // nil: net.DefaultResolver
}

// confPath is where krb5.conf(5) is.
func confPath() string {
	path := os.Getenv("KRB5_CONFIG")
	if path == "" {
		path = "/etc/krb5.conf"
	}
	path, _, _ = strings.Cut(path, ":") // more files are for systems without one of their own
	return path
}

// conf reads krb5.conf(5). It ignores the settings that gokrb5 does not know.
func conf() (*config.Config, error) {
	path := confPath()
	cfg, err := config.Load(path)
	var unknown config.UnsupportedDirective
	if err != nil && !errors.As(err, &unknown) {
		return nil, fmt.Errorf("reading the configuration of Kerberos, %s: %w", path, err)
	}
	return cfg, nil
}

// FromCache uses the tickets in a credential cache, as the variable KRB5CCNAME names it: a path,
// FILE:path, DIR:path, KEYRING:persistent:UID or KCM:. If name is empty, the variable names the
// cache; if the variable is empty too, the cache is the best one of the user of this process (see
// Users). Creds reads the cache again for each context, so that it finds a new ticket. Creds renews
// a renewable ticket at half of its remaining life if a context was begun with it. The renewed
// ticket stays in this process: Creds never writes the cache.
func FromCache(name string) (*Creds, error) {
	if name == "" {
		name = os.Getenv("KRB5CCNAME")
	}
	cfg, err := conf()
	if err != nil {
		return nil, err
	}
	c := &cache{cfg: cfg, of: cmp.Or(name, "this user"), read: func() (*credentials.CCache, error) {
		if name == "" {
			return cacheOfUser(uint32(os.Geteuid()))
		}
		cc, err := readCache(name, anybody)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoTickets, err)
		}
		return cc, nil
	}}
	return &Creds{login: c.login}, nil
}

// FromKeytab uses the key of a principal in a keytab. An empty principal is that of a machine, as
// rpc.gssd(8) chooses it: NAME$, else root/, nfs/ or host/; without these the first one.
func FromKeytab(path, principal string) (*Creds, error) {
	keys, err := keytab.Load(path)
	if err != nil {
		return nil, fmt.Errorf("the keytab %s: %w", path, err)
	}
	cfg, err := conf()
	if err != nil {
		return nil, err
	}
	if principal == "" {
		principal = ofMachine(keys)
	}
	name, realm := split(principal, cfg)
	cl := client.NewWithKeytab(name, realm, keys, cfg, client.DisablePAFXFAST(true))
	return &Creds{login: func() (*client.Client, error) { return cl, affirm(cl, name, "key in "+path) }}, nil
}

// ofMachine chooses a principal of a keytab.
func ofMachine(keys *keytab.Keytab) (best string) {
	rank := len(machineNames) + 2
	for i := range keys.Entries {
		p := &keys.Entries[i].Principal
		if len(p.Components) == 0 {
			continue
		}
		r := len(machineNames) + 1
		if n := slices.Index(machineNames, p.Components[0]); n >= 0 && len(p.Components) == 2 {
			r = n + 1
		} else if len(p.Components) == 1 && strings.HasSuffix(p.Components[0], "$") {
			r = 0
		}
		if r < rank {
			rank, best = r, strings.Join(p.Components, "/")+"@"+p.Realm
		}
	}
	return best
}

var machineNames = []string{"root", "nfs", "host"}

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
	return &Creds{login: func() (*client.Client, error) { return cl, affirm(cl, name, "password") }}, nil
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
	_, err := netip.ParseAddr(host)
	if err == nil {
		err = fmt.Errorf("Kerberos knows servers by name: use the name of %s", host) //nolint:staticcheck // a name
		return rpc.Initiation{}, err
	}
	out, err := c.initiate(ctx, "nfs/"+host, "")
	if err != nil && strings.Contains(err.Error(), unknownService) {
		return out, fmt.Errorf("the KDC has no principal nfs/%s: %s", host, c.otherNames(ctx, host))
	}
	return out, err
}

// InitiateTo begins a context with a principal of any service, such as host/client@REALM. Its realm
// must be the one that krb5.conf(5) has for the host.
func (c *Creds) InitiateTo(ctx context.Context, principal string) (rpc.Initiation, error) {
	name, realm, _ := strings.Cut(principal, "@")
	if strings.Count(name, "/") != 1 || strings.Contains(principal, `\`) {
		return rpc.Initiation{}, fmt.Errorf("%s is no service of a host", principal)
	}
	return c.initiate(ctx, name, realm)
}

const unknownService = "KDC_ERR_S_PRINCIPAL_UNKNOWN"

// initiate begins a context with a service. If realm is not empty, the service must be in that
// realm.
func (c *Creds) initiate(ctx context.Context, service, realm string) (rpc.Initiation, error) {
	var out rpc.Initiation
	if err := ctx.Err(); err != nil {
		return out, err
	}
	cl, err := c.login()
	if err != nil {
		return out, err
	}
	ticket, session, err := cl.GetServiceTicket(service)
	if err != nil {
		return out, fmt.Errorf("getting a ticket for %s: %w", service, err)
	}
	if realm != "" && ticket.Realm != realm {
		return out, fmt.Errorf("%s is of %s, and krb5.conf has its host in %s: domain_realm", service, realm, ticket.Realm)
	}
	i, token, err := krb5.NewInitiator(cl.Credentials.CName(), cl.Credentials.Domain(), ticket, session, time.Now())
	if err != nil {
		return out, err
	}
	return rpc.Initiation{Token: token, Finish: i.Finish}, nil
}

// resolver is what otherNames needs of a net.Resolver.
type resolver interface {
	LookupCNAME(ctx context.Context, host string) (string, error)
	LookupHost(ctx context.Context, host string) ([]string, error)
	LookupAddr(ctx context.Context, addr string) ([]string, error)
}

const lookupTime = 3 * time.Second

// otherNames says which names the DNS has for a host: one of them may be in the server's principal.
func (c *Creds) otherNames(ctx context.Context, host string) string {
	dns := c.dns
	if dns == nil {
		dns = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	var names []string
	add := func(name string) {
		if name = strings.TrimSuffix(name, "."); name != "" && name != host && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if name, err := dns.LookupCNAME(ctx, host); err == nil {
		add(name)
	}
	addrs, _ := dns.LookupHost(ctx, host)
	for _, a := range addrs {
		back, _ := dns.LookupAddr(ctx, a)
		for _, name := range back {
			add(name)
		}
	}
	if len(names) == 0 {
		return "use the server's name that is in its principal"
	}
	return "the DNS also calls this host " + strings.Join(names, " and ") + "; use the name that is in its principal"
}
