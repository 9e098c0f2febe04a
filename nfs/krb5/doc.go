// Package krb5 establishes the security contexts of rpcrdma/gss with Kerberos (RFC 4120, RFC 4121
// section 4.1): as a server with the keys of a keytab, as a client with a service ticket.
//
// It does no IO and reads no clock: callers pass the time, the keytab and the ticket. It does not
// talk to KDCs and reads no krb5.conf(5) (package creds does), and it does not know which user a
// principal is (gss.ServerConfig.Identify). Checksums and encryption of messages are in package
// gss.
//
// Begin reading with Acceptor.Accept, which has the table of refusals, then initiator.go. token.go
// has the framing of both tokens.
//
//	client                                              server
//	NewInitiator: ticket, authenticator  -- AP-REQ -->  Acceptor.Accept: checks both, chooses a key
//	Initiator.Finish: checks, takes key  <-- AP-REP --  gss.Established
//
// A server:
//
//	a := &krb5.Acceptor{Service: "nfs", Keytab: func() (*keytab.Keytab, error) { return keys, nil }}
//	contexts := gss.NewServer(gss.ServerConfig{Acceptor: a, Identify: identify})
//
// An Acceptor may be used from any goroutine. An Initiator is for one establishment, by one
// goroutine.
package krb5
