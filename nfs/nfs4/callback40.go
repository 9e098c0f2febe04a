package nfs4

import (
	"errors"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Callbacks of version 4.0 (RFC 7530 section 17) go to a program that the client serves itself,
// over a connection that the server makes. A client gets no delegation before it has answered a
// CB_NULL there.

const procCBNull = 0

// pathTo gives a client the path that it asked for, and tries it.
func (s *Server) pathTo(c *state.Client) {
	cb := c.Callback()
	if s.cfg.CallBack == nil || !cb.To.IsValid() {
		c.SetPath(nil)
		return
	}
	c.SetPath(&state.Path{Callback: cb, Caller: s.cfg.CallBack(cb.To)})
	s.probe40(c)
}

// probe40 finds out whether a client answers, if that is not known.
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

// recall40 asks a client of version 4.0 for a delegation.
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
			told := err == nil && told40(res)
			if !errors.Is(err, rpc.ErrTooMany) {
				s.answered40(p, err)
			}
			s.state.Recalled(r, told)
		},
	})
}

// told40 reports whether a client knows now what it was asked for, as outcome does.
func told40(d *xdr.Decoder) bool {
	d.Uint32() // the last status
	d.Opaque(tagMax)
	n := d.Uint32()
	op, st := d.Uint32(), nfs.Status(d.Uint32())
	return d.Err() == nil && n > 0 && op == opCBRecall && willReturn(st)
}
