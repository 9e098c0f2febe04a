// Package rpc is ONC RPC version 2 (RFC 5531) without a transport: message headers, AUTH_NONE and
// AUTH_SYS, program tables, workers, and the duplicate request cache. Transports (RPC-over-RDMA in
// rpcrdma, record-marked TCP in rpcrdma/tcp) pass messages in as Calls and send the replies.
package rpc

import (
	"net/netip"
	"time"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Transport is the kind of transport of a call.
type Transport uint8

// Transports.
const (
	TransportTCP Transport = iota + 1
	TransportRDMA
)

func (t Transport) String() string {
	switch t {
	case TransportTCP:
		return "tcp"
	case TransportRDMA:
		return "rdma"
	}
	return "unknown"
}

// Peer describes the other end of a connection.
type Peer struct {
	Addr      netip.AddrPort
	Local     netip.AddrPort
	Transport Transport
	PKey      uint16 // our key of the partition of an RDMA connection; 0 for other transports
	// Conn is the connection's number, see NextConn.
	Conn int64
	// Security is the protection of the connection. Name is the peer's name in its certificate, if
	// that was verified.
	Security Security
	Name     string
}

// Security is what protects a connection, apart from the credentials of its calls (RFC 9289).
type Security uint8

// Securities.
const (
	Cleartext Security = iota
	// TLS hides and protects what is said. The peer is anybody.
	TLS
	// MutualTLS has verified the peer's certificate as well.
	MutualTLS
)

// String is the name as exports(5) and the mount option xprtsec have it.
func (s Security) String() string {
	switch s {
	case Cleartext:
		return "none"
	case TLS:
		return "tls"
	case MutualTLS:
		return "mtls"
	}
	return "unknown"
}

// AuthFlavor is an RPC authentication flavor.
type AuthFlavor uint32

// Flavors that are understood.
const (
	AuthNone AuthFlavor = 0
	AuthSys  AuthFlavor = 1
	// AuthTLS asks in a call of procedure NULL whether TLS may begin (RFC 9289 section 4.1).
	AuthTLS AuthFlavor = 7
)

// Cred is the decoded credential of a call.
type Cred struct {
	Flavor  AuthFlavor
	Machine string
	UID     uint32
	GID     uint32
	Groups  []uint32
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
type Call struct {
	XID  uint32
	Prog uint32
	Vers uint32
	Proc uint32
	Cred Cred
	Peer Peer

	// Args is positioned at the procedure's arguments. Bulk arguments that
	// arrived by RDMA READ are segments of their own, so Args.Opaque returns
	// them in place.
	Args xdr.Decoder
	// Res receives the procedure's results. Put bulk results in with
	// Res.Bulk, from memory obtained by Payload.
	Res xdr.Encoder

	// Back makes calls to the client on the connection of this call. Transports that can set it.
	// The handler may retain it.
	Back Caller
	// Alloc is set by the transport. See Payload.
	Alloc func(n int) []byte
	// Loans is set by a transport that can send memory of others. See Borrow.
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
	// CanTLS is set by a transport that can start TLS after the reply, and StartTLS by the server
	// if it has to.
	CanTLS, StartTLS bool
	// Settler is set by a transport that learns of the delivery of replies only by asking.
	Settler Settler
	// TransportData is the transport's own state of the call.
	TransportData any
	// Notes are for the server's Observer.
	Meta CallMeta

	proc  *Proc
	stats *procStats
	entry *drcEntry
	cache *replyCache
	base  int           // length of the reply header in Res
	row   int           // the procedure's place in Procedures
	came  time.Duration // when it was dispatched, since the server's start
	moved time.Duration // when a worker took it, since it was dispatched; 0 if none did
	size  int           // of the arguments in bytes
	start int64         // of a call in the reply cache: when it was looked up, see now
	next  *Call         // in the work queue, or waiting for the same request's reply

	delivery Delivery

	args *xdr.Decoder // a copy of Args as it was dispatched, for a trace

	detached bool

	deferrals *deferred
	deferred  bool          // Defer reserved a place for the call
	wait      time.Duration // how long it is deferred
	// Paid is the procedure's own note that the call has been counted against what its
	// caller may do. It stays when the procedure is called again.
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

// Detach notes that the call leaves the goroutine that dispatched it. Whoever
// hands a call over does so before another goroutine can see it.
func (c *Call) Detach() { c.detached = true }

// Detached reports, in Reply, whether Reply may run on another goroutine than
// the one that dispatched the call. If not, Dispatch has not returned yet.
func (c *Call) Detached() bool { return c.detached }

// Reset prepares a call for reuse, keeping the memory of its encoder, its
// credential's groups, and what the transport set.
func (c *Call) Reset() {
	c.Res.Reset()
	*c = Call{
		Cred: Cred{Machine: c.Cred.Machine, Groups: c.Cred.Groups[:0]}, Res: c.Res, Alloc: c.Alloc, Loans: c.Loans,
		BulkMax: -1, BulkNext: c.BulkNext, Reply: c.Reply, TransportData: c.TransportData, Peer: c.Peer,
		Back: c.Back, Settler: c.Settler,
	}
}

// Delivery is, in Reply and until Reset, how the transport reports that the client has
// acknowledged the reply.
func (c *Call) Delivery() Delivery { return c.delivery }

// Journaled reports whether the server wants to know by Intend what the call is
// about to do.
func (c *Call) Journaled() bool { return c.entry != nil && c.cache.journal.mem != nil }

// Intend notes that the call is about to change something. note, at most 64
// bytes, is what its procedure needs to see, after a crash, whether the change was
// made; it is copied. Without a journal Intend does nothing.
func (c *Call) Intend(note []byte) {
	if c.Journaled() {
		c.cache.intend(c, note)
	}
}

// Doubt returns the note of an earlier execution of this very call, sent again,
// which a crash of the server cut off somewhere between Intend and the reply; nil
// if there was none. The procedure finds out whether its change was made, and
// makes it or answers as if it had just done so.
func (c *Call) Doubt() []byte {
	if c.entry == nil {
		return nil
	}
	return c.entry.doubt
}

// NextBulk is how many bytes of bulk result the transport can place for the next bulk
// item, behind what is in Res, or -1 if it sets no limit of its own.
func (c *Call) NextBulk() int {
	switch {
	case len(c.Res.Refs) == 0:
		return c.BulkMax
	case c.BulkNext != nil:
		return c.BulkNext()
	}
	return -1
}

// Payload returns n bytes of the transport's memory to read a bulk result into
// (registered memory for RDMA). The memory belongs to the call and is released
// by the transport once the reply has been delivered. It is nil if the transport
// has none to give; the handler then answers with a retryable error.
func (c *Call) Payload(n int) []byte {
	if c.Alloc == nil {
		return make([]byte, n)
	}
	return c.Alloc(n)
}

// Borrowed is memory that a bulk result is sent from, until it is released. Others may
// change it meanwhile, or take it away: touching it is a fault then.
type Borrowed interface {
	Bytes() []byte
	// Copy copies src, a part of Bytes, to dst, as it is now, without a fault.
	Copy(dst, src []byte) error
	// Release is called once nothing uses the memory.
	Release()
}

// Lender is what a transport does to send memory that is not its own.
type Lender interface {
	// Borrows reports whether the next bulk result of a call can be n bytes of such memory,
	// which the transport does not look at.
	Borrows(c *Call, n int) bool
	// Borrow takes it over.
	Borrow(b Borrowed)
}

// Borrows reports whether Borrow may be called with n bytes for the next bulk result.
func (c *Call) Borrows(n int) bool {
	// A reply that is kept would be copied.
	return c.Loans != nil && c.entry == nil && c.Loans.Borrows(c, n)
}

// Borrow puts memory that is not the transport's in as the next bulk result. The transport
// releases it once the reply has been delivered, or is not sent.
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
	// Again: the procedure would have to wait and mayBlock was false. Nothing
	// was changed and Res is reset; call it again where waiting is allowed.
	Again
	// Garbage: the arguments do not decode; GARBAGE_ARGS.
	Garbage
	// Failed: SYSTEM_ERR.
	Failed
	// Drop: send no reply at all.
	Drop
	// Later: as Again, after the time that Defer was asked for. No worker waits meanwhile.
	Later
	// BadCred: the call is denied with AUTH_ERROR/AUTH_TOOWEAK.
	BadCred
)

// Proc is one row of a program's table.
type Proc struct {
	Name string
	// Mutates: not idempotent, kept in the duplicate request cache.
	Mutates bool
	// Once says so of a call by its arguments, where it is not the same for all of a
	// procedure. It gets a copy of the decoder, and must not wait.
	Once func(args xdr.Decoder) bool
	// Inline: never waits; may be served on a transport's loop with mayBlock
	// false, and returns Again if it must wait after all. Rows without it are
	// sent to a worker at once.
	Inline bool
	Serve  func(c *Call, mayBlock bool) Status
	// Pace, if set, counts a call against limits before it is served, see Server.Pace. It
	// must not wait, and gets the arguments up to the bulk argument.
	Pace func(c *Call, bulk int, take bool) (limit uint32, wait time.Duration, ok bool)
}

// Program is one version of an RPC program. Procs is indexed by procedure
// number; a row with a nil Serve answers PROC_UNAVAIL.
type Program struct {
	Name  string
	Prog  uint32
	Vers  uint32
	Procs []Proc
}
