package rpc

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

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

// calls makes n calls of alice in one context.
func (r *gssRig) calls(n int, service gss.Service, proc uint32, args func(*xdr.Encoder)) [][]byte {
	r.t.Helper()
	res, _ := r.init("alice")
	client := gss.NewClient(r.client, res.Handle, service)
	msgs := make([][]byte, n)
	for i := range msgs {
		cred, err := client.Next()
		if err != nil {
			r.t.Fatal(err)
		}
		e := header(uint32(i), proc, &cred)
		client.Finish(e, &cred, args)
		msgs[i] = e.AppendFlat(nil)
	}
	return msgs
}

// TestGSSDoesNotAllocate: a call under krb5 allocates no more than a call under AUTH_SYS.
func TestGSSDoesNotAllocate(t *testing.T) {
	r := newGSSRig(t)
	const calls = 101 // one more than AllocsPerRun is asked for
	msgs := r.calls(calls, gss.None, procEcho, func(e *xdr.Encoder) { e.Uint32(9) })
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

// FuzzGSS changes bytes of calls to a server with RPCSEC_GSS. Under krb5i and krb5p, changed
// arguments never reach a procedure.
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

// loop is a Client that calls a Server directly, without a network.
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

// TestSecured: a client establishes a context, and a new one when the server has deleted the old
// one.
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
			q := &Request{
				Prog: testProg, Vers: 2, Proc: procWrite, Dst: make([]byte, 100), ResMax: 2000,
				Args: func(e *xdr.Encoder) { e.Bulk([]byte("some data")) },
				Res: func(d *xdr.Decoder) error {
					if got := d.String(100); got != "some data" {
						t.Errorf("%v: %q", service, got)
					}
					return d.Err()
				},
			}
			err := s.Call(t.Context(), q)
			if len(q.Dst) != 100 || q.ResMax != 2000 || q.gss != nil {
				t.Errorf("%v: the request was left with %d bytes of Dst and a bound of %d", service, len(q.Dst), q.ResMax)
			}
			return err
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

// TestSecuredUsers: each user has a context. A user without Kerberos credentials does not delay
// others. The number of remembered contexts is bounded.
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

// TestGSSRoom: results without protection have all the room of the transport. Protected results
// have less, because the protection needs some of it.
func TestGSSRoom(t *testing.T) {
	r := newGSSRig(t)
	res, _ := r.init("alice")
	r.limit = 1 << 20
	for service, want := range map[gss.Service]int{
		gss.None: r.limit, gss.Integrity: r.limit - gss.Overhead, gss.Privacy: r.limit - gss.Overhead,
	} {
		c := gss.NewClient(r.client, res.Handle, service)
		cred := gss.Cred{Version: gss.Version, Seq: 100 + uint32(service), Service: service, Handle: res.Handle}
		e := header(uint32(service), procWho, &cred)
		c.Finish(e, &cred, nil)
		if r.send(e.AppendFlat(nil)); r.room != want {
			t.Errorf("%v: %d bytes, not %d", service, r.room, want)
		}
	}
}
