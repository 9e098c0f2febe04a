package rpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// acceptAll is a gss.Acceptor whose tokens are the names of principals.
type acceptAll struct{ ctx *gss.Context }

func (a acceptAll) Accept(token []byte, now time.Time) (gss.Established, error) {
	if len(token) == 0 {
		return gss.Established{}, &gss.InitError{Major: gss.DefectiveToken, Minor: 77, Err: errors.New("empty")}
	}
	return gss.Established{
		Context: a.ctx, Principal: string(token), Token: []byte("answer"), Expires: now.Add(time.Minute),
	}, nil
}

// gssRig is a server with RPCSEC_GSS, and a client's context.
type gssRig struct {
	t      *testing.T
	s      *Server
	svc    testService
	client *gss.Context
	seen   Cred   // by WHO
	limit  int    // of the transport for bulk results; 0: none
	room   int    // for bulk results, in procedure WHO
	bulk   []byte // what WHO returns
}

const (
	procWho   = 5
	procWrite = 6
)

func newGSSRig(t *testing.T) *gssRig {
	t.Helper()
	r := &gssRig{t: t, bulk: []byte("nobody but you")}
	key := gss.Key{Type: gss.AES256SHA1, Value: bytes.Repeat([]byte{7}, 32)}
	client, err := gss.NewContext(key, gss.Role{})
	if err != nil {
		t.Fatal(err)
	}
	server, err := gss.NewContext(key, gss.Role{Acceptor: true})
	if err != nil {
		t.Fatal(err)
	}
	r.client = client
	programs := r.svc.programs()
	programs[0].Procs = append(programs[0].Procs, Proc{Name: "WHO", Inline: true, Serve: func(c *Call, _ bool) Status {
		r.seen, r.room = c.Cred, c.BulkMax
		c.Res.Bulk(r.bulk)
		c.Res.Uint32(5)
		return Done
	}}, Proc{Name: "WRITE", Mutates: true, Serve: func(c *Call, _ bool) Status {
		c.Res.Opaque(c.Args.Bulk(100))
		return Done
	}})
	r.s = NewServer(ServerConfig{Programs: programs, GSS: gss.NewServer(gss.ServerConfig{
		Acceptor: acceptAll{server},
		Identify: func(p string) gss.Identity {
			if p == "stranger" {
				return gss.Identity{Unmapped: true}
			}
			return gss.Identity{UID: 1000, GID: 100, Groups: []uint32{100, 7}}
		},
	})})
	t.Cleanup(r.s.Close)
	return r
}

// send sends a message as a transport does. It returns nil if there is no reply.
func (r *gssRig) send(msg []byte) []byte {
	r.t.Helper()
	type answer struct {
		reply []byte
	}
	done := make(chan answer, 1)
	c := &Call{Reply: func(c *Call, drop bool) {
		if drop {
			done <- answer{}
			return
		}
		done <- answer{c.Res.AppendFlat(nil)}
	}}
	c.Reset()
	if r.limit > 0 {
		c.BulkMax = r.limit
	}
	c.Peer = Peer{Addr: netip.MustParseAddrPort("192.0.2.1:1000"), Transport: TransportTCP, Conn: 1}
	r.s.Dispatch(c, xdr.NewDecoder(bytes.Clone(msg)), false)
	select {
	case a := <-done:
		return a.reply
	case <-time.After(10 * time.Second):
		r.t.Fatal("no answer")
		return nil
	}
}

// header makes a call up to its credential.
func header(xid, proc uint32, cred *gss.Cred) *xdr.Encoder {
	e := new(xdr.Encoder)
	e.Uint32s(xid, MsgCall, Version, testProg, 2, proc)
	cred.Append(e)
	return e
}

func (r *gssRig) init(token string) (res gss.InitRes, verifier []byte) {
	r.t.Helper()
	e := header(1, 0, &gss.Cred{Version: 1, Proc: gss.Init, Service: gss.None})
	e.Uint32s(0, 0)
	e.Opaque([]byte(token))
	d := xdr.NewDecoder(r.send(e.B))
	if d.Uint32() != 1 || d.Uint32() != MsgReply || d.Uint32() != replyAccepted {
		r.t.Fatal("Init was denied")
	}
	d.Uint32()
	verifier = d.Opaque(400)
	d.Uint32()
	if err := res.Decode(&d); err != nil || d.Remaining() != 0 {
		r.t.Fatal(err)
	}
	return res, verifier
}

func denied(t *testing.T, reply []byte, want AuthStat) {
	t.Helper()
	d := xdr.NewDecoder(reply)
	err := DecodeReply(&d, binary.BigEndian.Uint32(reply))
	var e *DeniedError
	if !errors.As(err, &e) || e.Auth != want {
		t.Errorf("%v, want auth_stat %d", err, want)
	}
}

func TestGSS(t *testing.T) {
	r := newGSSRig(t)
	if res, verifier := r.init(""); res.Major != gss.DefectiveToken || res.Minor != 77 || len(verifier) != 0 {
		t.Errorf("%+v", res)
	}
	res, verifier := r.init("alice")
	var window [4]byte
	binary.BigEndian.PutUint32(window[:], res.Window)
	if err := r.client.VerifyMIC(verifier, window[:]); err != nil || res.Window == 0 || string(res.Token) != "answer" {
		t.Fatalf("%+v: %v", res, err)
	}
	xid := uint32(100)
	seqs := map[gss.Service]*gss.Client{}
	for _, s := range []gss.Service{gss.None, gss.Integrity, gss.Privacy} {
		seqs[s] = gss.NewClient(r.client, res.Handle, s)
	}
	seq := uint32(0)
	message := func(s gss.Service, proc uint32, args func(e *xdr.Encoder)) ([]byte, gss.Cred) {
		xid++
		seq++
		cred := gss.Cred{Version: 1, Seq: seq, Service: s, Handle: res.Handle}
		e := header(xid, proc, &cred)
		seqs[s].Finish(e, &cred, args)
		return e.AppendFlat(nil), cred
	}
	// open checks a reply and returns its results.
	open := func(s gss.Service, cred gss.Cred, reply []byte) xdr.Decoder {
		t.Helper()
		d := xdr.NewDecoder(reply)
		d.Skip(12)
		flavor := d.Uint32()
		if err := seqs[s].Check(&cred, flavor, d.Opaque(400)); err != nil {
			t.Fatalf("%v: verifier: %v", s, err)
		}
		if stat := AcceptStat(d.Uint32()); stat != RPCSuccess {
			t.Fatalf("%v: accept_stat %d", s, stat)
		}
		d, err := seqs[s].Results(&cred, d)
		if err != nil {
			t.Fatalf("%v: results: %v", s, err)
		}
		return d
	}
	for i, s := range []gss.Service{gss.None, gss.Integrity, gss.Privacy} {
		msg, cred := message(s, procWho, nil)
		reply := r.send(msg)
		if bytes.Contains(reply, []byte("nobody but you")) == (s == gss.Privacy) {
			t.Errorf("%v: the reply is %q", s, reply)
		}
		d := open(s, cred, reply)
		if got := d.String(100); got != "nobody but you" || d.Uint32() != 5 || d.Err() != nil || d.Remaining() != 0 {
			t.Errorf("%v: results %q", s, got)
		}
		c := &r.seen
		if c.Flavor != AuthKrb5+AuthFlavor(i) || c.Principal != "alice" || c.UID != 1000 || len(c.Groups) != 2 {
			t.Errorf("%v: the procedure saw %+v", s, c)
		}
		if r.send(msg) != nil {
			t.Errorf("%v: a replayed call is answered", s)
		}
		// A retransmission differs in its bytes. The reply cache has to recognize the call in it.
		first, cred := message(s, procWrite, func(e *xdr.Encoder) { e.Bulk([]byte("data of the call")) })
		d = open(s, cred, r.send(first))
		if got := d.String(100); got != "data of the call" {
			t.Errorf("%v: %q", s, got)
		}
		xid--
		again, cred := message(s, procWrite, func(e *xdr.Encoder) { e.Bulk([]byte("data of the call")) })
		before := r.s.Stats()
		d = open(s, cred, r.send(again))
		if got := d.String(100); got != "data of the call" || bytes.Equal(first, again) {
			t.Errorf("%v: again: %q", s, got)
		}
		retransmits := func(st Stats) (n uint64) {
			for _, p := range st.Procs {
				n += p.Retransmits
			}
			return n
		}
		if retransmits(r.s.Stats()) != retransmits(before)+1 {
			t.Errorf("%v: a retransmission was executed", s)
		}
	}
	// Forged messages.
	msg, _ := message(gss.Integrity, procWho, nil)
	for i := 4 * 6; i < len(msg); i++ {
		b := bytes.Clone(msg)
		b[i] ^= 0x10
		reply := r.send(b)
		if len(reply) >= 24 && binary.BigEndian.Uint32(reply[8:]) == replyAccepted &&
			AcceptStat(binary.BigEndian.Uint32(reply[len(reply)-4:])) != GarbageArgs {
			t.Errorf("byte %d changed: % x", i, reply)
		}
	}
	for n := range msg {
		r.send(msg[:n]) // must not panic
	}
	for name, c := range map[string]struct {
		cred gss.Cred
		proc uint32
		want AuthStat
	}{
		"version 2": {gss.Cred{Version: 2, Service: gss.None, Handle: res.Handle}, procWho, AuthRejectedCred},
		"version 3": {gss.Cred{Version: 3, Proc: gss.Init, Service: gss.None}, 0, AuthRejectedCred},
		"RPCSEC_GSS_CREATE of version 3": {
			gss.Cred{Version: 3, Proc: 5, Seq: 1, Service: gss.None, Handle: res.Handle}, 0, AuthRejectedCred,
		},
		"service":        {gss.Cred{Version: 1, Service: 4, Handle: res.Handle}, procWho, AuthBadCred},
		"no service":     {gss.Cred{Version: 1, Handle: res.Handle}, procWho, AuthBadCred},
		"procedure":      {gss.Cred{Version: 1, Proc: 4, Service: gss.None, Handle: res.Handle}, 0, AuthBadCred},
		"init, not NULL": {gss.Cred{Version: 1, Proc: gss.Init, Service: gss.None}, procWho, AuthBadCred},
		"continue":       {gss.Cred{Version: 1, Proc: gss.ContinueInit, Service: gss.None}, 0, GSSCredProblem},
		"handle":         {gss.Cred{Version: 1, Service: gss.None, Handle: make([]byte, 16)}, procWho, GSSCredProblem},
		"used up": {
			gss.Cred{Version: 1, Seq: 1 << 31, Service: gss.None, Handle: res.Handle}, procWho, GSSCtxProblem,
		},
	} {
		e := header(9, c.proc, &c.cred)
		seqs[gss.None].Finish(e, &gss.Cred{Service: gss.None}, nil)
		reply := r.send(e.B)
		if reply == nil {
			t.Errorf("%s: no answer", name)
			continue
		}
		denied(t, reply, c.want)
	}
	// The reply for a program that does not exist has a verifier too.
	xid, seq = xid+1, seq+1
	cred := gss.Cred{Version: 1, Seq: seq, Service: gss.Privacy, Handle: res.Handle}
	e := new(xdr.Encoder)
	e.Uint32s(xid, MsgCall, Version, 400000, 2, 1)
	cred.Append(e)
	seqs[gss.Privacy].Finish(e, &cred, nil)
	d := xdr.NewDecoder(r.send(e.AppendFlat(nil)))
	d.Skip(12)
	err := seqs[gss.Privacy].Check(&cred, d.Uint32(), d.Opaque(400))
	if err != nil || AcceptStat(d.Uint32()) != ProgUnavail {
		t.Errorf("an unknown program: %v", err)
	}
	// Destroy.
	seq++
	cred = gss.Cred{Version: 1, Proc: gss.Destroy, Seq: seq, Service: gss.None, Handle: res.Handle}
	e = header(xid, 0, &cred)
	seqs[gss.None].Finish(e, &cred, nil)
	open(gss.None, cred, r.send(e.B))
	msg, _ = message(gss.None, procWho, nil)
	denied(t, r.send(msg), GSSCredProblem)
}
