package service

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// callBack makes the Caller of a client of version 4.0. With Kerberos the server is the client of a
// security context with the principal of the client's machine, and takes its own key from the
// keytab.
func (s *Service) callBack(cb *state.Callback) rpc.Caller {
	sec := cb.Secure
	if sec == nil {
		return s.CallbackDialer.To(cb.To)
	}
	who := fmt.Sprintf("%v %q %q", sec.Flavor, sec.Acceptor, sec.Client)
	service := gss.None + gss.Service(sec.Flavor-rpc.AuthKrb5)
	return s.CallbackDialer.ToSecured(cb.To, who, func(c rpc.Client) rpc.Client {
		return rpc.NewSecured(c, service, func(ctx context.Context, _ uint32) (half rpc.Initiation, err error) {
			half, err = s.kerberos.initiate(ctx, sec)
			if err != nil {
				s.kerberos.warn("a client of version 4.0 cannot be called by Kerberos, and gets no delegations",
					zap.Stringer("client", cb.To), zap.String("principal", sec.Client), zap.Error(err))
			}
			return half, err
		})
	})
}

// initiate begins a context with a client. The ticket for the KDC is used again.
func (k *kerberos) initiate(ctx context.Context, sec *state.Secure) (half rpc.Initiation, err error) {
	if _, err := k.load(); err != nil {
		return half, err
	}
	k.mu.Lock()
	c, path := k.callers[sec.Acceptor], k.path
	k.mu.Unlock()
	if c == nil {
		if c, err = creds.FromKeytab(path, sec.Acceptor); err != nil {
			return half, err
		}
		k.mu.Lock()
		if k.path == path {
			k.callers[sec.Acceptor] = c
		}
		k.mu.Unlock()
	}
	return c.InitiateTo(ctx, sec.Client)
}
