package rpc

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Initiation is the client's half of the establishment of one security context.
type Initiation struct {
	Token []byte
	// Finish makes the context from the server's token.
	Finish func(token []byte) (*gss.Context, error)
}

// Secured is a Client whose calls are of RPCSEC_GSS (RFC 2203). It has a context for each user. The
// UID of a request's Cred is the user; nothing else of the Cred is used. A request without Cred is
// of user 0. The first call of a user establishes the context; other calls of the user wait
// meanwhile. A call establishes a new context if the server does not know the old one any more, or
// if the old one is used up.
//
// With gss.None the arguments and results go as without RPCSEC_GSS, over RDMA by chunks. Otherwise
// bulk data is part of the message, and results are never in Request.Dst.
type Secured struct {
	Client
	service  gss.Service
	initiate Initiate

	mu    sync.Mutex
	users map[uint32]*securedUser
}

// Initiate begins the establishment of a context for a user of this host. If it fails while ctx has
// not ended, the call fails with fs.ErrPermission.
type Initiate func(ctx context.Context, uid uint32) (Initiation, error)

// securedUsers bounds the users whose contexts a connection remembers.
const securedUsers = 1024

// securedUser is the context of one user, or nil. The call that establishes it has an element in
// making.
type securedUser struct {
	now    atomic.Pointer[gss.Client]
	making chan struct{}
}

// NewSecured makes a Secured of a connection. It owns the connection.
func NewSecured(c Client, service gss.Service, initiate Initiate) *Secured {
	return &Secured{Client: c, service: service, initiate: initiate, users: make(map[uint32]*securedUser)}
}

// user returns the entry of the user of a request. Beyond securedUsers it forgets another one,
// whose next call establishes a context again.
func (s *Secured) user(r *Request) (u *securedUser, uid uint32) {
	if r.Cred != nil {
		uid = r.Cred.UID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u = s.users[uid]; u != nil {
		return u, uid
	}
	for other := range s.users {
		if len(s.users) < securedUsers {
			break
		}
		delete(s.users, other)
	}
	u = &securedUser{making: make(chan struct{}, 1)}
	s.users[uid] = u
	return u, uid
}

// Register implements Registrar.
func (s *Secured) Register(buf []byte) (release func(), err error) {
	if r, ok := s.Client.(Registrar); ok && s.service == gss.None {
		return r.Register(buf)
	}
	return func() {}, nil
}

// Call implements Client.
func (s *Secured) Call(ctx context.Context, r *Request) error {
	const attempts = 3
	u, uid := s.user(r)
	for n := 1; ; n++ {
		c, err := s.context(ctx, r, u, uid)
		if err != nil {
			return err
		}
		if err = s.call(ctx, r, c); err == nil {
			return nil
		}
		if n == attempts || !stale(err) {
			return err
		}
		// The XID stays: the server has not executed this transmission, but perhaps an earlier one.
		u.forget(c)
	}
}

// call makes a call in a context. It changes credential and bounds of the request, and restores
// them.
func (s *Secured) call(ctx context.Context, r *Request, c *gss.Client) (err error) {
	if r.gssCred, err = c.Next(); err != nil {
		return err
	}
	dst, bound := r.Dst, r.ResMax
	r.gss = c
	if s.service != gss.None {
		r.Dst, r.ResMax = nil, cmp.Or(bound, 1024)+xdr.Padded(len(dst))+gss.Overhead
	}
	err = s.Client.Call(ctx, r)
	r.gss, r.Dst, r.ResMax = nil, dst, bound
	return err
}

// stale reports whether another context may help.
func stale(err error) bool {
	var denied *DeniedError
	return errors.Is(err, gss.ErrUsedUp) ||
		errors.As(err, &denied) && (denied.Auth == GSSCredProblem || denied.Auth == GSSCtxProblem)
}

func (u *securedUser) forget(c *gss.Client) { u.now.CompareAndSwap(c, nil) }

// context returns the context of a user, or establishes it.
func (s *Secured) context(ctx context.Context, r *Request, u *securedUser, uid uint32) (c *gss.Client, err error) {
	if c = u.now.Load(); c != nil {
		return c, nil
	}
	select {
	case u.making <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-u.making }()
	if c = u.now.Load(); c != nil { // another call has established it
		return c, nil
	}
	if c, err = s.establish(ctx, r, uid); err == nil {
		u.now.Store(c)
	}
	return c, err
}

// establish makes a context for a user.
func (s *Secured) establish(ctx context.Context, r *Request, uid uint32) (*gss.Client, error) {
	half, err := s.initiate(ctx, uid)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	var res gss.InitRes
	var flavor uint32
	var verifier []byte
	call := Request{
		Prog: r.Prog, Vers: r.Vers, gss: new(gss.Client),
		gssCred: gss.Cred{Version: gss.Version, Proc: gss.Init, Service: s.service},
		Args:    func(e *xdr.Encoder) { e.Opaque(half.Token) },
		Res: func(d *xdr.Decoder) error {
			err := res.Decode(d)
			res.Handle, res.Token = append([]byte(nil), res.Handle...), append([]byte(nil), res.Token...)
			return err
		},
		ResMax: 4096,
	}
	call.verify = func(f uint32, b []byte) error {
		flavor, verifier = f, append([]byte(nil), b...)
		return nil
	}
	if err := s.Client.Call(ctx, &call); err != nil {
		return nil, fmt.Errorf("establishing a security context: %w", err)
	}
	if res.Major != gss.Complete {
		err := &gss.InitError{Major: res.Major, Minor: res.Minor, Err: refusal(res.Major, res.Minor)}
		return nil, fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	established, err := half.Finish(res.Token)
	if err != nil {
		return nil, fmt.Errorf("establishing a security context: %w", err)
	}
	if flavor != gss.Flavor || established.VerifyMIC(verifier, binary.BigEndian.AppendUint32(nil, res.Window)) != nil {
		return nil, errors.New("establishing a security context: the server's answer is forged")
	}
	return gss.NewClient(established, res.Handle, s.service), nil
}

// kerberosCodes are what servers refuse tokens with (RFC 4120 section 7.5.9).
var kerberosCodes = map[uint32]string{
	31: "it cannot decrypt the ticket: its keytab has another key",
	32: "the ticket has expired",
	33: "the ticket is not valid yet: the clocks differ",
	34: "the token was used before",
	35: "the ticket is for another service, or its keytab lacks the principal",
	36: "ticket and authenticator do not match",
	37: "the clocks of client and server differ too much",
	40: "it does not understand the token",
	44: "its keytab has another version of the key",
	45: "its keytab lacks the key",
}

// refusal describes why a server refuses a token, as far as it says so. The low bytes of the minor
// status of MIT's and of our servers are an error code of Kerberos.
func refusal(major, minor uint32) error {
	if text := kerberosCodes[minor&0xff]; text != "" {
		return fmt.Errorf("the server refuses the security context: %s", text)
	}
	return fmt.Errorf("the server refuses the security context (major status %#x, minor %#x)", major, minor)
}

// encodeSecured is Encode with RPCSEC_GSS.
func (r *Request) encodeSecured(e *xdr.Encoder) {
	e.Uint32s(r.XID, MsgCall, Version, r.Prog, r.Vers, r.Proc)
	r.gssCred.Append(e)
	if r.gssCred.Proc != gss.Data {
		e.Uint32s(uint32(AuthNone), 0)
		r.Args(e)
		return
	}
	r.gss.Finish(e, &r.gssCred, r.Args)
	if r.gssCred.Service != gss.None && len(e.Refs) > 0 {
		// No part of what is protected can move by itself (RFC 8166 section 3.4.1).
		flat := e.AppendFlat(nil)
		e.Reset()
		e.B = append(e.B, flat...)
	}
}

// checkVerifier checks the verifier of a reply.
func (r *Request) checkVerifier(flavor uint32, body []byte) error {
	if r.verify != nil {
		return r.verify(flavor, body)
	}
	return r.gss.Check(&r.gssCred, flavor, body)
}

// decodeSecured is Decode with RPCSEC_GSS.
func (r *Request) decodeSecured(d *xdr.Decoder) error {
	if err := decodeReply(d, r.XID, r); err != nil {
		return err
	}
	if r.gssCred.Proc == gss.Data {
		res, err := r.gss.Results(&r.gssCred, *d)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReply, err)
		}
		*d = res
	}
	if r.Res == nil {
		return nil
	}
	return r.Res(d)
}
