package state

import (
	"slices"

	"github.com/rstored/rstored/nfs"
)

// Protection is state protection (SP4_MACH_CRED, RFC 8881 sections 2.10.8.3 and 18.35.3). The
// client asks for it in EXCHANGE_ID, with the credential of its machine. From then on the principal
// alone is not enough: the calls that make, bind and end sessions and the client need a credential
// that protects the whole message. Otherwise somebody on the network could change a call of the
// machine.
//
//	call                      by another principal, or without integrity
//	EXCHANGE_ID               CLID_INUSE, with the flag of an update PERM
//	CREATE_SESSION            WRONG_CRED
//	DESTROY_SESSION           WRONG_CRED
//	DESTROY_CLIENTID          WRONG_CRED
//	BIND_CONN_TO_SESSION      BADSESSION: WRONG_CRED is none of its errors (section 15.2)
//	SEQUENCE                  any principal, but only on connections of the session
//
// A connection is one of the session after CREATE_SESSION or BIND_CONN_TO_SESSION on it, both by
// the machine (section 18.34.3). Without state protection SEQUENCE itself makes it one.
type Protection struct {
	// Allow has the operations that the machine may send whatever flavors the export accepts. Bit n
	// is operation n. They are the operations that a client still needs when the credential of a
	// user has expired.
	Allow uint64
}

// proves reports whether a caller is the principal that made the client. A client with state
// protection needs integrity too.
func (c *Client) proves(p Principal, integrity bool) bool {
	return c.principal == p && (c.protected == nil || integrity)
}

// wrong is the status for a caller that is not the client: WRONG_CRED if the client has state
// protection, else st. A connection with another identity does not learn that there is such a
// client.
func (c *Client) wrong(by *By, st nfs.Status) nfs.Status {
	if c.protected == nil || !c.is(&by.From.Identity) || !c.at(&by.From) {
		return st
	}
	return nfs.ErrWrongCred
}

// Allows reports whether by is the machine of a client with state protection, and may send the
// operation whatever flavors the export accepts.
func (c *Client) Allows(by *By, op uint32) bool {
	return c.protected != nil && op < 64 && c.protected.Allow&(1<<op) != 0 && c.by(by)
}

// connsMax is how many connections of a session are remembered. A new one replaces the oldest. If
// the client still uses that one, it gets CONN_NOT_BOUND_TO_SESSION and binds it again.
const connsMax = 64

// attach makes a connection one of the session. It does not remove connections that have ended:
// their numbers are never used again.
func (x *Session) attach(conn int64) {
	for x.Client.protected != nil {
		old := x.conns.Load()
		var list []int64
		if old != nil {
			if slices.Contains(*old, conn) {
				return
			}
			list = (*old)[max(len(*old)-connsMax+1, 0):]
		}
		list = append(slices.Clone(list), conn)
		if x.conns.CompareAndSwap(old, &list) {
			return
		}
	}
}

// attached reports whether a call of the session may come by a connection.
func (x *Session) attached(conn int64) bool {
	list := x.conns.Load()
	return list == nil || slices.Contains(*list, conn)
}
