package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// acceptAll is a gss.Acceptor for tokens that are names.
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
	seen   Cred // by WHO
}

const (
	procWho   = 5
	procWrite = 6
)

func newGSSRig(t *testing.T) *gssRig {
	t.Helper()
	r := &gssRig{t: t}
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
		r.seen = c.Cred
		c.Res.Bulk([]byte("nobody but you"))
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
		// A retransmission is another message: the reply cache has to know the call in it.
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
	// What is forged.
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
		"version":        {gss.Cred{Version: 2, Service: gss.None, Handle: res.Handle}, procWho, AuthBadCred},
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
	// A program that does not exist has a verifier all the same.
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

// TestGSSAbsent: a server without a keytab.
func TestGSSAbsent(t *testing.T) {
	r := &gssRig{t: t}
	r.s = NewServer(ServerConfig{Programs: r.svc.programs()})
	t.Cleanup(r.s.Close)
	e := header(1, 0, &gss.Cred{Version: 1, Proc: gss.Init, Service: gss.None})
	e.Uint32s(0, 0)
	e.Opaque([]byte("alice"))
	denied(t, r.send(e.B), AuthRejectedCred)
}

func TestGSSUnmapped(t *testing.T) {
	r := newGSSRig(t)
	res, _ := r.init("stranger")
	c := gss.NewClient(r.client, res.Handle, gss.Privacy)
	cred, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	e := header(2, procWho, &cred)
	c.Finish(e, &cred, nil)
	if r.send(e.AppendFlat(nil)); !r.seen.Unmapped || r.seen.UID != 0 || r.seen.Principal != "stranger" {
		t.Errorf("%+v", r.seen)
	}
}

// TestGSSDoesNotAllocate: a call under krb5 costs no allocation more than one under AUTH_SYS.
func TestGSSDoesNotAllocate(t *testing.T) {
	r := newGSSRig(t)
	res, _ := r.init("alice")
	client := gss.NewClient(r.client, res.Handle, gss.None)
	const calls = 101 // one more than AllocsPerRun is asked for
	var msgs [calls][]byte
	for i := range msgs {
		cred, err := client.Next()
		if err != nil {
			t.Fatal(err)
		}
		e := header(uint32(i), procEcho, &cred)
		client.Finish(e, &cred, func(e *xdr.Encoder) { e.Uint32(9) })
		msgs[i] = e.B
	}
	replies := 0
	c := &Call{Reply: func(c *Call, drop bool) {
		if !drop && c.Res.B[acceptedHeader-1] != 0 { // the length of the verifier
			replies++
		}
	}}
	i := 0
	n := testing.AllocsPerRun(calls-1, func() {
		c.Reset()
		r.s.Dispatch(c, xdr.NewDecoder(msgs[i]), false)
		i++
	})
	if n != 0 && !raceEnabled || replies != calls {
		t.Errorf("%v allocations per call, %d replies", n, replies)
	}
}

// FuzzGSS changes calls of a server with RPCSEC_GSS. Nothing that is not signed reaches a procedure.
func FuzzGSS(f *testing.F) {
	key := gss.Key{Type: gss.AES128SHA256, Value: bytes.Repeat([]byte{7}, 16)}
	client, err := gss.NewContext(key, gss.Role{})
	if err != nil {
		f.Fatal(err)
	}
	server, err := gss.NewContext(key, gss.Role{Acceptor: true})
	if err != nil {
		f.Fatal(err)
	}
	contexts := gss.NewServer(gss.ServerConfig{Acceptor: acceptAll{server}})
	init, _ := contexts.Accept(netip.MustParseAddr("192.0.2.1"), []byte("alice"), time.Now())
	s := NewServer(ServerConfig{Workers: 1, GSS: contexts, Programs: []Program{{
		Name: "test", Prog: testProg, Vers: 2, Procs: []Proc{
			{Name: "NULL", Serve: func(*Call, bool) Status { return Done }},
			{Name: "ONE", Mutates: true, Serve: func(c *Call, _ bool) Status {
				if c.Cred.Flavor.GSS() && c.Args.Uint32() != 42 {
					panic("the arguments are not those of the client")
				}
				return Done
			}},
		},
	}}})
	for _, service := range []gss.Service{gss.None, gss.Integrity, gss.Privacy} {
		cl := gss.NewClient(client, init.Handle, service)
		cred, err := cl.Next()
		if err != nil {
			f.Fatal(err)
		}
		e := header(1, 1, &cred)
		cl.Finish(e, &cred, func(e *xdr.Encoder) { e.Uint32(42) })
		f.Add(e.AppendFlat(nil), service > gss.None)
	}
	f.Fuzz(func(t *testing.T, b []byte, protected bool) {
		before := s.faults[panics].Load()
		done := make(chan struct{})
		c := &Call{Reply: func(*Call, bool) { close(done) }}
		c.Reset()
		s.Dispatch(c, xdr.NewDecoder(bytes.Clone(b)), false)
		<-done
		// krb5 does not protect arguments.
		if protected && c.gss.cred.Service > gss.None && s.faults[panics].Load() != before {
			t.Errorf("% x", b)
		}
	})
}

// loop is a Client of a Server, without a network.
type loop struct {
	r   *gssRig
	xid uint32
}

func (l *loop) Call(_ context.Context, r *Request) error {
	if r.XID == 0 {
		l.xid++
		r.XID = l.xid
	}
	var e xdr.Encoder
	r.Encode(&e)
	d := xdr.NewDecoder(l.r.send(e.AppendFlat(nil)))
	return r.Decode(&d)
}

func (*loop) Close() error { return nil }

// TestSecured: a client establishes a context, and another one when the server has forgotten it.
func TestSecured(t *testing.T) {
	for _, service := range []gss.Service{gss.None, gss.Integrity, gss.Privacy} {
		r := newGSSRig(t)
		begun := 0
		s := NewSecured(&loop{r: r}, service, func(context.Context, uint32) (Initiation, error) {
			begun++
			return Initiation{Token: []byte("alice"), Finish: func(token []byte) (*gss.Context, error) {
				if string(token) != "answer" {
					return nil, errors.New("another token")
				}
				return r.client, nil
			}}, nil
		})
		write := func() error {
			return s.Call(t.Context(), &Request{
				Prog: testProg, Vers: 2, Proc: procWrite, Dst: make([]byte, 100),
				Args: func(e *xdr.Encoder) { e.Bulk([]byte("some data")) },
				Res: func(d *xdr.Decoder) error {
					if got := d.String(100); got != "some data" {
						t.Errorf("%v: %q", service, got)
					}
					return d.Err()
				},
			})
		}
		for range 3 {
			if err := write(); err != nil {
				t.Errorf("%v: %v", service, err)
			}
		}
		if begun != 1 {
			t.Errorf("%v: %d contexts", service, begun)
		}
		old := r.s.gss
		r.s.gss = gss.NewServer(gss.ServerConfig{Acceptor: acceptAll{serverContext(t)}})
		if err := write(); err != nil || begun != 2 {
			t.Errorf("%v: after a restart: %v, %d contexts", service, err, begun)
		}
		if err := write(); err != nil || old.Stats().Active != 1 {
			t.Errorf("%v: %v", service, err)
		}
		err := s.Call(t.Context(), &Request{Prog: testProg, Vers: 9})
		var accepted *AcceptError
		if !errors.As(err, &accepted) || accepted.Stat != ProgMismatch || accepted.Low != 2 {
			t.Errorf("%v: an unknown version: %v", service, err)
		}
	}
	r := newGSSRig(t)
	empty := func(context.Context, uint32) (Initiation, error) { return Initiation{}, nil }
	refused := NewSecured(&loop{r: r}, gss.None, empty)
	var e *gss.InitError
	if err := refused.Call(t.Context(), &Request{Prog: testProg, Vers: 2}); !errors.As(err, &e) || e.Minor != 77 {
		t.Errorf("a refused token: %v", err)
	}
}

func serverContext(t *testing.T) *gss.Context {
	t.Helper()
	key := gss.Key{Type: gss.AES256SHA1, Value: bytes.Repeat([]byte{7}, 32)}
	c, err := gss.NewContext(key, gss.Role{Acceptor: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestSecuredUsers: each user has a context, a user without credentials keeps nobody else waiting, and
// the contexts that are remembered are bounded.
func TestSecuredUsers(t *testing.T) {
	r := newGSSRig(t)
	begun := map[uint32]int{}
	entered := make(chan struct{})
	s := NewSecured(&loop{r: r}, gss.None, func(ctx context.Context, uid uint32) (Initiation, error) {
		switch uid {
		case 6:
			return Initiation{}, errors.New("no ticket")
		case 7:
			close(entered)
			<-ctx.Done()
			return Initiation{}, errors.New("no KDC")
		}
		begun[uid]++
		finish := func([]byte) (*gss.Context, error) { return r.client, nil }
		return Initiation{Token: []byte{byte(uid + 1)}, Finish: finish}, nil
	})
	call := func(ctx context.Context, uid uint32) error {
		return s.Call(ctx, &Request{
			Prog: testProg, Vers: 2, Proc: procWho, Dst: make([]byte, 100), Cred: &Cred{UID: uid},
		})
	}
	slow, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- call(slow, 7) }()
	<-entered
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := call(canceled, 7); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for the context of another call: %v", err)
	}
	for range 2 {
		for uid := range uint32(3) {
			if err := call(t.Context(), uid); err != nil || r.seen.Principal != string([]byte{byte(uid + 1)}) {
				t.Errorf("user %d: %q, %v", uid, r.seen.Principal, err)
			}
		}
	}
	if len(begun) != 3 || begun[0] != 1 || begun[1] != 1 || begun[2] != 1 {
		t.Error(begun)
	}
	if err := call(t.Context(), 6); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("without a ticket: %v", err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted call: %v", err)
	}
	for uid := range uint32(2 * securedUsers) {
		s.user(&Request{Cred: &Cred{UID: uid}})
	}
	if len(s.users) != securedUsers {
		t.Errorf("%d users", len(s.users))
	}
}
