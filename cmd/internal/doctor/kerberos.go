package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Kerberos tries what calls with Kerberos need, step by step: a ticket for the server, a security
// context, and a call in it. It does so over the transport of u.
func Kerberos(ctx context.Context, u client.URL, sec *dial.Secure) Report {
	var r Report
	host, _, err := net.SplitHostPort(u.Host)
	if err != nil {
		r.add(Fail, "krb5-ticket", "", "%v", err)
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, 2*connectTime)
	defer cancel()
	half, err := sec.Initiate(ctx, host, 0)
	if err != nil {
		r.add(Fail, "krb5-ticket", "'klist' shows the tickets, 'kinit' gets one, and 'kvno nfs/"+host+
			"' tries the KDC alone", "no ticket for the server: %v", err)
		return r
	}
	r.ok("krb5-ticket", "the KDC has given a ticket for nfs/%s", host)
	d := &dial.Dialer{GiveUp: callTime}
	defer func() { _ = d.Close() }()
	conn, err := d.Connect(ctx, u, nil)
	if err != nil {
		r.add(Fail, "krb5-context", "", "connecting to %s: %v", u.Host, plain(err))
		return r
	}
	used := false
	s := rpc.NewSecured(conn, sec.Service, func(ctx context.Context, _ uint32) (rpc.Initiation, error) {
		if used { // a token counts once
			return sec.Initiate(ctx, host, 0)
		}
		used = true
		return half, nil
	})
	defer func() { _ = s.Close() }()
	begun := time.Now()
	if err := s.Call(ctx, &rpc.Request{Prog: nfs3.Program, Vers: nfs3.Version, Proc: nfs3.ProcNull}); err != nil {
		r.add(Fail, "krb5-context", contextHint(err, host), "a call with sec=%v: %v", sec.Service, plain(err))
		return r
	}
	r.ok("krb5-context", "a call with sec=%v: answered in %v, the establishment of the context included", sec.Service,
		time.Since(begun).Round(100*time.Microsecond))
	return r
}

// contextHint says what to do if a context could not be established.
func contextHint(err error, host string) string {
	var refused *gss.InitError
	var denied *rpc.DeniedError
	switch {
	case errors.As(err, &denied):
		return "on the server: set kerberos.keytab to a keytab with a key of nfs/" + host
	case !errors.As(err, &refused):
		return "rstorectl doctor, on the server"
	}
	switch refused.Minor & 0xff { // RFC 4120 section 7.5.9
	case 32: // expired
		return "kinit"
	case 33, 37: // not valid yet, clock skew
		return "set the clocks of this host, the server and the KDC: 'timedatectl set-ntp true' on each; the server's " +
			"log says by how much they differ"
	case 31, 44, 45: // wrong key, version or enctype
		return fmt.Sprintf("give the server a new keytab ('kadmin -q \"ktadd -k KEYTAB nfs/%s\"'), then 'kdestroy' and "+
			"'kinit' here", host)
	case 35: // another service
		return "name the server in the URL as its principal does: 'klist -k KEYTAB' on the server"
	}
	return "the server's log says why"
}
