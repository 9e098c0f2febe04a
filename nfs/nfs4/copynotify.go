package nfs4

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A copy between two servers (RFC 7862 section 4.6.2). Each server serves both roles:
//
//	client                       source                       destination
//	COPY_NOTIFY --------------->  remembers who may read
//	     <----------------------  copy stateid, own address
//	COPY with both -------------------------------------->    connects to the source
//	     <------------------------------------------------    stateid of the copy
//	                             READ, copy stateid <------
//	     <------------------------------------------------    CB_OFFLOAD
//
// This file has the source, copyremote.go the destination.

// netloc4 (RFC 7862 section 4.7).
const (
	locName    = 1
	locURL     = 2
	locAddress = 3
	locMax     = 1024 // bytes of a name or URL
)

// resCopyNotify is the longest result of COPY_NOTIFY in bytes: lease, stateid, count, kind, netid
// of at most 5 characters, address with port of at most 48.
const resCopyNotify = 12 + resStateid + 4 + 4 + 12 + 4 + 48

// defaultPort is the port of NFS over TCP.
const defaultPort = 2049

// decodeNetloc reads a netloc4. The result is invalid for an address that does not parse. It is
// also invalid for a name or URL: the server does not resolve them, and Linux never sends them.
// byRDMA says that the netid is one of RDMA.
func decodeNetloc(d *xdr.Decoder) (at netip.AddrPort, byRDMA bool) {
	switch d.Uint32() {
	case locName, locURL:
		d.Opaque(locMax)
	case locAddress:
		netid, addr := d.String(netidMax), d.String(uaddrMax)
		at, byRDMA = callbackAddr(netid, addr), strings.HasPrefix(netid, "rdma")
	default:
		d.Fail(xdr.ErrLength)
	}
	return at, byRDMA
}

// encodeNetloc appends an address. The netid is always that of TCP: the Linux server does not copy
// from a source that is named with that of RDMA. A destination that has RDMA may try it all the same.
func encodeNetloc(e *xdr.Encoder, at netip.AddrPort) {
	e.Uint32(locAddress)
	netid, host := "tcp", at.Addr().Unmap().WithZone("")
	if host.Is6() {
		netid = "tcp6"
	}
	e.String(netid)
	p := at.Port()
	e.String(host.String() + "." + strconv.Itoa(int(p>>8)) + "." + strconv.Itoa(int(p&0xff)))
}

// copyNotify is COPY_NOTIFY (RFC 7862 section 15.3): the client names the server that will read the
// current file, and gets a copy stateid for it:
//
//	arguments: stateid | netloc4 destination
//	result:    lease (nfstime4) | copy stateid | netloc4 source<1>
//
//	NOTSUPP       no copies between servers are configured: the Linux client does not ask again
//	ACCES         the destination is not among the configured servers
//	BAD_STATEID   a special stateid: there is no open whose end would end the permission
func copyNotify(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	to, _ := decodeNetloc(d)
	partners := k.s.cfg.CopyPartners
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case partners == nil || !partners.Enabled():
		return nfs.ErrNotSupp
	case id == state.Anonymous || id == state.Bypass:
		return nfs.ErrBadStateID
	}
	if st := k.regular(); st != nfs.OK {
		return st
	}
	if st := k.ioState(id, false); st != nfs.OK {
		return st
	}
	if !to.IsValid() || !partners.Admits(to.Addr()) {
		k.s.copies.denied.Add(1)
		return nfs.ErrAcces
	}
	who := k.who(&k.cur)
	got, st := k.client.Notify(k.now, id, &state.Notice{
		File: k.file(), To: to.Addr(), UID: who.UID, GID: who.GID, Groups: slices.Clone(who.Groups),
	})
	if st != nfs.OK {
		return k.badState(st)
	}
	k.s.copies.notified.Add(1)
	at := k.c.Peer.Local
	if k.c.Peer.Transport != rpc.TransportTCP || at.Port() == 0 {
		at = netip.AddrPortFrom(at.Addr(), defaultPort)
	}
	e := &k.c.Res
	e.Uint64(uint64(k.s.state.Lease().Seconds()))
	e.Uint32(0)   // nanoseconds
	k.curID = got // an operation that returns a stateid sets the current one (RFC 8881 section 16.2.3.1.2)
	EncodeStateid(e, got)
	e.Uint32(1)
	encodeNetloc(e, at)
	return nfs.OK
}

// noticed admits an operation that reads by a copy stateid of COPY_NOTIFY. The client of the
// session is then the destination server, whose users this server need not know. So this operation,
// and no other, has the identity of the user who sent the COPY_NOTIFY, until endOp. The rule of the
// export for the destination applies as for every client.
//
// Only operations that read the current file may come here. In a COPY the identity would apply to
// the target as well.
func (k *compound) noticed(id state.Stateid) nfs.Status {
	if k.op != OpRead && k.op != OpReadPlus && k.op != OpSeek || k.s.cfg.CopyPartners == nil {
		return nfs.ErrBadStateID
	}
	n, st := k.s.state.Noticed(k.now, id, k.file(), k.c.Peer.Addr.Addr())
	if st != nfs.OK {
		if st == nfs.ErrAcces {
			k.s.copies.denied.Add(1)
		}
		return st
	}
	if !k.s.cfg.CopyPartners.Admits(n.To) {
		k.s.copies.denied.Add(1)
		return nfs.ErrAcces
	}
	k.cred.UID, k.cred.GID = n.UID, n.GID
	k.cred.Groups = append(k.cred.Groups[:0], n.Groups...)
	k.credOf, k.noticedAs = k.cur.rule, true
	return nfs.OK
}

// endOp ends what belongs to one operation: the reservations of inChange, and the identity of
// noticed.
func (k *compound) endOp() {
	k.endChanges()
	if k.noticedAs {
		k.noticedAs, k.credOf = false, nil
	}
}
