// Package gss is RPCSEC_GSS version 1 (RFC 2203) with the per-message tokens of Kerberos (RFC
// 4121). It protects calls and replies with the keys of a security context.
//
//	Context        keys of one security context; makes and checks MIC tokens and Wrap tokens
//	Cred, InitRes  what calls and replies have on the wire
//	Window         the sequence numbers that a server has seen
//	Server         the contexts of a server, found by their handles
//	Client         one context of a client
//
// The package does no IO and reads no clock: callers pass the time. It does not know tickets,
// keytabs and KDCs (nfs/krb5 and nfs/krb5/creds), RPC headers and programs (rpcrdma/rpc), or
// transports.
//
// Begin reading with wire.go, then server.go, which has the checks of a call. context.go and
// token.go have the cryptography, protect.go the body of a message.
//
// # The life of a context
//
//	client                                     server
//	initiator makes a token
//	  Init, token             ------------->   Server.Accept: Acceptor checks the token,
//	                                           Identify finds the user
//	  Finish makes the keys   <-------------   handle, window, token
//	Client.Next, Finish
//	  call                    ------------->   Server.Find, Check; Context.Unprotect
//	Client.Check, Results     <-------------   Context.Protect, ReplyVerifier
//	  Destroy                 ------------->   Server.Destroy
//
// A server is made like this:
//
//	s := gss.NewServer(gss.ServerConfig{
//		Acceptor: &krb5.Acceptor{Service: "nfs", Keytab: keytab},
//		Identify: func(principal string) gss.Identity { return users[principal] },
//	})
//
// # Concurrency
//
// The methods of Context, Server, ServerContext and Client may be called from any goroutine. One
// goroutine at a time may use a Window. The Window of a ServerContext has a lock.
package gss
