package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana/nametype"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/krb5"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// secure is how calls are protected, as the variables SEC and KEYTAB say; nil: not at all. There is
// no KDC: the ticket of root is made with the server's own key.
func secure() (*dial.Secure, error) {
	sec := os.Getenv("SEC")
	if sec == "" {
		return nil, nil
	}
	service, ok := gss.ParseService(sec)
	if !ok {
		return nil, fmt.Errorf("there is no flavor %q", sec)
	}
	keys, err := keytab.Load(os.Getenv("KEYTAB"))
	if err != nil {
		return nil, err
	}
	if len(keys.Entries) == 0 {
		return nil, fmt.Errorf("%s is empty", os.Getenv("KEYTAB"))
	}
	key := &keys.Entries[0]
	server := types.NewPrincipalName(nametype.KRB_NT_SRV_HST, key.Principal.Components[0]+"/"+key.Principal.Components[1])
	root := types.NewPrincipalName(nametype.KRB_NT_PRINCIPAL, "root")
	realm := key.Principal.Realm
	return &dial.Secure{
		Service: service,
		Initiate: func(context.Context, string, uint32) (rpc.Initiation, error) {
			now := time.Now()
			ticket, session, err := messages.NewTicket(root, realm, server, realm, types.NewKrbFlags(), keys, key.Key.KeyType,
				int(key.KVNO), now, now, now.Add(time.Hour), now.Add(time.Hour))
			if err != nil {
				return rpc.Initiation{}, err
			}
			i, token, err := krb5.NewInitiator(root, realm, ticket, session, now)
			if err != nil {
				return rpc.Initiation{}, err
			}
			return rpc.Initiation{Token: token, Finish: i.Finish}, nil
		},
	}, nil
}
