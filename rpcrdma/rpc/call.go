package rpc

import (
	"strconv"
	"time"

	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// AuthFlavor is an RPC authentication flavor.
type AuthFlavor uint32

// Flavors that are understood.
const (
	AuthNone AuthFlavor = 0
	AuthSys  AuthFlavor = 1
	// AuthGSS is RPCSEC_GSS on the wire (RFC 2203).
	AuthGSS AuthFlavor = 6
	// AuthTLS is in a call of procedure NULL, the probe for TLS (RFC 9289 section 4.1).
	AuthTLS AuthFlavor = 7
	// Pseudo flavors (RFC 2623 section 2.2): RPCSEC_GSS with Kerberos and one of its services.
	AuthKrb5  AuthFlavor = 390003
	AuthKrb5i AuthFlavor = 390004
	AuthKrb5p AuthFlavor = 390005
)

// String is the name as exports(5) and the mount option sec have it.
func (f AuthFlavor) String() string {
	switch f {
	case AuthNone:
		return "none"
	case AuthSys:
		return "sys"
	case AuthKrb5, AuthKrb5i, AuthKrb5p:
		return (gss.None + gss.Service(f-AuthKrb5)).String()
	}
	return "flavor " + strconv.FormatUint(uint64(f), 10)
}

// GSS reports whether f is a pseudo flavor of RPCSEC_GSS.
func (f AuthFlavor) GSS() bool { return f >= AuthKrb5 && f <= AuthKrb5p }

// Cred is the decoded credential of a call. A procedure sees AUTH_NONE, AUTH_SYS or a pseudo flavor
// of RPCSEC_GSS. With a pseudo flavor UID, GID and Groups are those of the user of this host whom
// Principal is mapped to.
type Cred struct {
	Flavor AuthFlavor
	// Principal is the verified Kerberos principal with its realm. Unmapped: no user of this host is
	// this principal. Acceptor is the principal of this server by which the caller knows it.
	Principal string
	Acceptor  string
	Unmapped  bool
	Machine   string
	UID       uint32
	GID       uint32
	Groups    []uint32
}

// AcceptStat is the accept_stat of an accepted reply (RFC 5531 section 9).
type AcceptStat uint32

// Accept statuses.
const (
	RPCSuccess   AcceptStat = 0
	ProgUnavail  AcceptStat = 1
	ProgMismatch AcceptStat = 2
	ProcUnavail  AcceptStat = 3
	GarbageArgs  AcceptStat = 4
	SystemErr    AcceptStat = 5
)

// Call is one request on its way through the server. The transport owns it and its buffers. A
// handler may use everything in it until it returns its status.
//
//	transport                    server                              procedure
//	Reset, sets its fields
//	Dispatch        ------->     header, reply cache
//	                             on the loop, or on a worker ----->  Serve
//	                             Observer                    <-----  Status, results in Res
//	sends Res       <-------     Reply
//	Delivery().Delivered ---->   the cached reply may age
type Call struct {
	XID  uint32
	Prog uint32
	Vers uint32
	Proc uint32
	Cred Cred
	Peer Peer

	// Args is positioned at the procedure's arguments. Bulk arguments that arrived by RDMA READ are
	// segments of their own, so Args.Opaque returns them in place.
	Args xdr.Decoder
	// Res receives the procedure's results. Bulk results are added by Res.Bulk, in memory of
	// Payload.
	Res xdr.Encoder

	// Back makes calls to the client on the connection of this call, or is nil if the transport
	// cannot. The handler may retain it.
	Back Caller
	// Alloc is set by the transport. See Payload.
	Alloc func(n int) []byte
	// Loans is set by a transport that can send borrowed memory. See Borrow.
	Loans Lender
	// BulkMax is the room of the transport for the first bulk result in bytes, or -1 if it has no
	// limit of its own.
	BulkMax int
	// BulkNext is set by a transport that limits further bulk results. See NextBulk.
	BulkNext func() int

	// Reply is set by the transport and called exactly once per dispatched call, from any
	// goroutine, with the whole reply message in Res. drop says that no reply is sent. From then
	// on the transport owns the call again.
	Reply func(c *Call, drop bool)
	// Elsewhere is set by a transport whose loop must serve no procedure, not even one that never
	// waits: all go to workers.
	Elsewhere bool
	// CanTLS is set by a transport that can start TLS after the reply, StartTLS by the server to
	// make it do so.
	CanTLS, StartTLS bool
	// Settler is set by a transport that must be called to report which replies were delivered.
	Settler Settler
	// TransportData is the transport's own state of the call.
	TransportData any
	// Meta is for the server's Observer.
	Meta CallMeta

	proc  *Proc
	stats *procStats
	entry *drcEntry
	cache *replyCache
	base  int           // length of the reply header in Res
	row   int           // the procedure's index in Procedures
	came  time.Duration // when it was dispatched, since the server's start
	moved time.Duration // when a worker took it, since it was dispatched; 0 if none did
	size  int           // of the arguments in bytes
	start int64         // of a call in the reply cache: when it was looked up, see now
	next  *Call         // in the work queue, or waiting for the same request's reply

	delivery Delivery

	args *xdr.Decoder // a copy of Args as it was dispatched, for a trace

	detached bool

	gss gssCall

	deferrals *deferred
	mayServe  func() bool   // ServerConfig.MayServe
	deferred  bool          // Defer reserved a place for the call
	wait      time.Duration // how long it is deferred
	// Paid: the procedure has counted the call against the limits of its client. It stays set when
	// the procedure is called again.
	Paid bool
}

// Defer reserves a place among the deferred calls for the duration d. If ok, the procedure
// returns Later and is called again after d, on a worker. Otherwise too many calls are deferred.
func (c *Call) Defer(d time.Duration) (ok bool) {
	if c.deferrals == nil || !c.deferrals.reserve() {
		return false
	}
	c.deferred, c.wait = true, d
	return true
}

// Deferred reports whether the call had to wait by Defer since it was Reset.
func (c *Call) Deferred() bool { return c.wait > 0 }

// Arguments is a decoder of the procedure's arguments from their beginning, for the server's
// Observer, while the server traces; see Server.Trace.
func (c *Call) Arguments() (d xdr.Decoder, ok bool) {
	if c.args == nil {
		return d, false
	}
	return *c.args, true
}

// Detach notes that the call leaves the goroutine that dispatched it. It is called before another
// goroutine has the call.
func (c *Call) Detach() { c.detached = true }

// Detached reports, in Reply, whether Reply may run on another goroutine than the one that
// dispatched the call. If not, Dispatch has not returned yet.
func (c *Call) Detached() bool { return c.detached }

// Reset prepares a call for reuse. It retains the memory of the encoder and of the credential's
// groups, and the fields that the transport has set.
func (c *Call) Reset() {
	c.Res.Reset()
	*c = Call{
		Cred: Cred{Machine: c.Cred.Machine, Groups: c.Cred.Groups[:0]}, Res: c.Res, Alloc: c.Alloc, Loans: c.Loans,
		BulkMax: -1, BulkNext: c.BulkNext, Reply: c.Reply, TransportData: c.TransportData, Peer: c.Peer,
		Back: c.Back, Settler: c.Settler,
	}
}

// Delivery returns, in Reply and until Reset, the value by which the transport reports that the
// client has acknowledged the reply.
func (c *Call) Delivery() Delivery { return c.delivery }

// stopped reports whether the server may not serve any more (ServerConfig.MayServe).
func (c *Call) stopped() bool { return c.mayServe != nil && !c.mayServe() }

// Journaled reports whether the call is to be announced by Intend.
func (c *Call) Journaled() bool { return c.entry != nil && c.cache.journal.mem != nil }

// Intend writes to the journal that the call is about to change something. From note, at most 64
// bytes, the procedure can find out after a crash whether the change was made. note is copied.
// Without a journal Intend does nothing.
func (c *Call) Intend(note []byte) {
	if c.Journaled() {
		c.cache.intend(c, note)
	}
}

// Doubt returns the note of an earlier execution of the same call, which a crash of the server
// interrupted between Intend and the reply. It is nil if there was none. The procedure finds out
// whether its change was made. It makes the change, or answers as if it had just made it.
func (c *Call) Doubt() []byte {
	if c.entry == nil {
		return nil
	}
	return c.entry.doubt
}

// NextBulk is the room in bytes for the next bulk result, behind what is in Res, or -1 if the
// transport has no limit of its own.
func (c *Call) NextBulk() int {
	switch {
	case len(c.Res.Refs) == 0:
		return c.BulkMax
	case c.BulkNext != nil:
		return c.gss.less(c.BulkNext())
	}
	return -1
}

// Payload returns n bytes of the transport's memory for a bulk result: registered memory for RDMA.
// The memory belongs to the call. The transport releases it when the reply has been delivered.
// Payload returns nil if there is no memory; the handler then answers with a retryable error.
func (c *Call) Payload(n int) []byte {
	if c.Alloc == nil {
		return make([]byte, n)
	}
	return c.Alloc(n)
}

// Borrowed is memory of an owner (mapped pages of a file, say) from which a bulk result is sent
// without a copy. Others may change it meanwhile. If the file is truncated, reading the memory
// faults.
type Borrowed interface {
	Bytes() []byte
	// Copy copies src, a part of Bytes, to dst. It returns an error instead of a fault.
	Copy(dst, src []byte) error
	// Release is called when nothing uses the memory any more.
	Release()
}

// Lender is implemented by a transport that can send borrowed memory.
type Lender interface {
	// Borrows reports whether the next bulk result of a call can be n bytes of borrowed memory. The
	// transport itself does not read them.
	Borrows(c *Call, n int) bool
	// Borrow adds b to the memory that the transport releases after the reply.
	Borrow(b Borrowed)
}

// Borrows reports whether Borrow may be called with n bytes for the next bulk result.
func (c *Call) Borrows(n int) bool {
	// A cached reply would be copied.
	// What is protected must not change before the client has it.
	return c.Loans != nil && c.entry == nil && c.gss.cred.Service <= gss.None && c.Loans.Borrows(c, n)
}

// Borrow adds borrowed memory as the next bulk result. The transport releases it when the reply has
// been delivered, or is not sent.
func (c *Call) Borrow(b Borrowed) {
	c.Loans.Borrow(b)
	c.Res.Bulk(b.Bytes())
}

// Status is what a procedure returns.
type Status uint8

// Outcomes of a procedure.
const (
	// Done: results are in Call.Res.
	Done Status = iota
	// Again: the procedure would have to wait and mayBlock was false. It has changed nothing, and
	// is called again where it may wait.
	Again
	// Garbage: the arguments do not decode; GARBAGE_ARGS.
	Garbage
	// Failed: SYSTEM_ERR.
	Failed
	// Drop: send no reply at all.
	Drop
	// Later: as Again, after the time of Defer. No worker waits meanwhile.
	Later
	// BadCred: the call is denied with AUTH_ERROR/AUTH_TOOWEAK.
	BadCred
)

// Proc is one row of a program's table.
type Proc struct {
	Name string
	// Mutates: the procedure is not idempotent. Its replies are in the duplicate request cache.
	Mutates bool
	// Once is Mutates for procedures where that depends on the arguments. It gets a copy of the
	// decoder, and must not wait.
	Once func(args xdr.Decoder) bool
	// Inline: the procedure may be called on a transport's loop with mayBlock false; it returns
	// Again if it would have to wait. Other procedures are called by workers only.
	Inline bool
	Serve  func(c *Call, mayBlock bool) Status
	// Pace, if set, applies rate limits to a call before it is served, see Server.Pace. It must not
	// wait, and gets the arguments up to the bulk argument.
	Pace func(c *Call, bulk int, take bool) (limit uint32, wait time.Duration, ok bool)
}

// Program is one version of an RPC program. Procs is indexed by procedure number; a row with a nil
// Serve is answered with PROC_UNAVAIL.
type Program struct {
	Name  string
	Prog  uint32
	Vers  uint32
	Procs []Proc
}
