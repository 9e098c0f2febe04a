package state

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// The server accepts calls about a client of version 4.1 or later, and about its sessions, only
// from the caller that made the client. It compares three things (RFC 8881 sections 2.10.3.1 and
// 2.10.8.3):
//
//	identity   TLS and partition of the connection      every call
//	host       address of the connection                SEQUENCE, CREATE_SESSION, DESTROY_CLIENTID
//	principal  flavor and user of the credential        EXCHANGE_ID, CREATE_SESSION, DESTROY_SESSION,
//	                                                    DESTROY_CLIENTID, BIND_CONN_TO_SESSION
//
// SEQUENCE does not compare principals, because all users of a host share its sessions. The server
// remembers hosts. A host is added when it names a secret of the client as the client's principal:
// the verifier (EXCHANGE_ID) or a session ID (BIND_CONN_TO_SESSION). Neither can be guessed. So a
// client keeps its sessions if it has several addresses or changes its address.
//
// The status for another caller:
//
//	another identity   STALE_CLIENTID, BADSESSION    as if there were no such client or session
//	another host       SEQUENCE: CONN_NOT_BOUND_TO_SESSION, and the client binds its connection
//	                   CREATE_SESSION: DELAY, STALE_CLIENTID once the lease has run out
//	                   DESTROY_CLIENTID: STALE_CLIENTID
//	another principal  CREATE_SESSION: CLID_INUSE; else as for another identity
//
// A client with state protection has two more rules; see protect.go.
//
// A principal of AUTH_SYS is only what the caller claims. Alone it stops mistakes. Together with
// the address or with TLS it stops attackers too.

// Identity is what a connection shows of the client beside its address.
type Identity struct {
	Security rpc.Security
	Name     string // of the client's certificate; empty without one
	// Partition is the P_Key of an RDMA connection without the membership bit; 0 is the default
	// partition 0x7fff, and any transport without partitions.
	Partition uint16
}

// From is where a call comes from.
type From struct {
	Identity
	Host netip.Addr
	Conn int64 // number of the connection, see rpc.Peer
}

// FromPeer returns where the calls of a connection come from. The same host must compare equal over
// all listeners. So an IPv4 address mapped into IPv6 counts as the IPv4 address, and a zone is
// dropped.
func FromPeer(p *rpc.Peer) From {
	const key, standard = 0x7fff, 0x7fff // the top bit is membership, full or limited
	f := From{Host: p.Addr.Addr().Unmap().WithZone(""), Conn: p.Conn}
	f.Security, f.Name, f.Partition = p.Security, p.Name, p.PKey&key
	if f.Partition == standard {
		f.Partition = 0
	}
	return f
}

// By is the caller that asks for a change of a session or a client.
type By struct {
	Principal Principal
	// Integrity: the credential protects the whole message (RPCSEC_GSS with integrity or privacy).
	Integrity bool
	From      From
}

// An owner string is unique within one identity: nobody can end a client by its owner string over a
// connection that shows another identity. Tables and the journal have a client without an identity
// under its owner string. For a client with an identity they have a prefix before the owner string:
//
//	NUL security partition(2) name NUL owner
//
// An owner string that itself begins with NUL gets one more NUL in front. The second byte tells the
// two cases apart: the byte of security is its number plus one, so it is never 0. A NUL in the name
// would move the boundary between name and owner, and one client could then pass for another. So
// known removes NULs from names.
//
// The journal on disk has these strings. Another layout would stop clients from reclaiming after an
// upgrade with a restart.
func (i *Identity) known(owner string) string {
	switch {
	case *i != Identity{}:
		head := string([]byte{0, byte(i.Security) + 1, byte(i.Partition >> 8), byte(i.Partition)})
		return head + strings.ReplaceAll(i.Name, "\x00", "") + "\x00" + owner
	case strings.HasPrefix(owner, "\x00"):
		return "\x00" + owner
	}
	return owner
}

// ownerOf is the inverse of known: it returns the owner string as the client sent it.
func ownerOf(known string) string {
	const head = 4
	switch {
	case !strings.HasPrefix(known, "\x00"):
		return known
	case strings.HasPrefix(known, "\x00\x00"):
		return known[1:]
	}
	if len(known) > head {
		if _, owner, ok := strings.Cut(known[head:], "\x00"); ok {
			return owner
		}
	}
	return known
}

// Owner is the string by which tables and the journal know the client, over restarts of the server;
// see Identity.known.
func (c *Client) Owner() string { return c.owner }

// hostsMax is how many addresses of a client are remembered; the oldest is dropped first. A client
// that is still at a dropped address gets CONN_NOT_BOUND_TO_SESSION and binds again.
const hostsMax = 16

// binding is the identity that a client belongs to. It is immutable: join replaces the whole of it,
// so that SEQUENCE reads it with one atomic load.
type binding struct {
	Identity Identity
	Hosts    []netip.Addr
}

// is reports whether a connection shows the identity of the client. Any connection does so if a
// process of an older version made the client and recorded no identity.
func (c *Client) is(i *Identity) bool {
	b := c.bound.Load()
	return b == nil || b.Identity == *i
}

// at reports whether the client is known to be at the address.
func (c *Client) at(from *From) bool {
	b := c.bound.Load()
	return b == nil || b.Identity == from.Identity && slices.Contains(b.Hosts, from.Host)
}

// by reports whether a caller may change the client's sessions.
func (c *Client) by(b *By) bool { return c.is(&b.From.Identity) && c.proves(b.Principal, b.Integrity) }

// join remembers an address of the client. The caller has checked identity and principal before.
func (c *Client) join(host netip.Addr) {
	for {
		b := c.bound.Load()
		if b == nil || slices.Contains(b.Hosts, host) {
			return
		}
		old := b.Hosts[max(len(b.Hosts)-hostsMax+1, 0):]
		if c.bound.CompareAndSwap(b, &binding{b.Identity, append(slices.Clone(old), host)}) {
			return
		}
	}
}

// denied reports a call that was refused because the client belongs to somebody else. Call with no
// lock held.
func (s *Server) denied(c *Client, op string, from *From) {
	if s.cfg.Denied != nil {
		s.cfg.Denied(op, c.ID, *from)
	}
}

// Bindable finds a session to which a connection of by may be bound, and remembers the host (RFC
// 8881 section 18.34.3). It returns nil if the session is unknown or belongs to somebody else. The
// reply is BADSESSION in both cases, so the caller does not learn which session IDs exist.
func (s *Server) Bindable(id SessionID, by *By) *Session {
	x := s.Session(id)
	if x == nil {
		return nil
	}
	if !x.Client.by(by) {
		s.denied(x.Client, "BIND_CONN_TO_SESSION", &by.From)
		return nil
	}
	x.Client.join(by.From.Host)
	x.attach(by.From.Conn)
	return x
}
