package rpc

import (
	"time"

	"github.com/rstored/rstored/rpcrdma/gss"
)

// gssCall is the part of a call that RPCSEC_GSS needs. Everything else, the reply cache included,
// sees arguments and results without protection. The protection is removed before the call is
// looked up in the cache, and added when the reply is sent.
//
//	Dispatch      header: context, checksum, sequence number (authenticate)
//	worker        Init: the context is established
//	loop, worker  Integrity, Privacy: the arguments are checked or decrypted (resume)
//	procedure     arguments in Args, results in Res, as without RPCSEC_GSS
//	loop, worker  send: the results are protected, and the verifier is put in
//
// A transport's loop itself checks and protects up to onLoop bytes: a change to a worker and back
// costs more. More than that would keep other calls waiting.
type gssCall struct {
	cred     gss.Cred // Handle aliases the message
	header   []byte   // of the message, up to the end of the credential
	verifier []byte   // aliases the message
	verified bool     // the verifier's flavor is RPCSEC_GSS
	bad      bool     // the credential does not decode

	ctx     *gss.ServerContext
	pending bool // resume has to be called
	sealing bool // the procedure is done, and a worker has to call send
	window  bool // the reply has the verifier of Init
}

// less returns the room for bulk results if the transport has n bytes left. Results without
// protection move by themselves, so a READ of krb5 fills its Write chunk; transports have room for
// the verifier.
func (g *gssCall) less(n int) int {
	if g.ctx == nil || g.cred.Service == gss.None || n < 0 {
		return n
	}
	return max(n-gss.Overhead, 0)
}

// authenticate checks the header of a call of RPCSEC_GSS (RFC 2203 sections 5.2 and 5.3.3). It
// reports whether the call is to be served, and is routed. Otherwise it was answered, or dropped.
//
//	what is wrong                                         answer
//	version                                               denied, AUTH_REJECTEDCRED (section 5.1)
//	form, control procedure or service                    denied, AUTH_BADCRED
//	Init or Destroy of another procedure than NULL        denied, AUTH_BADCRED
//	the context is unknown or has expired                 denied, RPCSEC_GSS_CREDPROBLEM
//	the header's checksum                                 denied, RPCSEC_GSS_CREDPROBLEM
//	sequence number beyond the last one                   denied, RPCSEC_GSS_CTXPROBLEM
//	sequence number seen, or below the window             none
//	program, version or procedure does not exist          as without RPCSEC_GSS, with a verifier
func (s *Server) authenticate(c *Call) bool {
	const null = 0
	g := &c.gss
	cred := &g.cred
	switch {
	case !g.bad && cred.Version != gss.Version:
		s.deny(c, AuthRejectedCred)
		return false
	case g.bad, cred.Proc > gss.Destroy,
		cred.Proc != gss.Data && c.Proc != null,
		cred.Proc == gss.Data && (cred.Service < gss.None || cred.Service > gss.Privacy):
		s.deny(c, AuthBadCred)
		return false
	case cred.Proc == gss.ContinueInit: // Kerberos needs one token of the client
		s.deny(c, GSSCredProblem)
		return false
	case cred.Proc == gss.Init:
		cred.Service = gss.None
		g.pending = true
		return s.routed(c)
	}
	ctx := s.gss.Find(cred.Handle, s.dateOf(c))
	if ctx == nil || !g.verified {
		s.deny(c, GSSCredProblem)
		return false
	}
	switch s.gss.Check(ctx, cred, g.header, g.verifier) {
	case gss.Discard:
		s.faults[dropped].Add(1)
		c.Reply(c, true)
		return false
	case gss.CredProblem:
		s.deny(c, GSSCredProblem)
		return false
	case gss.CtxProblem:
		s.deny(c, GSSCtxProblem)
		return false
	case gss.Proceed:
	}
	g.ctx = ctx
	c.BulkMax = g.less(c.BulkMax)
	id := &ctx.Identity
	c.Cred.Principal, c.Cred.Acceptor, c.Cred.Unmapped = ctx.Principal, ctx.Acceptor, id.Unmapped
	c.Cred.UID, c.Cred.GID = id.UID, id.GID
	c.Cred.Groups = append(c.Cred.Groups[:0], id.Groups...)
	if cred.Proc == gss.Destroy {
		cred.Service = gss.None
		s.gss.Destroy(ctx)
		encodeAccepted(&c.Res, c.XID, RPCSuccess)
		c.send(false)
		return false
	}
	c.Cred.Flavor = AuthKrb5 + AuthFlavor(cred.Service-gss.None)
	g.pending = cred.Service > gss.None
	return s.routed(c)
}

// date is a time of day, and when it was read.
type date struct {
	at   time.Duration
	time time.Time
}

// dateOf returns the time of day when a call came, up to dateAge too early. That is exact enough,
// because contexts expire by the second, and reading the clock costs as much as half a checksum.
func (s *Server) dateOf(c *Call) time.Time {
	const dateAge = 100 * time.Millisecond
	if d := s.date.Load(); d != nil && c.came-d.at < dateAge {
		return d.time
	}
	now := time.Now()
	s.date.Store(&date{c.came, now})
	return now
}

// routed finds the procedure of a call (route). If there is none, it answers the call.
func (s *Server) routed(c *Call) bool {
	if !s.route(c) {
		c.gss.pending = false
		c.send(false)
		return false
	}
	c.stats.calls.Add(1)
	return true
}

// onLoop is how many bytes of arguments or of results a loop checks, decrypts, protects or encrypts:
// some 15 us with integrity, 40 us with privacy.
const onLoop = 16 << 10

// enqueueProtected goes on with a call that authenticate lets pass. Looking up users takes too long
// for a transport's loop.
func (s *Server) enqueueProtected(c *Call, mayBlock bool) {
	switch {
	case !c.gss.pending:
		s.begin(c, mayBlock)
	case mayBlock, c.gss.cred.Proc == gss.Data && c.proc.Inline && !c.Elsewhere && c.Args.Remaining() <= onLoop:
		s.resume(c, mayBlock)
	default:
		s.enqueue(c)
	}
}

// proceed is what a worker does with a call of RPCSEC_GSS that the loop has begun. It reports false
// if the procedure is to be called.
func (s *Server) proceed(c *Call) bool {
	switch g := &c.gss; {
	case g.sealing:
		c.send(false)
	case g.pending:
		s.resume(c, true)
	default:
		return false
	}
	return true
}

// leaveSealing passes a call that a loop has executed to a worker, if its results take too long to
// be protected on the loop.
func (s *Server) leaveSealing(c *Call) bool {
	if c.gss.cred.Service <= gss.None || c.Res.Len() <= onLoop {
		return false
	}
	c.gss.sealing = true
	s.enqueue(c)
	return true
}

// resume removes the protection of the arguments, and goes on with the call. A call of Init
// establishes its context.
func (s *Server) resume(c *Call, mayBlock bool) {
	g := &c.gss
	g.pending = false
	if g.cred.Proc == gss.Init {
		s.establish(c)
		return
	}
	args, err := g.ctx.Unprotect(g.cred.Service, g.cred.Seq, c.Args)
	if err != nil { // RFC 2203 section 5.3.3.4.2
		s.gss.BadData()
		s.refuse(c, garbage, GarbageArgs)
		c.send(false)
		return
	}
	c.Args = args
	s.begin(c, mayBlock)
}

// establish answers a call of Init (RFC 2203 section 5.2.3.1).
func (s *Server) establish(c *Call) {
	token := c.Args.Opaque(gss.InitTokenMax)
	if c.Args.Err() != nil {
		s.refuse(c, garbage, GarbageArgs)
		c.send(false)
		return
	}
	res, ctx := s.gss.Accept(c.Peer.Addr.Addr(), token, time.Now())
	encodeAccepted(&c.Res, c.XID, RPCSuccess)
	res.Append(&c.Res)
	if ctx != nil {
		c.gss.ctx, c.gss.window, c.gss.cred.Seq = ctx, true, res.Window
	}
	c.send(false)
}

// send passes the reply in Res to the transport. An accepted reply to a call of RPCSEC_GSS gets its
// verifier. If the call was successful, its results are protected (RFC 2203 section 5.3.3.2).
func (c *Call) send(drop bool) {
	const (
		status   = 8
		verifier = 12
		results  = acceptedHeader + 4
	)
	drop = drop || c.stopped()
	g := &c.gss
	if b := c.Res.B; !drop && g.ctx != nil && len(b) >= results && b[status+3] == replyAccepted {
		if !g.window && g.cred.Proc == gss.Data && b[acceptedHeader+3] == byte(RPCSuccess) {
			g.ctx.Protect(g.cred.Service, g.cred.Seq, &c.Res, results, c.Alloc)
		}
		g.ctx.ReplyVerifier(&c.Res, verifier, g.cred.Seq)
	}
	c.Reply(c, drop)
}
