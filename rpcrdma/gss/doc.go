// Package gss is RPCSEC_GSS version 1 (RFC 2203) with the per-message tokens of Kerberos (RFC
// 4121), without IO. It reads no clock: the caller passes the time in.
//
//	Context        keys of one security context: MIC and sealed Wrap tokens
//	Cred, Init     what calls and replies have on the wire
//	Window         sequence numbers that a server has seen
//	Server         the contexts of a server, found by their handles
//	Client         one context of a client
//
// Contexts are established by an Acceptor and an initiator, see package nfs/krb5. The methods of
// Context, Server, ServerContext and Client may be called from any goroutine.
package gss
