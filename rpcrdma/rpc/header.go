package rpc

import (
	"encoding/binary"
	"errors"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A call and a reply begin like this (RFC 5531 section 9). Each line is a word, big-endian; opaque
// data is a length, the bytes, and zeros up to a multiple of 4.
//
//	call                                  reply
//	xid                                   xid
//	0 = CALL                              1 = REPLY
//	2 = RPC version                       0 = accepted        | 1 = denied
//	program                               verifier flavor     | 0 = RPC_MISMATCH  | 1 = AUTH_ERROR
//	version                               verifier (opaque)   | lowest version    | auth_stat
//	procedure                             accept_stat         | highest version
//	credential flavor                     results, or for PROG_MISMATCH two versions
//	credential (opaque, up to 400 bytes)
//	verifier flavor
//	verifier (opaque, up to 400 bytes)
//	arguments
const (
	// Version is the version of RPC.
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
	// GSSCredProblem: the context of an RPCSEC_GSS call is unknown or its header is forged.
	// GSSCtxProblem: the context cannot be used any more (RFC 2203 section 5.3.3.3).
	GSSCredProblem AuthStat = 13
	GSSCtxProblem  AuthStat = 14
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

// decodeHeader reads a call header up to the arguments, without allocating in the steady state. A
// message that is no call, or is too short to show it, is not answered: a reply to a reply could go
// on for ever.
func decodeHeader(d *xdr.Decoder, c *Call) headerFault {
	start, whole := d.Offset(), *d
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
	if c.Cred.Flavor == AuthGSS {
		c.gss.bad = c.gss.cred.Decode(body) != nil
		c.gss.header = whole.Fixed(d.Offset() - start)
	}
	verf := d.Uint32() // ignored with AUTH_NONE and AUTH_SYS
	verfBody := d.Opaque(AuthBodyMax)
	if d.Err() != nil {
		return headerVerf
	}
	if c.Cred.Flavor == AuthGSS {
		c.gss.verifier, c.gss.verified = verfBody, verf == uint32(AuthGSS)
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

// EncodeCall appends a call header. The stamp of an AUTH_SYS credential is 0 (RFC 5531 appendix A):
// a retransmission is then equal byte for byte.
func EncodeCall(e *xdr.Encoder, xid, prog, vers, proc uint32, cred *Cred) {
	e.Uint32s(xid, MsgCall, Version, prog, vers, proc)
	if cred == nil || cred.Flavor == AuthNone {
		e.Uint32s(uint32(AuthNone), 0)
	} else {
		groups := cred.Groups[:min(len(cred.Groups), GroupsMax)]
		name := cred.Machine[:min(len(cred.Machine), MachineNameMax)]
		const stamp = 0
		e.Uint32s(uint32(AuthSys), uint32(4+4+len(name)+xdr.Pad(len(name))+4*(3+len(groups))), stamp)
		e.String(name)
		e.Uint32s(cred.UID, cred.GID, uint32(len(groups)))
		e.Uint32s(groups...)
	}
	e.Uint32s(uint32(AuthNone), 0)
}

// encodeAccepted appends the header of an accepted reply with an empty verifier. For ProgMismatch
// the caller appends the lowest and highest version.
func encodeAccepted(e *xdr.Encoder, xid uint32, s AcceptStat) {
	e.Uint32s(xid, MsgReply, replyAccepted, uint32(AuthNone), 0, uint32(s))
}

// tokenTLS is the verifier of a reply by which a server agrees to TLS (RFC 9289 section 4.1).
const tokenTLS = "STARTTLS"

// acceptedHeader is the length of an accepted reply up to accept_stat, with an empty verifier.
const acceptedHeader = 20

// offerTLS puts the token into an accepted reply, which has an empty verifier. The reply is one
// to procedure NULL and has no results behind accept_stat if NULL exists, so the copy of rest is
// short.
func offerTLS(e *xdr.Encoder) {
	rest := append([]byte(nil), e.B[acceptedHeader:]...)
	e.B = e.B[:acceptedHeader-4]
	e.Opaque([]byte(tokenTLS))
	e.B = append(e.B, rest...)
}

// IsTLSProbe reports whether a message is a call with a credential of AUTH_TLS.
func IsTLSProbe(msg []byte) bool {
	const flavor = 24 // behind xid, type, RPC version, program, version, procedure
	return len(msg) >= flavor+4 && binary.BigEndian.Uint32(msg[4:]) == MsgCall &&
		binary.BigEndian.Uint32(msg[flavor:]) == uint32(AuthTLS)
}

// EncodeTLSProbe appends the AUTH_TLS probe: a call of procedure NULL.
func EncodeTLSProbe(e *xdr.Encoder, xid, prog, vers uint32) {
	e.Uint32s(xid, MsgCall, Version, prog, vers, 0, uint32(AuthTLS), 0, uint32(AuthNone), 0)
}

// ErrNoTLS means that a server's answer to the AUTH_TLS probe is not the token.
var ErrNoTLS = errors.New("the server does not offer TLS")

// DecodeTLSReply returns nil if a reply to the AUTH_TLS probe has the token.
func DecodeTLSReply(msg []byte, xid uint32) error {
	d := xdr.NewDecoder(msg)
	if d.Uint32() != xid || d.Uint32() != MsgReply || d.Err() != nil {
		return ErrReply
	}
	// The accept_stat does not matter: NULL need not exist.
	accepted := d.Uint32() == replyAccepted
	flavor := AuthFlavor(d.Uint32())
	token := d.Opaque(AuthBodyMax)
	if !accepted || flavor != AuthNone || d.Err() != nil || string(token) != tokenTLS {
		return ErrNoTLS
	}
	return nil
}

// EncodeUnavailable appends the reply to a call of a program that is not offered.
func EncodeUnavailable(e *xdr.Encoder, xid uint32) { encodeAccepted(e, xid, ProgUnavail) }

func encodeVersionMismatch(e *xdr.Encoder, xid uint32) {
	e.Uint32s(xid, MsgReply, replyDenied, rejectRPCMismatch, Version, Version)
}

func encodeAuthError(e *xdr.Encoder, xid uint32, s AuthStat) {
	e.Uint32s(xid, MsgReply, replyDenied, rejectAuthError, uint32(s))
}

// ReplyXID reads the XID of a message, or 0 if it is too short to have one.
func ReplyXID(msg []byte) uint32 {
	if len(msg) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(msg)
}
