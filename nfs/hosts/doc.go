// Package hosts decides whether a client matches a name in an export's rules: a host name, a
// pattern such as *.example.org, or a @netgroup. It does not resolve names itself: a Source does.
// It knows nothing of exports.
//
// No call of Is waits. If an answer is not known, Hosts requests it from its source in the
// background, and Is returns that it is not known yet. Answers are cached, and requested again
// while they are used. An answer that the source cannot give again stays as it was.
//
// Begin reading at Hosts.Is. The methods of Hosts may be called from any goroutine.
//
//	h := hosts.New(hosts.Config{Source: source})
//	h.Want([]string{"*.example.org"})
//	is, known := h.Is(addr, "*.example.org")
package hosts
