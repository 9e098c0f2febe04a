// Package krb5 establishes the security contexts of package gss with Kerberos (RFC 4120, RFC 4121
// section 4.1): as a server with the keys of a keytab, as a client with a service ticket. It does
// no IO and reads no clock.
package krb5
