package rpc

import "github.com/rstored/rstored/rpcrdma/xdr"

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
	d.Uint32() // the verifier of AUTH_NONE and AUTH_SYS says nothing
	d.Opaque(AuthBodyMax)
	if d.Err() != nil {
		return headerVerf
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
