// Package krbtest runs a Kerberos KDC for tests: MIT's krb5kdc on the loopback interface, with a
// database and all its files in a temporary directory. It knows nothing of the packages that it
// tests. Begin reading at Start. The methods of a KDC are called by the goroutine of the test.
//
//	kdc := krbtest.Start(t)
//	kdc.User("alice", "secret")
//	keytab := kdc.Keytab("", "nfs/localhost") // keys of all types
//	ccache := kdc.Login("alice", "secret")
package krbtest
