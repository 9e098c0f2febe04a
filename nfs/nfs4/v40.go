package nfs4

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Version 4.0 (RFC 7530) has no sessions. Who a client is, an operation says itself, if it
// says it at all; that it is executed once is for the numbers of owners (package state)
// and the duplicate request cache.

// table40 has the handlers of operations that are others in version 4.0.
var table40 [numOps]func(*compound) nfs.Status

func init() {
	table40 = [numOps]func(*compound) nfs.Status{
		OpClose:              close40,
		OpDelegReturn:        delegReturn40,
		OpLock:               lock40,
		OpLockT:              lockTest40,
		OpLockU:              unlock40,
		OpOpen:               open40,
		OpOpenConfirm:        openConfirm,
		OpOpenDowngrade:      openDowngrade40,
		OpReleaseLockOwner:   releaseLockOwner,
		OpRenew:              renew,
		OpSetClientID:        setClientID,
		OpSetClientIDConfirm: confirmClientID,
	}
}

// handler is what executes an operation; nil if there is nothing.
func (k *compound) handler(row *operation, op uint32) func(*compound) nfs.Status {
	if k.minor == 0 && table40[op] != nil {
		return table40[op]
	}
	return row.do
}

// status is a handler's status as the minor version has it for the operation (RFC 7530
// section 13.2).
func (k *compound) status(op uint32, st nfs.Status) nfs.Status {
	if k.minor > 0 {
		return st
	}
	switch {
	case st == nfs.ErrWrongType, st == nfs.ErrSymlink && (op == OpLock || op == OpLockT):
		return nfs.ErrInval
	case st == nfs.ErrPerm && op == OpLink:
		if a, err := k.saved.x.FS.GetAttr(k.who(&k.saved), k.saved.h); err == nil && a.Type == blockstore.TypeDir {
			return nfs.ErrIsDir
		}
		return nfs.ErrAcces
	}
	return st
}

// intend has the answer of a compound of version 4.0 outlive the server, if it changes names
// or attributes: who sends it again then is told what became of it, and not that the file
// that he has removed does not exist. Answers that are about opens and locks do not: those
// are gone with the server. Operations that change names do it themselves; see once.
func (k *compound) intend(op uint32) {
	if k.minor > 0 || k.client != nil {
		return
	}
	if op == OpSetAttr {
		k.c.Intend(nil)
	}
}

// byClient makes a client the one that the compound is of.
func (k *compound) byClient(id uint64) (st nfs.Status) {
	from := state.FromPeer(&k.c.Peer)
	c, st := k.s.state.Client40(k.now, id, &from)
	if st == nfs.OK {
		k.client = c
	}
	return st
}

// byState is byClient, by a stateid.
func (k *compound) byState(id state.Stateid) nfs.Status {
	from := state.FromPeer(&k.c.Peer)
	c, st := k.s.state.Holder(k.now, id, &from)
	if st == nfs.OK {
		k.client = c
	}
	return st
}

// io40 is ioStateOf in version 4.0.
func (k *compound) io40(id state.Stateid, f lock.File, write bool) nfs.Status {
	if id == state.Anonymous || id == state.Bypass {
		return k.s.state.AnonymousIO(k.now, f, write, id == state.Bypass)
	}
	if st := k.byState(id); st != nfs.OK {
		return st
	}
	return k.client.IO(k.now, id, f, write)
}

// request tells an operation from others of the same owner: by its arguments, which begin
// at from, its number, and the current file.
func (k *compound) request(op uint32, from xdr.Decoder) uint64 {
	const prime = 1099511628211
	sum := uint64(14695981039346656037)
	mix := func(w uint32) { sum = (sum ^ uint64(w)) * prime }
	mix(op)
	n := from.Remaining() - k.c.Args.Remaining()
	mix(uint32(n))
	for range n / 4 {
		mix(from.Uint32())
	}
	var b [nfs.HandleMax]byte
	for _, c := range k.appendHandle(b[:0], &k.cur) {
		mix(uint32(c))
	}
	return max(sum, 1)
}

// answer gives the answer of before.
func (k *compound) answer(r *state.Answer) nfs.Status {
	k.c.Res.Fixed(r.Result)
	k.keep = true
	k.s.replays.Add(1)
	if r.Status != nfs.OK || r.File == (lock.File{}) {
		return r.Status
	}
	if x := k.s.cfg.Exports.ByID(r.File.Export); x != nil {
		if rule, st := k.enter(x); st == nfs.OK {
			k.setCurrent(object{x: x, rule: rule, h: r.File.Handle})
			return r.Status
		}
	}
	k.c.Res.Truncate(k.c.Res.Len() - len(r.Result))
	return nfs.ErrStale
}

// endTurn ends the turn of an operation with its result.
func (k *compound) endTurn(st nfs.Status, result []byte) {
	if k.turn == nil {
		return
	}
	a := state.Answer{Status: st, Result: result}
	if k.cur.x != nil {
		a.File = k.file()
	}
	k.turn.End(&a)
	k.turn = nil
}

// turnOf begins a turn of the owner of a stateid. If done, the operation is over.
func (k *compound) turnOf(op uint32, from xdr.Decoder, id state.Stateid, kind state.Kind, seq uint32) (done bool, st nfs.Status) {
	if st := k.byState(id); st != nfs.OK {
		return true, st
	}
	t, r, st := k.client.BeginState(k.now, id, kind, seq, k.request(op, from))
	switch {
	case r != nil:
		return true, k.answer(r)
	case st != nfs.OK:
		return true, st
	}
	k.turn = t
	return false, nfs.OK
}

const resultConfirm = 2 // OPEN4_RESULT_CONFIRM

// open40 is OPEN (RFC 7530 section 16.16).
func open40(k *compound) nfs.Status {
	from := k.c.Args
	a := k.decodeOpen()
	if k.bad() || a.create && a.mode == CreateExclusive41 || a.claim > claimDelegPrev {
		return nfs.ErrBadXDR
	}
	if st := k.byClient(a.client); st != nfs.OK {
		if st == nfs.ErrStaleClientID && a.create && k.journaled() {
			k.s.journal.again(ownerSlot(&a), a.seq, k.now)
		}
		return st
	}
	t, r, st := k.client.BeginOpen(k.now, a.owner, a.seq, k.request(OpOpen, from), a.claim == ClaimPrevious)
	switch {
	case r != nil:
		return k.answer(r)
	case st != nfs.OK:
		return st
	}
	k.turn = t
	if a.want != 0 {
		return nfs.ErrInval
	}
	return k.openAs(&a)
}

// delegate40 appends the open_delegation4. Files are delegated for reading alone: who asks
// for attributes does not say who he is, and would get his own delegation recalled.
func (k *compound) delegate40(a *openArgs) {
	e := &k.c.Res
	d := state.Delegate{File: k.file(), By: k.turn}
	switch {
	case a.claim == ClaimNull && a.access == state.Read:
	case a.claim == ClaimPrevious && a.deleg == delegRead:
		d.Reclaim = true
	default:
		e.Uint32(DelegNone)
		return
	}
	got, why := k.give(&d)
	if why != state.Given {
		e.Uint32(DelegNone)
		return
	}
	e.Uint32(delegRead)
	EncodeStateid(e, got.ID)
	e.Bool(false)
	k.encodeNobody()
}

// openConfirm is OPEN_CONFIRM (section 16.18).
func openConfirm(k *compound) nfs.Status {
	d := &k.c.Args
	from := *d
	id := DecodeStateid(d)
	seq := d.Uint32()
	if st := k.ofFile(); st != nfs.OK {
		return st
	}
	if done, st := k.turnOf(OpOpenConfirm, from, id, state.OfUnconfirmed, seq); done {
		return st
	}
	next, st := k.client.ConfirmOpen(id, k.file())
	return k.stated(next, st)
}

// ofFile checks that the arguments are there, and the current file a file.
func (k *compound) ofFile() nfs.Status {
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case !k.cur.set():
		return nfs.ErrNoFileHandle
	case k.cur.x == nil:
		return nfs.ErrBadStateID
	}
	return nfs.OK
}

// stated appends the stateid that is the result of an operation.
func (k *compound) stated(id state.Stateid, st nfs.Status) nfs.Status {
	if st == nfs.OK {
		EncodeStateid(&k.c.Res, id)
	}
	return st
}

// close40 is CLOSE (section 16.2).
func close40(k *compound) nfs.Status {
	d := &k.c.Args
	from := *d
	seq := d.Uint32()
	id := DecodeStateid(d)
	if st := k.ofFile(); st != nfs.OK {
		return st
	}
	if done, st := k.turnOf(OpClose, from, id, state.OfOpen, seq); done {
		return st
	}
	next, st := k.client.Close40(k.turn, id, k.file())
	return k.stated(next, st)
}

// openDowngrade40 is OPEN_DOWNGRADE (section 16.19).
func openDowngrade40(k *compound) nfs.Status {
	d := &k.c.Args
	from := *d
	id := DecodeStateid(d)
	seq := d.Uint32()
	access, deny := d.Uint32(), d.Uint32()
	if st := k.ofFile(); st != nfs.OK {
		return st
	}
	if done, st := k.turnOf(OpOpenDowngrade, from, id, state.OfOpen, seq); done {
		return st
	}
	if access == 0 || access > state.Both || deny > state.Both {
		return nfs.ErrInval
	}
	next, st := k.client.Downgrade(id, k.file(), access, deny)
	return k.stated(next, st)
}

// lock40 is LOCK (section 16.10).
func lock40(k *compound) nfs.Status {
	d := &k.c.Args
	from := *d
	var a state.Lock
	a.Exclusive = decodeLockType(d)
	a.Reclaim = d.Bool()
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	a.ByOpen = d.Bool()
	var seq, lockSeq uint32
	var owner uint64
	if a.ByOpen {
		seq = d.Uint32()
		a.ID = DecodeStateid(d)
		lockSeq = d.Uint32()
		owner, a.Owner = d.Uint64(), d.Opaque(OwnerMax)
	} else {
		a.ID = DecodeStateid(d)
		seq = d.Uint32()
	}
	if st := k.ofFile(); st != nfs.OK {
		return st
	}
	kind := state.OfLock
	if a.ByOpen {
		kind = state.OfOpen
		if st := k.byClient(owner); st != nfs.OK {
			return st
		}
	}
	if done, st := k.turnOf(OpLock, from, a.ID, kind, seq); done {
		return st
	}
	if a.ByOpen {
		if owner != k.client.ID {
			return nfs.ErrBadStateID // of another client than the lock-owner
		}
		if st := k.turn.Locker(a.Owner, lockSeq); st != nfs.OK {
			return st
		}
	}
	if st := k.regular(); st != nfs.OK {
		return st
	}
	a.File, a.Turn = k.file(), k.turn
	id, holder, st := k.client.Lock(k.now, &a)
	if st == nfs.ErrDenied {
		k.denied(holder)
	}
	return k.stated(id, st)
}

// lockTest40 is LOCKT (section 16.11).
func lockTest40(k *compound) nfs.Status {
	d := &k.c.Args
	var a state.Lock
	a.Exclusive = decodeLockType(d)
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	owner := d.Uint64()
	a.Owner = d.Opaque(OwnerMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if st := k.byClient(owner); st != nfs.OK {
		return st
	}
	return k.testLock(&a)
}

// unlock40 is LOCKU (section 16.12).
func unlock40(k *compound) nfs.Status {
	d := &k.c.Args
	from := *d
	var a state.Lock
	decodeLockType(d)
	seq := d.Uint32()
	a.ID = DecodeStateid(d)
	a.Offset, a.Length = d.Uint64(), d.Uint64()
	if st := k.ofFile(); st != nfs.OK {
		return st
	}
	if done, st := k.turnOf(OpLockU, from, a.ID, state.OfLock, seq); done {
		return st
	}
	a.File = k.file()
	id, st := k.client.Unlock(&a)
	return k.stated(id, st)
}

// releaseLockOwner is RELEASE_LOCKOWNER (section 16.37).
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

// delegReturn40 is DELEGRETURN (section 16.6).
func delegReturn40(k *compound) nfs.Status {
	id := DecodeStateid(&k.c.Args)
	if st := k.ofFile(); st != nfs.OK {
		return st
	}
	if st := k.byState(id); st != nfs.OK {
		return st
	}
	return k.client.ReturnDelegation(id, k.file())
}

// renew is RENEW (section 16.28).
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

// netidMax and uaddrMax bound what a client says of its address, in bytes: longer than
// any of these is.
const (
	netidMax = 32
	uaddrMax = 128
)

// setClientID is SETCLIENTID (section 16.33).
func setClientID(k *compound) nfs.Status {
	d := &k.c.Args
	a := state.SetClientID{Principal: k.principal(), From: state.FromPeer(&k.c.Peer), Stranger: k.stranger(),
		Verifier: decodeVerifier(d), Owner: d.Opaque(OwnerMax)}
	a.Callback.Program = d.Uint32()
	a.Callback.Netid, a.Callback.Addr = d.String(netidMax), d.String(uaddrMax)
	a.Callback.Ident = d.Uint32()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if to := callbackAddr(a.Callback.Netid, a.Callback.Addr); to.IsValid() && to.Addr() == k.c.Peer.Addr.Addr().Unmap().WithZone("") {
		// The client's own address and no other: else anybody could have the server
		// make connections for him. Its zone is that by which the client is reached.
		a.Callback.To = netip.AddrPortFrom(k.c.Peer.Addr.Addr().Unmap(), to.Port())
	}
	if k.c.Cred.Flavor == rpc.AuthSys {
		// The Linux client takes no callback of AUTH_NONE.
		a.Callback.Cred = &rpc.Cred{Flavor: rpc.AuthSys, Machine: implName, UID: k.c.Cred.UID, GID: k.c.Cred.GID}
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
		k.keep = true
	}
	return st
}

// callbackAddr takes a universal address apart (RFC 5665 section 5.2.3). A client that
// came by RDMA listens for connections of TCP all the same: so does that of Linux, and
// there is no other connection that a server could make to it.
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

// confirmClientID is SETCLIENTID_CONFIRM (section 16.34).
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

// Once reports whether a compound of version 4.0 has to be executed once, however often it
// is sent: whether it has more in it than operations that may as well be executed again.
// In later versions that is what sessions are for. It stops at what it does not know.
func Once(d xdr.Decoder) bool {
	d.Opaque(tagMax)
	minor, n := d.Uint32(), d.Uint32()
	if d.Err() != nil || minor > 0 {
		return false
	}
	for range min(n, opsMax) {
		switch d.Uint32() {
		case OpAccess:
			d.Uint32()
		case OpCommit:
			d.Skip(8 + 4)
		case OpGetAttr:
			DecodeBitmap(&d)
		case OpGetFH, OpLookupP, OpPutPubFH, OpPutRootFH, OpReadLink, OpRestoreFH, OpSaveFH:
		case OpLookup, OpSecInfo:
			d.Opaque(nameMax)
		case OpNVerify, OpVerify:
			DecodeBitmap(&d)
			d.Opaque(fattrMax)
		case OpPutFH:
			d.Opaque(FHMax)
		case OpRead:
			d.Skip(resStateid + 8 + 4)
		case OpReadDir:
			d.Skip(8 + VerifierLen + 4 + 4)
			DecodeBitmap(&d)
		case OpRenew:
			d.Skip(8)
		case OpWrite:
			d.Skip(resStateid + 8 + 4)
			d.Bulk(nfs.MaxIO)
		default:
			return d.Err() == nil
		}
	}
	return false
}
