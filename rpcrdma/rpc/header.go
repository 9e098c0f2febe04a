package rpc

import (
	"encoding/binary"
	"errors"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Words of RFC 5531 section 9.
const (
	Version = 2

	MsgCall  = 0
	MsgReply = 1

	replyAccepted = 0
	replyDenied   = 1

	rejectRPCMismatch = 0
	rejectAuthError   = 1
)

// AuthStat says why a credential was refused (auth_stat).
type AuthStat uint32

// Auth statuses.
const (
	AuthBadCred      AuthStat = 1
	AuthRejectedCred AuthStat = 2
	AuthBadVerf      AuthStat = 3
	AuthTooWeak      AuthStat = 5
)

// Limits of the opaque parts of a header.
const (
	AuthBodyMax    = 400 // RFC 5531 section 8.2
	MachineNameMax = 255
	GroupsMax      = 16
)

// headerFault says how a call header is wrong.
type headerFault uint8

const (
	headerFine headerFault = iota
	headerNotACall
	headerVersion
	headerCred
	headerVerf
)

// decodeHeader reads a call header up to the arguments, without allocating in
// the steady state. After headerNotACall nothing may be answered.
func decodeHeader(d *xdr.Decoder, c *Call) headerFault {
	c.XID = d.Uint32()
	if d.Uint32() != MsgCall || d.Err() != nil {
		return headerNotACall
	}
	vers := d.Uint32()
	c.Prog, c.Vers, c.Proc = d.Uint32(), d.Uint32(), d.Uint32()
	if vers != Version && d.Offset() >= 12 {
		return headerVersion
	}
	if d.Err() != nil {
		return headerNotACall
	}
	c.Cred.Flavor = AuthFlavor(d.Uint32())
	body := d.Opaque(AuthBodyMax)
	if d.Err() != nil || c.Cred.Flavor == AuthSys && !c.Cred.decodeSys(body) {
		return headerCred
	}
	verf := d.Uint32() // that of AUTH_NONE and AUTH_SYS says nothing
	verfBody := d.Opaque(AuthBodyMax)
	if d.Err() != nil {
		return headerVerf
	}
	if c.Cred.Flavor == AuthTLS {
		switch { // RFC 9289 section 4.1
		case len(body) != 0:
			return headerCred
		case verf != uint32(AuthNone) || len(verfBody) != 0:
			return headerVerf
		}
	}
	return headerFine
}

// decodeSys reads the body of an AUTH_SYS credential (RFC 5531 appendix A).
func (c *Cred) decodeSys(body []byte) bool {
	d := xdr.NewDecoder(body)
	d.Uint32() // stamp
	name := d.Opaque(MachineNameMax)
	if string(name) != c.Machine { // a connection's calls come from one machine
		c.Machine = string(name)
	}
	c.UID, c.GID = d.Uint32(), d.Uint32()
	n := d.Uint32()
	if d.Err() != nil || n > GroupsMax {
		return false
	}
	c.Groups = c.Groups[:0]
	for range n {
		c.Groups = append(c.Groups, d.Uint32())
	}
	return d.Err() == nil
}

// EncodeCall appends a call header.
func EncodeCall(e *xdr.Encoder, xid, prog, vers, proc uint32, cred *Cred) {
	e.Uint32(xid)
	e.Uint32(MsgCall)
	e.Uint32(Version)
	e.Uint32(prog)
	e.Uint32(vers)
	e.Uint32(proc)
	if cred == nil || cred.Flavor == AuthNone {
		e.Uint32(uint32(AuthNone))
		e.Uint32(0)
	} else {
		groups := cred.Groups[:min(len(cred.Groups), GroupsMax)]
		name := cred.Machine[:min(len(cred.Machine), MachineNameMax)]
		e.Uint32(uint32(AuthSys))
		e.Uint32(uint32(4 + 4 + len(name) + xdr.Pad(len(name)) + 4*(3+len(groups))))
		e.Uint32(0)
		e.String(name)
		e.Uint32(cred.UID)
		e.Uint32(cred.GID)
		e.Uint32(uint32(len(groups)))
		for _, g := range groups {
			e.Uint32(g)
		}
	}
	e.Uint32(uint32(AuthNone))
	e.Uint32(0)
}

// encodeAccepted appends the header of an accepted reply. For ProgMismatch the
// caller appends the lowest and highest version.
func encodeAccepted(e *xdr.Encoder, xid uint32, s AcceptStat) {
	e.Uint32(xid)
	e.Uint32(MsgReply)
	e.Uint32(replyAccepted)
	e.Uint32(uint32(AuthNone))
	e.Uint32(0)
	e.Uint32(uint32(s))
}

// tokenTLS is the verifier of a reply by which a server takes up TLS (RFC 9289 section 4.1).
const tokenTLS = "STARTTLS"

// acceptedHeader is the length of an accepted reply up to accept_stat, with an empty verifier.
const acceptedHeader = 20

// offerTLS puts the token into an accepted reply, which has an empty verifier.
func offerTLS(e *xdr.Encoder) {
	rest := append([]byte(nil), e.B[acceptedHeader:]...)
	e.B = e.B[:acceptedHeader-4]
	e.Opaque([]byte(tokenTLS))
	e.B = append(e.B, rest...)
}

// IsTLSProbe reports whether a message is a call with a credential of AUTH_TLS.
func IsTLSProbe(msg []byte) bool {
	const flavor = 24 // behind xid, type, RPC version, program, version, procedure
	return len(msg) >= flavor+4 && binary.BigEndian.Uint32(msg[4:]) == MsgCall && binary.BigEndian.Uint32(msg[flavor:]) == uint32(AuthTLS)
}

// EncodeTLSProbe appends the call that asks for TLS.
func EncodeTLSProbe(e *xdr.Encoder, xid, prog, vers uint32) {
	for _, w := range [...]uint32{xid, MsgCall, Version, prog, vers, 0, uint32(AuthTLS), 0, uint32(AuthNone), 0} {
		e.Uint32(w)
	}
}

// ErrNoTLS is a server's answer to the call that asks for TLS that is another than yes.
var ErrNoTLS = errors.New("the server does not offer TLS")

// DecodeTLSReply is nil if a reply to the call that asks for TLS says yes.
func DecodeTLSReply(msg []byte, xid uint32) error {
	d := xdr.NewDecoder(msg)
	if d.Uint32() != xid || d.Uint32() != MsgReply || d.Err() != nil {
		return ErrReply
	}
	// What became of the procedure is of no interest.
	accepted := d.Uint32() == replyAccepted
	flavor := AuthFlavor(d.Uint32())
	token := d.Opaque(AuthBodyMax)
	if !accepted || flavor != AuthNone || d.Err() != nil || string(token) != tokenTLS {
		return ErrNoTLS
	}
	return nil
}

// EncodeUnavailable appends the reply to a call for a program that is not
// offered.
func EncodeUnavailable(e *xdr.Encoder, xid uint32) { encodeAccepted(e, xid, ProgUnavail) }

func encodeVersionMismatch(e *xdr.Encoder, xid uint32) {
	e.Uint32(xid)
	e.Uint32(MsgReply)
	e.Uint32(replyDenied)
	e.Uint32(rejectRPCMismatch)
	e.Uint32(Version)
	e.Uint32(Version)
}

func encodeAuthError(e *xdr.Encoder, xid uint32, s AuthStat) {
	e.Uint32(xid)
	e.Uint32(MsgReply)
	e.Uint32(replyDenied)
	e.Uint32(rejectAuthError)
	e.Uint32(uint32(s))
}
