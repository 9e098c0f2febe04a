package filecmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/pflag"
	"golang.org/x/term"

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
		switch {
		case keytab != "":
			return creds.FromKeytab(keytab, principal)
		case principal == "":
			return creds.FromCache("")
		}
		password, err := askPassword(principal)
		if err != nil {
			return nil, err
		}
		return creds.FromPassword(principal, password)
	})
	f.Func("sec", "how calls prove who makes them: sys, or `krb5`, krb5i or krb5p with the tickets that kinit got "+
		"(default: sys)", func(s string) error {
		d.Secure = nil
		service, ok := gss.ParseService(s)
		switch {
		case ok:
			initiate := func(ctx context.Context, host string, _ uint32) (rpc.Initiation, error) {
				c, err := login()
				if err != nil {
					return rpc.Initiation{}, err
				}
				return c.Initiate(ctx, host)
			}
			d.Secure = &dial.Secure{Service: service, Initiate: initiate}
		case s != "sys":
			return fmt.Errorf("unknown sec %q: use sys, krb5, krb5i or krb5p", s)
		}
		return nil
	})
	f.StringVar(&keytab, "keytab", "", "`FILE` with the key of this client, in the place of kinit's tickets")
	f.StringVar(&principal, "principal", "", "`NAME` of the key in the keytab (default: that of this host); without "+
		"--keytab, who logs in with a password, which is asked for")
}

// askPassword asks for a password at the terminal. Standard input and output may carry data.
func askPassword(principal string) (string, error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return "", errors.New("a password can be asked for only at a terminal: use --keytab, or kinit and no --principal")
	}
	defer func() { _ = tty.Close() }()
	fmt.Fprintf(tty, "Password for %s: ", principal)
	b, err := term.ReadPassword(int(tty.Fd()))
	fmt.Fprintln(tty)
	return string(b), err
}
