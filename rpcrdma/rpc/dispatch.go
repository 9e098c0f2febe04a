package rpc

import (
	"time"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Dispatch serves one call message. It sets up c from the header in msg and runs the procedure:
// here if it never waits or mayBlock is set, otherwise on a worker. It calls c.Reply exactly once,
// possibly before it returns. The bytes of msg must not change until then.
//
//	header                                     answer
//	no call, or too short                      none
//	RPC version is not 2                       denied, RPC_MISMATCH 2 to 2
//	credential does not decode                 denied, AUTH_BADCRED
//	verifier does not decode                   denied, AUTH_BADVERF
//	credential of RPCSEC_GSS                   see authenticate
//	program is not served                      PROG_UNAVAIL
//	version is not served                      PROG_MISMATCH
//	procedure does not exist                   PROC_UNAVAIL
//	another flavor                             denied, AUTH_REJECTEDCRED
func (s *Server) Dispatch(c *Call, msg xdr.Decoder, mayBlock bool) {
	c.came = time.Since(s.epoch)
	c.Args, c.mayServe = msg, s.mayServe
	switch decodeHeader(&c.Args, c) {
	case headerNotACall:
		s.faults[notCalls].Add(1)
		c.send(true)
		return
	case headerVersion:
		s.faults[rpcMismatch].Add(1)
		encodeVersionMismatch(&c.Res, c.XID)
		c.send(false)
		return
	case headerCred:
		s.deny(c, AuthBadCred)
		return
	case headerVerf:
		s.deny(c, AuthBadVerf)
		return
	}
	if c.Cred.Flavor == AuthTLS {
		s.startTLS(c)
		return
	}
	if c.Cred.Flavor == AuthGSS && s.gss != nil {
		if s.authenticate(c) {
			s.enqueueProtected(c, mayBlock)
		}
		return
	}
	if !s.route(c) {
		c.send(false)
		return
	}
	c.stats.calls.Add(1)
	if c.Cred.Flavor != AuthNone && c.Cred.Flavor != AuthSys {
		s.deny(c, AuthRejectedCred)
		return
	}
	s.begin(c, mayBlock)
}

// begin serves a call whose credential is accepted and whose arguments are in c.Args.
func (s *Server) begin(c *Call, mayBlock bool) {
	c.size = c.Args.Remaining()
	if s.tracing.Load() {
		args := c.Args
		c.args = &args
	}
	c.stats.bytesIn.Add(uint64(c.size))
	if (c.proc.Mutates || c.proc.Once != nil && c.proc.Once(c.Args)) && !s.first(c) {
		return
	}
	encodeAccepted(&c.Res, c.XID, RPCSuccess)
	c.base = len(c.Res.B)
	c.deferrals = &s.deferred
	if mayBlock || c.proc.Inline && !c.Elsewhere {
		args := c.Args
		if s.run(c, mayBlock) {
			return
		}
		c.Args = args
	}
	s.enqueue(c)
}

// deny answers a call with a credential that is refused.
func (s *Server) deny(c *Call, why AuthStat) {
	s.faults[badCred].Add(1)
	encodeAuthError(&c.Res, c.XID, why)
	c.send(false)
}

// startTLS answers a call with AUTH_TLS. It must be for procedure NULL on a connection without TLS
// (RFC 9289 section 4.1). The transport starts TLS after the reply.
func (s *Server) startTLS(c *Call) {
	const null = 0
	switch {
	case c.Proc != null || c.Peer.Security != Cleartext:
		s.deny(c, AuthBadCred)
	case !c.CanTLS:
		s.deny(c, AuthRejectedCred)
	default:
		if s.route(c) {
			c.stats.calls.Add(1)
			encodeAccepted(&c.Res, c.XID, RPCSuccess)
		}
		offerTLS(&c.Res)
		c.StartTLS = true
		c.send(false)
	}
}

// route finds the procedure, or encodes the error. PROG_MISMATCH has the lowest and highest version
// of the program (RFC 5531 section 9).
func (s *Server) route(c *Call) bool {
	low, high := uint32(1<<32-1), uint32(0)
	for i := range s.programs {
		p := &s.programs[i]
		if p.Prog != c.Prog {
			continue
		}
		low, high = min(low, p.Vers), max(high, p.Vers)
		if p.Vers != c.Vers {
			continue
		}
		if uint64(c.Proc) >= uint64(len(p.Procs)) || p.Procs[c.Proc].Serve == nil {
			s.faults[procUnavail].Add(1)
			encodeAccepted(&c.Res, c.XID, ProcUnavail)
			return false
		}
		c.proc, c.stats, c.row = &p.Procs[c.Proc], &s.stats[i][c.Proc], s.rows[i]+int(c.Proc)
		return true
	}
	if s.unserved != nil {
		s.unserved(&c.Peer, c.Prog, c.Vers)
	}
	if high == 0 && low != 0 {
		s.faults[progUnavail].Add(1)
		encodeAccepted(&c.Res, c.XID, ProgUnavail)
		return false
	}
	s.faults[progMismatch].Add(1)
	encodeAccepted(&c.Res, c.XID, ProgMismatch)
	c.Res.Uint32s(low, high)
	return false
}
