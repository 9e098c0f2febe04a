package filecmd

import (
	"context"
	"fmt"
	"sync"

	"github.com/spf13/pflag"

	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// kerberosFlags adds the flags of Kerberos. The credentials are read when the first connection
// needs them.
func kerberosFlags(f *pflag.FlagSet, d *dial.Dialer) {
	var keytab, principal string
	login := sync.OnceValues(func() (*creds.Creds, error) {
		if keytab != "" {
			return creds.FromKeytab(keytab, principal)
		}
		return creds.FromCache("")
	})
	f.Func("sec", "how calls prove who makes them: sys, or `krb5`, krb5i or krb5p with the tickets that kinit got "+
		"(default: sys)", func(s string) error {
		d.Secure = nil
		if s == "sys" {
			return nil
		}
		for _, service := range [...]gss.Service{gss.None, gss.Integrity, gss.Privacy} {
			if service.String() == s {
				d.Secure = &dial.Secure{
					Service: service, Initiate: func(ctx context.Context, host string) (rpc.Initiation, error) {
						c, err := login()
						if err != nil {
							return rpc.Initiation{}, err
						}
						return c.Initiate(ctx, host)
					},
				}
				return nil
			}
		}
		return fmt.Errorf("unknown sec %q: use sys, krb5, krb5i or krb5p", s)
	})
	f.StringVar(&keytab, "keytab", "", "`FILE` with the key of this client, in the place of kinit's tickets")
	f.StringVar(&principal, "principal", "", "`NAME` of the key in the keytab (default: the first)")
}
