package nfs4

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// How a client of version 4.0 becomes known (RFC 7530 sections 9.1.1, 16.33 and 16.34):
//
//	client                                     server
//	SETCLIENTID verifier, id, callback  ---->  unconfirmed record; the older one stays in force
//	            <----  clientid, confirm
//	SETCLIENTID_CONFIRM clientid, confirm -->  confirmed; state of an older instance ends
//	            <----  OK
//	            <----  CB_NULL                 on a new connection, to the client's address
//
// After a restart of the server each client ID is STALE_CLIENTID, and the client begins here.

// releaseLockOwner is RELEASE_LOCKOWNER (section 16.37). An owner that has locks is LOCKS_HELD. An
// unknown owner is OK, because the server may have forgotten it before the client did.
func releaseLockOwner(k *compound) nfs.Status {
	client := k.c.Args.Uint64()
	owner := k.c.Args.Opaque(OwnerMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if st := k.byClient(client); st != nfs.OK {
		return st
	}
	return k.client.ReleaseLockOwner(owner)
}

// renew is RENEW (section 16.28). It renews the lease, and reports CB_PATH_DOWN to a client that
// has delegations and does not answer callbacks. In a session every SEQUENCE does both.
func renew(k *compound) nfs.Status {
	id := k.c.Args.Uint64()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if st := k.byClient(id); st != nfs.OK {
		return st
	}
	k.s.probe40(k.client)
	return k.client.Renewed()
}

// netidMax and uaddrMax bound the callback address of a client, in bytes. No real netid or
// universal address is as long. Both strings are stored with the client, and another client gets
// them with CLID_INUSE.
const (
	netidMax = 32
	uaddrMax = 128
)

// setClientID is SETCLIENTID (RFC 7530 section 16.33). It makes a client record that counts only
// after SETCLIENTID_CONFIRM with the verifier of this reply. If another principal has the client
// string the result is CLID_INUSE, with the address of that client.
//
//	arguments: verifier (8) | id<1024> | program | netid<> | address<> | callback_ident
//	OK:        clientid (8) | setclientid_confirm (8)
//	CLID_INUSE: netid<> | address<>: the only error with a result, so keepResult is set
//
// The record of a client that never confirms ends after a lease. RESOURCE says that the memory for
// clients is used up.
func setClientID(k *compound) nfs.Status {
	d := &k.c.Args
	a := state.SetClientID{
		Principal: k.principal(), From: state.FromPeer(&k.c.Peer), NoExport: k.noExport(),
		Verifier: decodeVerifier(d), Owner: d.Opaque(OwnerMax),
	}
	a.Callback.Program = d.Uint32()
	a.Callback.Netid, a.Callback.Addr = d.String(netidMax), d.String(uaddrMax)
	a.Callback.Ident = d.Uint32()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if to := callbackAddr(a.Callback.Netid, a.Callback.Addr); to.IsValid() &&
		to.Addr() == k.c.Peer.Addr.Addr().Unmap().WithZone("") {
		// Only the client's own address is used. Otherwise a client could make the server connect to
		// other hosts. The zone is that of the client's connection.
		a.Callback.To = netip.AddrPortFrom(k.c.Peer.Addr.Addr().Unmap(), to.Port())
	}
	switch c := &k.c.Cred; {
	case c.Flavor == rpc.AuthSys: // the Linux client takes no callback of AUTH_NONE
		a.Callback.Cred = &rpc.Cred{Flavor: rpc.AuthSys, Machine: implName, UID: c.UID, GID: c.GID}
	case c.Flavor.GSS():
		// Callbacks must have the flavor of the SETCLIENTID, and be to its principal (section 3.3.3).
		a.Callback.Secure = &state.Secure{Flavor: c.Flavor, Client: c.Principal, Acceptor: c.Acceptor}
	}
	got, st := k.s.state.SetClientID(k.now, &a)
	e := &k.c.Res
	switch st {
	case nfs.OK:
		e.Uint64(got.Client)
		e.Fixed(got.Confirm[:])
	case nfs.ErrClientIDInUse:
		e.String(got.InUse.Netid)
		e.String(got.InUse.Addr)
		k.keepResult = true
	}
	return st
}

// callbackAddr parses a universal address (RFC 5665 section 5.2.3). The last two numbers are the
// bytes of the port:
//
//	192.0.2.7.200.10     192.0.2.7, port 200*256 + 10
//	2001:db8::7.200.10   the same for IPv6
//
// The string comes from the client. The result is invalid if it does not parse, if the port is 0,
// or if the address has a zone. Then the client gets no callbacks and no delegations, but no error.
// For a client that came by RDMA the result is an address for TCP. The Linux client listens on TCP
// in this case, too, and the server has no other way to connect to it.
func callbackAddr(netid, uaddr string) (to netip.AddrPort) {
	rest, low, ok := cutLast(uaddr)
	host, high, ok2 := cutLast(rest)
	hi, err := strconv.ParseUint(high, 10, 8)
	lo, err2 := strconv.ParseUint(low, 10, 8)
	if !ok || !ok2 || err != nil || err2 != nil {
		return to
	}
	addr, err := netip.ParseAddr(host)
	port := uint16(hi<<8 | lo)
	if err != nil || port == 0 || addr.Zone() != "" {
		return to
	}
	switch netid {
	case "tcp":
		ok = addr.Is4()
	case "tcp6":
		ok = addr.Is6()
	case "rdma", "rdma6": // Linux says "rdma" in both cases
		ok = true
	default:
		ok = false
	}
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr.Unmap(), port)
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// confirmClientID is SETCLIENTID_CONFIRM (section 16.34). The state of a client's earlier instance
// ends here, and not at SETCLIENTID, which proves nothing. A repeated SETCLIENTID_CONFIRM is OK and
// changes nothing, so a path for callbacks is made only if the callback information is new. An
// unknown client ID or verifier is STALE_CLIENTID, another principal CLID_INUSE.
func confirmClientID(k *compound) nfs.Status {
	d := &k.c.Args
	id := d.Uint64()
	confirm := decodeVerifier(d)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	c, news, st := k.s.state.ConfirmClientID(k.now, id, confirm, k.principal())
	if st == nfs.OK && news {
		k.s.pathTo(c)
	}
	return st
}
