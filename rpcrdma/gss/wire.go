package gss

import (
	"fmt"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Flavor is the number of the RPC authentication flavor RPCSEC_GSS.
const Flavor = 6

// Version is the version of RPCSEC_GSS that the package speaks. It does not speak versions 2 (RFC
// 5403) and 3 (RFC 7861): Linux, MIT's libgssrpc and libtirpc know only version 1 (RPC_GSS_VERSION
// in the kernel's include/linux/sunrpc/auth_gss.h).
const Version = 1

// OIDKrb5 is the object identifier of the Kerberos mechanism, DER encoded (RFC 4121 section 1).
var OIDKrb5 = []byte{0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02}

// Proc is the control procedure of a call (gss_proc, RFC 2203 section 5).
type Proc uint32

// Control procedures.
const (
	Data         Proc = 0
	Init         Proc = 1
	ContinueInit Proc = 2
	Destroy      Proc = 3
)

// Service is the protection of the arguments and results of a call.
type Service uint32

// Services.
const (
	None      Service = 1 // only the header is protected
	Integrity Service = 2
	Privacy   Service = 3
)

// String returns the name of the service with Kerberos, as exports(5) and the mount option sec have
// it.
func (s Service) String() string {
	switch s {
	case None:
		return "krb5"
	case Integrity:
		return "krb5i"
	case Privacy:
		return "krb5p"
	}
	return fmt.Sprintf("service %d", uint32(s))
}

// ParseService is the reverse of String.
func ParseService(name string) (s Service, ok bool) {
	for _, s = range [...]Service{None, Integrity, Privacy} {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

const (
	// SeqMax is the largest sequence number of a call, below MAXSEQ (RFC 2203 section 5.3.3.1). A
	// context that has reached it must be replaced.
	SeqMax = 1<<31 - 1
	// HandleMax is the longest context handle that a credential has room for, in bytes.
	HandleMax = 400 - 5*4
	// InitTokenMax is the longest token that establishes a context, in bytes. A ticket with the PAC
	// of a user in 1,000 groups has about 12,000.
	InitTokenMax = 64 << 10
)

// Cred is the body of a credential (rpc_gss_cred_t).
//
//	version | gss_proc | sequence number | service | context handle (opaque)
type Cred struct {
	Version uint32
	Proc    Proc
	Seq     uint32
	Service Service
	Handle  []byte
}

// Decode reads the body of a credential. Handle aliases body. Version, procedure and service may
// have any value.
func (c *Cred) Decode(body []byte) error {
	d := xdr.NewDecoder(body)
	c.Version, c.Proc = d.Uint32(), Proc(d.Uint32())
	if d.Err() == nil && c.Version != Version {
		return nil // another version may have another form
	}
	c.Seq, c.Service = d.Uint32(), Service(d.Uint32())
	c.Handle = d.Opaque(HandleMax)
	if d.Err() == nil && d.Remaining() > 0 {
		d.Fail(xdr.ErrLength)
	}
	return d.Err()
}

// Append appends flavor, length and body of the credential.
func (c *Cred) Append(e *xdr.Encoder) {
	e.Uint32s(Flavor, uint32(5*4+xdr.Padded(len(c.Handle))), c.Version, uint32(c.Proc), c.Seq, uint32(c.Service))
	e.Opaque(c.Handle)
}

// Major statuses (RFC 2744 section 3.9.1).
const (
	Complete          = 0
	ContinueNeeded    = 1
	BadMech           = 1 << 16
	NoCred            = 7 << 16
	DefectiveToken    = 9 << 16
	CredentialExpired = 11 << 16
	DuplicateToken    = 2 // supplementary
	Failure           = 13 << 16
)

// InitRes are the results of Init (rpc_gss_init_res).
//
//	context handle (opaque) | major | minor | sequence window | token (opaque)
type InitRes struct {
	Handle       []byte
	Major, Minor uint32
	Window       uint32
	Token        []byte
}

// Append appends the results.
func (r *InitRes) Append(e *xdr.Encoder) {
	e.Opaque(r.Handle)
	e.Uint32s(r.Major, r.Minor, r.Window)
	e.Opaque(r.Token)
}

// Decode reads the results. Handle and Token alias the message.
func (r *InitRes) Decode(d *xdr.Decoder) error {
	r.Handle = d.Opaque(HandleMax)
	r.Major, r.Minor, r.Window = d.Uint32(), d.Uint32(), d.Uint32()
	r.Token = d.Opaque(InitTokenMax)
	return d.Err()
}

// windowSize is the sequence window of a server. It is larger than the number of calls that a
// client has in flight on all connections.
const windowSize = 1024

// Window remembers which sequence numbers a server has seen (RFC 2203 section 5.3.3.1).
//
//	            top-windowSize     top
//	... dropped |   seen, or not   | new: moves the window
type Window struct {
	top  uint32
	seen [windowSize / 64]uint64
	used bool
}

// Admit reports whether seq is new and not below the window, and marks it as seen.
func (w *Window) Admit(seq uint32) bool {
	switch {
	case !w.used:
		w.used, w.top = true, seq
	case seq > w.top:
		if seq-w.top >= windowSize {
			clear(w.seen[:])
		} else {
			for s := w.top + 1; s != seq; s++ {
				w.seen[s/64%(windowSize/64)] &^= 1 << (s % 64)
			}
			w.seen[seq/64%(windowSize/64)] &^= 1 << (seq % 64)
		}
		w.top = seq
	case w.top-seq >= windowSize:
		return false
	}
	word, bit := &w.seen[seq/64%(windowSize/64)], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
