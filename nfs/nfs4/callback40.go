package nfs4

import (
	"errors"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Callbacks of version 4.0 (RFC 7530 sections 17 and 18) are calls of a program that the client
// serves, over a connection that the server makes. A client gets no delegation before it has
// answered a CB_NULL there.
//
//	state     what the server does              answer    no answer
//	unknown   sends CB_NULL                     proven    down
//	proven    grants and recalls delegations    proven    down
//	down      CB_NULL again after half a lease  proven    down
//
// While its path is down a client gets no new delegations, and CB_PATH_DOWN from RENEW if it has
// any. The usual cause is a firewall between server and client: everything but delegations works.
//
// There are no slots and no sequence numbers. A repeated CB_RECALL looks like a new one, which is
// harmless: the client is returning the delegation already, or answers BAD_STATEID.

const procCBNull = 0

// pathTo gives a client the path to the address of its SETCLIENTID, and probes it. If the address
// is not the client's own, To is not valid (see setClientID), and the client gets no path. The
// client owns the path from SetPath on.
func (s *Server) pathTo(c *state.Client) {
	cb := c.Callback()
	if s.cfg.CallBack == nil || !cb.To.IsValid() {
		c.SetPath(nil)
		return
	}
	c.SetPath(&state.Path{Callback: cb, Caller: s.cfg.CallBack(&cb)})
	s.probe40(c)
}

// probe40 sends CB_NULL if it is not known whether the client answers, or if the client did not
// answer half a lease ago. Probe admits one probe at a time, so a client that sends RENEW in a loop
// does not multiply the connections of the server. CB_NULL has no credential: for this procedure
// alone the Linux client accepts that. With Kerberos it has one.
func (s *Server) probe40(c *state.Client) {
	p := c.Path()
	if !p.Probe(s.cfg.Now(), s.state.Lease()/2) {
		return
	}
	s.callbacks.Add(1)
	p.Caller.Call(&rpc.BackwardCall{
		Prog: p.Program, Vers: callbackVersion, Proc: procCBNull, Timeout: s.callbackWait(),
		Done: func(_ *xdr.Decoder, err error) { s.answered40(p, err) },
	})
}

func (s *Server) answered40(p *state.Path, err error) {
	if err != nil {
		s.callbacksLost.Add(1)
	}
	p.Answered(err == nil)
}

// recall40 sends CB_RECALL to a client of version 4.0. It calls Recalled exactly once, also if it
// sends nothing: until then package state would not recall the delegation again.
//
//	CB_COMPOUND4args: tag<> "" | minorversion 0 | callback_ident | count 1 |
//	CB_RECALL: op 4 | stateid (16) | truncate | fh<128>
//
// callback_ident is the number in the client's SETCLIENTID, by which the client finds the client ID
// that the call is for.
//
// calling is locked for reading during Call. Call does not wait, and may run Done before it
// returns. Done takes the locks of Path and of package state, but never calling. After ErrTooMany
// the call was not sent, which proves nothing about the client.
func (s *Server) recall40(r *state.Recall) {
	p := r.Client.Path()
	done, ok := s.mayCall()
	if p == nil || !ok {
		s.state.Recalled(r, false)
		if ok {
			done()
		}
		return
	}
	defer done()
	var e xdr.Encoder
	e.String("")
	e.Uint32(0)
	e.Uint32(p.Ident)
	e.Uint32(1)
	e.Uint32(opCBRecall)
	recalling{r}.encode(s, &e)
	s.callbacks.Add(1)
	p.Caller.Call(&rpc.BackwardCall{
		Prog: p.Program, Vers: callbackVersion, Proc: procCBCompound, Cred: p.Cred, Args: e.B, Timeout: s.callbackWait(),
		Done: func(res *xdr.Decoder, err error) {
			acknowledged := err == nil && acknowledged40(res)
			if !errors.Is(err, rpc.ErrTooMany) {
				s.answered40(p, err)
			}
			s.state.Recalled(r, acknowledged)
		},
	})
}

// acknowledged40 reports whether a client has acknowledged the CB_RECALL and will return the
// delegation. The reply comes from the client and may be anything. What does not decode counts as
// no answer to the recall, but the path is proven all the same: somebody replies there. A client
// that acknowledges and never returns the delegation has it revoked after a lease.
func acknowledged40(d *xdr.Decoder) bool {
	d.Uint32() // the last status
	d.Opaque(tagMax)
	n := d.Uint32()
	op, st := d.Uint32(), nfs.Status(d.Uint32())
	return d.Err() == nil && n > 0 && op == opCBRecall && willReturn(st)
}
