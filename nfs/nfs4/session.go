package nfs4

import (
	"fmt"
	"slices"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Flags of EXCHANGE_ID (RFC 8881 section 18.35).
const (
	exchMovedRefer   = 0x00000001
	exchMovedMigr    = 0x00000002
	exchFenceOps     = 0x00000004
	exchBindPrinc    = 0x00000100
	exchNonPNFS      = 0x00010000
	exchPNFSMDS      = 0x00020000
	exchPNFSDS       = 0x00040000
	exchUpdate       = 0x40000000
	exchConfirmed    = 0x80000000
	exchFlagsOfAsked = exchMovedRefer | exchMovedMigr | exchFenceOps | exchBindPrinc | exchNonPNFS | exchPNFSMDS |
		exchPNFSDS | exchUpdate
)

// The server's description of itself (nfs_impl_id4).
const (
	implDomain = "rstored"
	implName   = "rstored"
)

func (k *compound) principal() state.Principal {
	if k.c.Cred.Flavor.GSS() {
		return state.Principal{Flavor: rpc.AuthGSS, Name: k.c.Cred.Principal}
	}
	return state.Principal{Flavor: k.c.Cred.Flavor, UID: k.c.Cred.UID}
}

// integrity reports whether the credential protects the whole call.
func (k *compound) integrity() bool {
	return k.c.Cred.Flavor == rpc.AuthKrb5i || k.c.Cred.Flavor == rpc.AuthKrb5p
}

// by returns the caller: principal, protection and place.
func (k *compound) by() *state.By {
	return &state.By{Principal: k.principal(), Integrity: k.integrity(), From: state.FromPeer(&k.c.Peer)}
}

// noExport reports whether no export admits the client. An export that is still resolving the
// client's name counts as one that does not admit it.
func (k *compound) noExport() bool {
	return !slices.ContainsFunc(k.s.cfg.Exports.Exports(), func(x *nfs.Export) bool {
		_, st := x.Admits(&k.c.Peer)
		return st == nfs.OK
	})
}

// decodeImplID reads an optional nfs_impl_id4.
func decodeImplID(d *xdr.Decoder) {
	switch d.Uint32() {
	case 0:
	case 1:
		d.Opaque(OwnerMax) // domain
		d.Opaque(OwnerMax) // name
		d.Skip(8 + 4)      // date
	default:
		d.Fail(xdr.ErrLength)
	}
}

// exchangeID is EXCHANGE_ID (section 18.35). It makes, finds or updates a client record; package
// state has the table of cases. A record has no effect before its client has confirmed it by
// CREATE_SESSION. So a client can neither end the state of another one nor fill memory for long.
// protect.go has state protection.
func exchangeID(k *compound) nfs.Status {
	d := &k.c.Args
	a := state.ExchangeID{
		Principal: k.principal(), Integrity: k.integrity(), From: state.FromPeer(&k.c.Peer), NoExport: k.noExport(),
		Verifier: decodeVerifier(d), Owner: d.Opaque(OwnerMax),
	}
	asked := d.Uint32()
	a.Update = asked&exchUpdate != 0
	protect := d.Uint32()
	if protect == protectMachCred {
		a.Protect = decodeProtection(d)
	}
	if protect != protectSSV {
		decodeImplID(d)
	}
	switch {
	case k.bad(), protect > protectSSV:
		return nfs.ErrBadXDR
	case asked&^exchFlagsOfAsked != 0, asked&exchFenceOps != 0 && k.minor < 2:
		return nfs.ErrInval // SUPP_FENCE_OPS is a flag of version 4.2 (RFC 7862 section 14.1)
	case protect == protectMachCred && !k.integrity():
		return nfs.ErrInval // the credential must protect the call (section 18.35.3)
	case protect == protectSSV:
		return nfs.ErrEncrAlgUnsupp
	}
	got, st := k.s.state.ExchangeID(k.now, &a)
	if st != nfs.OK {
		k.s.noteFull()
		return st
	}
	e := &k.c.Res
	e.Uint64(got.Client)
	e.Uint32(got.Sequence)
	flags := uint32(exchNonPNFS)
	if got.Confirmed {
		flags |= exchConfirmed
	}
	e.Uint32(flags)
	encodeProtection(e, got.Protected)
	e.Uint64(0) // so_minor_id
	e.String(k.s.identity)
	e.String(k.s.scope)
	e.Uint32(1)
	e.String(implDomain)
	e.String(implName)
	e.Uint64(0) // date: not given
	e.Uint32(0)
	return nfs.OK
}

// The most that the server grants a session. A message has room for the data of a READ or WRITE and
// for the rest of its compound.
const (
	messageMax  = nfs.MaxIO + 32<<10
	cachedMax   = 8 << 10
	opsMax      = 256
	slotsMax    = 256
	backOpsMax  = 16
	backMax     = 64 << 10
	backSlots   = 16
	sequenceLen = 16 + 4*4 // SEQUENCE4args without the number of the operation
	secParmsMax = 16
)

// The least that a channel must have, in bytes (section 18.36.3). For the fore channel that is a
// SEQUENCE alone with RPC headers and without a credential, or its result. A smaller channel is of
// no use. The client has to know whether a slightly larger one is enough for it. For the
// backchannel it is a CB_RECALL with its CB_SEQUENCE, a credential and the longest handle, or its
// result.
const (
	requestMin      = 128
	responseMin     = 96
	backResponseMin = 128
)

// backTooSmall reports whether the backchannel that a client describes is too small for any
// callback. All zeros mean that the client wants none. That is allowed, unless it asks for a
// backchannel in the same call (wanted).
func backTooSmall(c *state.Channel, wanted bool) bool {
	if *c == (state.Channel{}) && !wanted {
		return false
	}
	return c.MaxRequest < state.BackRequestMin || c.MaxResponse < backResponseMin || c.MaxOps < state.BackOpsMin
}

// DecodeChannel reads a channel_attrs4 (RFC 8881 section 18.36.1), a list of uint32:
//
//	ca_headerpadsize | ca_maxrequestsize | ca_maxresponsesize | ca_maxresponsesize_cached
//	ca_maxoperations | ca_maxrequests | number of ca_rdma_ird, 0 or 1 | ca_rdma_ird, if it is 1
func DecodeChannel(d *xdr.Decoder) (c state.Channel) {
	d.Uint32() // header padding: none
	c.MaxRequest, c.MaxResponse, c.MaxCached = d.Uint32(), d.Uint32(), d.Uint32()
	c.MaxOps, c.MaxSlots = d.Uint32(), d.Uint32()
	switch d.Uint32() {
	case 0:
	case 1:
		d.Uint32() // ca_rdma_ird, RDMA READs in flight: for connections that step up to RDMA
	default:
		d.Fail(xdr.ErrLength)
	}
	return c
}

// EncodeChannel appends a channel_attrs4 without ca_rdma_ird, in the layout that DecodeChannel
// reads.
func EncodeChannel(e *xdr.Encoder, c *state.Channel) {
	for _, v := range [...]uint32{0, c.MaxRequest, c.MaxResponse, c.MaxCached, c.MaxOps, c.MaxSlots, 0} {
		e.Uint32(v)
	}
}

// grant reduces each limit that a client asked for to the server's own limit.
func grant(c, most *state.Channel) {
	c.MaxRequest = min(c.MaxRequest, most.MaxRequest)
	c.MaxResponse = min(c.MaxResponse, most.MaxResponse)
	c.MaxCached = min(c.MaxCached, most.MaxCached)
	c.MaxOps = min(c.MaxOps, most.MaxOps)
	c.MaxSlots = min(c.MaxSlots, most.MaxSlots)
}

// Flags of CREATE_SESSION.
const (
	sessionBack  = 2         // CONN_BACK_CHAN
	sessionFlags = 1 | 2 | 4 // PERSIST, CONN_BACK_CHAN, CONN_RDMA
)

// createSession is CREATE_SESSION (section 18.36). The client asks for limits of both channels, and
// gets at most what grant allows. A channel too small for any call is TOOSMALL. The operation has a
// sequence of its own (csa_sequence), and the client record caches the last reply: a retry makes no
// second session.
//
// The server grants only one flag: CONN_BACK_CHAN, if the transport can make calls. It does not
// grant PERSIST, because the reply cache does not outlive the server. It does not grant CONN_RDMA,
// because an RDMA connection is one from its beginning.
func createSession(k *compound) nfs.Status {
	d := &k.c.Args
	a := state.CreateSession{
		Client: d.Uint64(), Sequence: d.Uint32(), Principal: k.principal(), Integrity: k.integrity(),
		From: state.FromPeer(&k.c.Peer), NoExport: k.noExport(), Minor: k.minor,
	}
	flags := d.Uint32()
	a.Fore = DecodeChannel(d)
	back := DecodeChannel(d)
	program := d.Uint32() // of the callbacks
	cred, ok := decodeSecParms(d)
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case flags&^uint32(sessionFlags) != 0:
		return nfs.ErrInval
	case a.Fore.MaxRequest < requestMin, a.Fore.MaxResponse < responseMin, a.Fore.MaxOps == 0, a.Fore.MaxSlots == 0,
		backTooSmall(&back, flags&sessionBack != 0):
		return nfs.ErrTooSmall
	}
	grant(&a.Fore, &state.Channel{
		MaxRequest: messageMax, MaxResponse: messageMax, MaxCached: cachedMax, MaxOps: opsMax,
		MaxSlots: slotsMax,
	})
	grant(&back, &state.Channel{
		MaxRequest: backMax, MaxResponse: backMax, MaxCached: 0, MaxOps: backOpsMax,
		MaxSlots: backSlots,
	})
	a.Back = state.NewBackchannel(back, program, cred)
	if flags&sessionBack != 0 && k.c.Back != nil && ok && a.Back.Usable() {
		a.Path = k.c.Back
	}
	got, st := k.s.state.CreateSession(k.now, &a)
	if st != nfs.OK {
		k.s.noteFull()
		return st
	}
	k.s.cfg.Audit.Info("nfs4_session", append(nfs.AuditCaller(k.c),
		"client_id", fmt.Sprintf("%#016x", a.Client), "version", fmt.Sprintf("4.%d", k.minor))...)
	e := &k.c.Res
	e.Fixed(got.ID[:])
	e.Uint32(got.Sequence)
	if got.Bound {
		e.Uint32(sessionBack)
	} else {
		e.Uint32(0)
	}
	EncodeChannel(e, &got.Fore)
	EncodeChannel(e, &back)
	return nfs.OK
}

// destroySession is DESTROY_SESSION (section 18.37). A compound can destroy its own session only by
// its last operation, because the slot could not cache the results of further ones. The caller must
// be the session's client: session IDs can be read on the wire.
func destroySession(k *compound) nfs.Status {
	id := DecodeSessionID(&k.c.Args)
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case k.client != nil && k.use.Session.ID == id && k.index+1 < k.count:
		return nfs.ErrNotOnlyOp
	}
	return k.s.state.DestroySession(id, k.by())
}

// destroyClientID is DESTROY_CLIENTID (section 18.50). A client with sessions or state is
// CLIENTID_BUSY.
func destroyClientID(k *compound) nfs.Status {
	id := k.c.Args.Uint64()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	return k.s.state.DestroyClient(id, k.by())
}

// setSSV is SET_SSV (section 18.47). It is INVAL, because the server grants no client state
// protection by SSV.
func setSSV(*compound) nfs.Status { return nfs.ErrInval }

// reclaimComplete is RECLAIM_COMPLETE (section 18.51). The client gets no reclaims after it. When
// all clients have sent it, the grace period may end early.
func reclaimComplete(k *compound) nfs.Status {
	one := k.c.Args.Bool()
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case one && !k.cur.set():
		return nfs.ErrNoFileHandle
	case one:
		return nfs.OK // RECLAIM_COMPLETE of one file system: state does not move with file systems
	}
	return k.client.ReclaimComplete()
}

// sequence is SEQUENCE (section 18.46). Session, slot and sequence number decide what the compound
// is (section 2.10.6.1):
//
//	the next of its slot      it is executed; the slot is in use until finish
//	the last one again        the cached reply, or RETRY_UNCACHED_REP
//	again, still executed     it waits for that to end, on a worker
//	the number, other bytes   SEQ_FALSE_RETRY: the digest differs
//	any other                 SEQ_MISORDERED
//
// Each slot can have one retry that waits and occupies a worker. slotsMax and the transport's
// credits bound that.
func sequence(k *compound) nfs.Status {
	d := &k.c.Args
	id := DecodeSessionID(d)
	r := state.Request{
		Session: id, Sequence: d.Uint32(), Slot: d.Uint32(), Digest: k.digest, Ops: k.count, Size: k.size,
		Minor: k.minor, MayWait: k.mayBlock, From: state.FromPeer(&k.c.Peer),
	}
	r.Highest = d.Uint32()
	cache := d.Bool()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	use, verdict, st := k.s.state.Sequence(k.now, &r)
	for st == nfs.OK && verdict == state.Wait {
		if use.Done == nil {
			k.again = true
			return nfs.OK
		}
		k.s.retriesWaited.Add(1)
		<-use.Done
		use, verdict, st = k.s.state.Sequence(k.now, &r)
	}
	switch {
	case st == nfs.ErrBadSession && k.journaled():
		k.s.journal.again(slotKey{r.Session, r.Slot}, r.Sequence, k.now)
		return st
	case st != nfs.OK:
		return st
	case verdict == state.Replay:
		k.replay(use.Reply)
		return nfs.OK
	case verdict == state.Uncached:
		k.putSequence(&r, use.Session)
		k.uncached = true
		return nfs.OK
	}
	k.use, k.client, k.executing, k.cacheThis = use, use.Session.Client, true, cache
	fore := &k.use.Session.Fore
	k.limit = int(fore.MaxResponse)
	if cache {
		k.limit = int(min(fore.MaxResponse, fore.MaxCached))
	}
	k.s.probe(k.use.Session)
	k.putSequence(&r, k.use.Session)
	return nfs.OK
}

// putSequence appends a SEQUENCE4resok. The target for slots is the number that the session has,
// because the server never asks a client to use fewer.
func (k *compound) putSequence(r *state.Request, x *state.Session) {
	e := &k.c.Res
	e.Fixed(r.Session[:])
	e.Uint32(r.Sequence)
	e.Uint32(r.Slot)
	e.Uint32(x.Fore.MaxSlots - 1)
	e.Uint32(x.Fore.MaxSlots - 1)
	e.Uint32(statusFlags(x))
}
