// Package creds has the Kerberos credentials of a client: from a credential cache as kinit fills
// it, from a keytab, or from a password. It reads krb5.conf(5) and talks to KDCs. It knows no RPC
// beyond the security context that it begins (nfs/krb5 has the tokens).
//
// Begin reading at FromCache. ccache.go reads files, renew.go renews tickets, keyring.go reads the
// kernel's keyrings, kcm.go asks the KCM daemon, users.go chooses the cache of each local user. The
// methods of Creds and Users may be called from any goroutine. They wait for the KDC.
//
//	c, err := creds.FromCache("")
//	half, err := c.Initiate(ctx, "server.example.org")
package creds
