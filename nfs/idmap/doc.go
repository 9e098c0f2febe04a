// Package idmap translates between numbers of users and groups and their names in NFS version 4:
// user@domain (RFC 8881 section 5.9). It knows no user database and reads no clock: both are passed
// in. The source may wait, and so may the methods of a Map. A result is cached for a while, in
// bounded memory.
//
// Begin reading at Map. Its methods may be called from any goroutine. Callers who ask for the same
// name at the same time share one request to the source.
//
//	m := idmap.New(idmap.Config{Domain: "example.org", Names: true, Source: source})
//	uid, ok := m.Parse([]byte("alice@example.org"), false)
package idmap
