package nlm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// called is a call that the server made to a client.
type called struct {
	host       netip.Addr
	prog, proc uint32
	args       []byte
}

// rig is a server, and the clients as it sees them.
type rig struct {
	t      testing.TB
	s      *Server
	rpc    *rpc.Server
	codec  *nfs.Codec
	locks  *lock.Table
	krb    []byte // in an export with Kerberos
	open   []byte // there, with insecure_locks
	fh     []byte
	ro     []byte // of the read-only export
	calls  chan called
	shares *state.Server
	cred   *rpc.Cred // of the clients' calls
	port   uint16    // that they come from; 0 is a reserved one
	by     rpc.Transport
	xid    atomic.Uint32 // of the last call

	mu     sync.Mutex
	answer []Stat // of GRANTED, in turn; then Granted
	fail   error
	known  []Client
}

func newRig(t testing.TB, known []Client, grace time.Duration) *rig {
	r := &rig{
		t: t, codec: nfs.NewCodec([]byte("secret")), locks: lock.New(0), shares: state.New(state.Config{}),
		calls: make(chan called, 100),
	}
	store := memfs.New(memfs.Options{})
	root, _ := store.Root()
	mode := uint32(0o666)
	h, _, _, err := store.Create(nil, root, "file", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	r.fh, r.ro = r.codec.Append(nil, 1, &h), r.codec.Append(nil, 2, &h)
	table := nfs.NewTable(nil)
	rule := []nfs.ClientRule{{CIDR: netip.MustParsePrefix("10.0.0.0/24"), AnonUID: nfs.AnonID, AnonGID: nfs.AnonID}}
	kerberos := slices.Clone(rule)
	kerberos[0].Flavors = nfs.FlavorsGSS
	r.krb, r.open = r.codec.Append(nil, 3, &h), r.codec.Append(nil, 4, &h)
	insecure := slices.Clone(kerberos)
	insecure[0].InsecureLocks = true
	if err := table.Replace([]*nfs.Export{
		{ID: 1, Pseudo: "/one", FS: store, Clients: rule},
		{ID: 2, Pseudo: "/two", FS: store, Clients: rule, ReadOnly: true},
		{ID: 3, Pseudo: "/three", FS: store, Clients: kerberos},
		{ID: 4, Pseudo: "/four", FS: store, Clients: insecure},
	}); err != nil {
		t.Fatal(err)
	}
	r.s = New(Config{
		Exports: table, Codec: r.codec, Locks: r.locks, Known: known, Grace: grace, State: 5, Shares: shares{r.shares},
		Call: r.call,
		Remember: func(list []Client) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.known = list
			return r.fail
		},
	})
	r.rpc = rpc.NewServer(rpc.ServerConfig{Programs: r.s.Programs(), Workers: 2})
	t.Cleanup(func() {
		r.s.Close()
		r.rpc.Close()
	})
	return r
}

func (r *rig) call(_ context.Context, host netip.Addr, prog, vers, proc uint32, args func(*xdr.Encoder),
	res func(*xdr.Decoder) error,
) error {
	var e xdr.Encoder
	args(&e)
	r.calls <- called{host, prog, proc, e.AppendFlat(nil)}
	if vers != Version && prog == Program {
		return errors.New("wrong version")
	}
	if res == nil {
		return nil
	}
	st := Granted
	r.mu.Lock()
	if len(r.answer) > 0 {
		st, r.answer = r.answer[0], r.answer[1:]
	}
	r.mu.Unlock()
	var a xdr.Encoder
	result([]byte("x"), st)(&a)
	d := xdr.NewDecoder(a.B)
	return res(&d)
}

// do sends a call from a client and returns its results.
func (r *rig) do(client string, prog, proc uint32, args func(*xdr.Encoder)) xdr.Decoder {
	r.t.Helper()
	vers := uint32(Version)
	if prog == StatusProgram {
		vers = StatusVersion
	}
	var e xdr.Encoder
	xid := r.xid.Add(1)
	rpc.EncodeCall(&e, xid, prog, vers, proc, r.cred)
	args(&e)
	done := make(chan []byte, 1)
	const reserved = 700
	c := &rpc.Call{Peer: rpc.Peer{
		Addr:  netip.AddrPortFrom(netip.MustParseAddr(client), cmp.Or(r.port, reserved)),
		Local: netip.MustParseAddrPort("10.0.0.100:2049"), Transport: r.by,
	}, BulkMax: -1}
	c.Reply = func(c *rpc.Call, _ bool) { done <- c.Res.AppendFlat(nil) }
	r.rpc.Dispatch(c, xdr.NewDecoder(e.AppendFlat(nil)), true)
	d := xdr.NewDecoder(<-done)
	if err := rpc.DecodeReply(&d, xid); err != nil {
		r.t.Fatalf("procedure %d: %v", proc, err)
	}
	return d
}

// ask is one question about a lock.
type ask struct {
	client   string
	fh       []byte
	pid      int32
	off, n   uint64
	ex       bool
	block    bool
	reclaim  bool
	proc     uint32
	wantHeld string // of TEST: what is in the way
}

func (r *rig) ask(a ask) Stat {
	r.t.Helper()
	if a.fh == nil {
		a.fh = r.fh
	}
	l := Lock{
		Caller: "host-" + a.client, Handle: a.fh, Owner: fmt.Appendf(nil, "%d@x", a.pid), SVID: a.pid, Offset: a.off,
		Length: a.n,
	}
	d := r.do(a.client, Program, a.proc, func(e *xdr.Encoder) {
		e.Opaque([]byte("cookie"))
		switch a.proc {
		case ProcLock, ProcNMLock:
			e.Bool(a.block)
			e.Bool(a.ex)
			EncodeLock(e, &l)
			e.Bool(a.reclaim)
			e.Uint32(3)
		case ProcCancel:
			e.Bool(a.block)
			e.Bool(a.ex)
			EncodeLock(e, &l)
		case ProcTest:
			e.Bool(a.ex)
			EncodeLock(e, &l)
		default:
			EncodeLock(e, &l)
		}
	})
	if c := d.String(100); c != "cookie" {
		r.t.Errorf("cookie %q", c)
	}
	st := Stat(d.Uint32())
	if a.proc == ProcTest && st == Denied {
		ex, pid, oh, off, n := d.Bool(), d.Uint32(), d.String(100), d.Uint64(), d.Uint64()
		if got := fmt.Sprintf("%v %d %s %d %d", ex, pid, oh, off, n); got != a.wantHeld {
			r.t.Errorf("in the way is %q, want %q", got, a.wantHeld)
		}
	}
	if d.Err() != nil || d.Remaining() != 0 {
		r.t.Errorf("procedure %d: the results do not end where they should: %v, %d left", a.proc, d.Err(), d.Remaining())
	}
	return st
}

const (
	alice = "10.0.0.1"
	bob   = "10.0.0.2"
	eve   = "192.0.2.1"
)

func TestLocks(t *testing.T) {
	r := newRig(t, nil, 0)
	dead := append([]byte(nil), r.fh...)
	dead[len(dead)-1] ^= 1
	for i, c := range []struct {
		ask
		want Stat
	}{
		{ask{client: alice, proc: ProcLock, pid: 1, off: 0, n: 100, ex: true}, Granted},
		{ask{client: alice, proc: ProcLock, pid: 1, off: 0, n: 100, ex: true}, Granted},
		{ask{client: bob, proc: ProcLock, pid: 1, off: 50, n: 1}, Denied},
		{ask{client: bob, proc: ProcTest, pid: 1, off: 50, n: 1, wantHeld: "true 1 1@x 0 100"}, Denied},
		{ask{client: bob, proc: ProcLock, pid: 1, off: 100, n: 0}, Granted},
		{ask{client: alice, proc: ProcTest, pid: 2, off: 1 << 40, n: 0, ex: true, wantHeld: "false 1 1@x 100 0"}, Denied},
		{ask{client: alice, proc: ProcUnlock, pid: 1, off: 0, n: 50}, Granted},
		{ask{client: bob, proc: ProcTest, pid: 1, off: 0, n: 50, ex: true}, Granted},
		{ask{client: alice, proc: ProcUnlock, pid: 1, off: 0, n: 0}, Granted},
		{ask{client: bob, proc: ProcNMLock, pid: 2, off: 0, n: 10, ex: true}, Granted},
		{ask{client: bob, proc: ProcCancel, pid: 2, off: 0, n: 10, ex: true}, Denied},
		{ask{client: bob, proc: ProcLock, pid: 2, off: 1 << 63, n: 1 << 63}, Granted},
		{ask{client: bob, proc: ProcLock, pid: 2, off: 1 << 63, n: 1<<63 + 1}, TooBig},
		{ask{client: alice, fh: dead, proc: ProcLock, n: 1}, StaleHandle},
		{ask{client: alice, fh: []byte("short"), proc: ProcTest, n: 1}, StaleHandle},
		{ask{client: alice, fh: r.ro, proc: ProcLock, n: 1, ex: true}, ReadOnly},
		{ask{client: alice, fh: r.ro, proc: ProcLock, n: 1}, Granted},
		{ask{client: eve, proc: ProcLock, n: 1}, Failed},
		{ask{client: alice, proc: ProcLock, n: 1, reclaim: true}, DeniedGrace},
	} {
		if st := r.ask(c.ask); st != c.want {
			t.Errorf("%d: %+v: %v, want %v", i, c.ask, st, c.want)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) != 2 || r.known[0] != (Client{
		"host-" + alice, netip.MustParseAddr(alice),
		netip.MustParseAddr("10.0.0.100"),
	}) {
		t.Errorf("remembered are %+v", r.known)
	}
}

func TestWaiting(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []Stat
		asked   int
		keeps   bool
	}{
		{"taken", []Stat{Granted}, 1, true},
		{"taken the second time", []Stat{Denied, Granted}, 2, true},
		{"not wanted any more", []Stat{Denied, Denied}, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil, 0)
			r.answer = c.answers
			if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true}); st != Granted {
				t.Fatal(st)
			}
			for range 2 { // the client asks again now and then
				if st := r.ask(ask{client: bob, proc: ProcLock, pid: 1, n: 10, ex: true, block: true}); st != Blocked {
					t.Fatal(st)
				}
			}
			r.ask(ask{client: alice, proc: ProcUnlock, pid: 1})
			for range c.asked {
				g := <-r.calls
				d := xdr.NewDecoder(g.args)
				cookie, ex := d.String(100), d.Bool()
				l := DecodeLock(&d)
				if g.host.String() != bob || g.prog != Program || g.proc != ProcGranted || cookie != "cookie" || !ex ||
					l.SVID != 1 || l.Length != 10 || d.Err() != nil {
					t.Errorf("%+v: %q %v %+v %v", g, cookie, ex, l, d.Err())
				}
			}
			r.s.calls.Wait()
			want := Granted
			if c.keeps {
				want = Denied
			}
			if st := r.ask(ask{client: alice, proc: ProcTest, pid: 1, n: 1, wantHeld: "true 1 1@x 0 10"}); st != want {
				t.Errorf("afterwards: %v, want %v", st, want)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		r := newRig(t, nil, 0)
		r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true})
		r.ask(ask{client: bob, proc: ProcLock, pid: 1, n: 10, ex: true, block: true})
		if st := r.ask(ask{client: bob, proc: ProcCancel, pid: 1, n: 10, ex: true, block: true}); st != Granted {
			t.Errorf("cancel: %v", st)
		}
		r.ask(ask{client: alice, proc: ProcUnlock, pid: 1})
		r.s.calls.Wait()
		if len(r.calls) != 0 {
			t.Error("a lock that was cancelled was granted")
		}
	})
	t.Run("deadlock", func(t *testing.T) {
		r := newRig(t, nil, 0)
		r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true})
		r.ask(ask{client: bob, proc: ProcLock, pid: 1, off: 10, n: 10, ex: true})
		r.ask(ask{client: alice, proc: ProcLock, pid: 1, off: 10, n: 10, ex: true, block: true})
		if st := r.ask(ask{client: bob, proc: ProcLock, pid: 1, n: 10, ex: true, block: true}); st != Deadlock {
			t.Errorf("%v", st)
		}
	})
}

func TestMessages(t *testing.T) {
	r := newRig(t, nil, 0)
	l := Lock{Caller: "host", Handle: r.fh, Owner: []byte("o"), SVID: 9, Length: 1}
	r.do(alice, Program, ProcLockMsg, func(e *xdr.Encoder) {
		e.Opaque([]byte("c1"))
		e.Bool(false)
		e.Bool(true)
		EncodeLock(e, &l)
		e.Bool(false)
		e.Uint32(0)
	})
	g := <-r.calls
	d := xdr.NewDecoder(g.args)
	if c, st := d.String(10), Stat(d.Uint32()); g.proc != ProcLockRes || c != "c1" || st != Granted {
		t.Errorf("%+v: %q %v", g, c, st)
	}
	if held, _ := r.locks.Count(); held != 1 {
		t.Errorf("%d locks", held)
	}
}

func TestClientStartsAnew(t *testing.T) {
	notify := func(r *rig, from, name string) {
		r.do(from, StatusProgram, StatusNotify, func(e *xdr.Encoder) { e.String(name); e.Uint32(7) })
	}
	for _, c := range []struct {
		name  string
		tell  func(r *rig)
		drops bool
	}{
		{"NOTIFY", func(r *rig) { notify(r, alice, "host-"+alice) }, true},
		{"NOTIFY by address", func(r *rig) { notify(r, alice, alice) }, true},
		{"NOTIFY from elsewhere", func(r *rig) { notify(r, bob, "host-"+alice) }, false},
		{"NOTIFY about another", func(r *rig) { notify(r, alice, "other") }, false},
		{"FREE_ALL", func(r *rig) {
			r.do(alice, Program, ProcFreeAll, func(e *xdr.Encoder) { e.String("host-" + alice); e.Uint32(7) })
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil, 0)
			r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true})
			c.tell(r)
			if held, _ := r.locks.Count(); (held == 0) != c.drops {
				t.Errorf("%d locks are left", held)
			}
		})
	}
}
