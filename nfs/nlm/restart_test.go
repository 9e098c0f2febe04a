package nlm

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func TestServerStartsAnew(t *testing.T) {
	known := []Client{{"host-" + alice, netip.MustParseAddr(alice), netip.MustParseAddr("10.0.0.100")}}
	r := newRig(t, known, 300*time.Millisecond)
	g := <-r.calls
	d := xdr.NewDecoder(g.args)
	if name, state := d.String(100),
		d.Uint32(); g.host.String() != alice || g.prog != StatusProgram || g.proc != StatusNotify || name != "10.0.0.100" ||
		state != 5 {
		t.Errorf("%+v: %q, state %d", g, name, state)
	}
	for i, c := range []struct {
		ask
		want Stat
	}{
		{ask{client: bob, proc: ProcLock, pid: 1, n: 1}, DeniedGrace},
		{ask{client: bob, proc: ProcTest, pid: 1, n: 1}, DeniedGrace},
		{ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true, reclaim: true}, Granted},
	} {
		if st := r.ask(c.ask); st != c.want {
			t.Errorf("%d: %v, want %v", i, st, c.want)
		}
	}
	for r.s.grace() {
		time.Sleep(10 * time.Millisecond)
	}
	if st := r.ask(ask{client: bob, proc: ProcLock, pid: 1, n: 1}); st != Denied {
		t.Errorf("after the grace period: %v", st)
	}
	if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true, reclaim: true}); st != DeniedGrace {
		t.Errorf("reclaimed after the grace period: %v", st)
	}
}

// TestOtherProtocols: their grace period counts here, and their silent clients give way.
func TestOtherProtocols(t *testing.T) {
	r := newRig(t, nil, 0)
	reclaiming := true
	r.s.cfg.OthersReclaim = func() bool { return reclaiming }
	silent := ""
	r.s.cfg.EndExpired = func(client string) bool { return client == silent && r.locks.Drop(client) }
	_, h, _ := r.codec.Parse(r.fh)
	for _, client := range []string{"other 1", "other 2"} {
		if _, ok, err := r.locks.Lock(lock.File{Export: 1, Handle: h},
			lock.Lock{Owner: lock.Owner{Client: client, ID: "x"}, Start: 5, End: 5}); !ok || err != nil {
			t.Fatal(err)
		}
	}
	lockIt := ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true}
	testIt := ask{client: alice, proc: ProcTest, pid: 1, n: 10, ex: true, wantHeld: "false 0 x 5 1"}
	for i, want := range []Stat{DeniedGrace, Denied, Denied, Granted} {
		reclaiming = i == 0
		silent = []string{"", "", "other 2", "other 1"}[i]
		for _, a := range []ask{testIt, lockIt} {
			if st := r.ask(a); st != want {
				t.Errorf("round %d: procedure %d: %v, not %v", i, a.proc, st, want)
			}
		}
	}
}

func TestNoLockWithoutMemory(t *testing.T) {
	r := newRig(t, nil, 0)
	r.fail = errors.New("disk full")
	if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10}); st != DeniedNoLocks {
		t.Errorf("%v", st)
	}
	if st := r.ask(ask{client: alice, proc: ProcNMLock, pid: 1, n: 10}); st != Granted {
		t.Errorf("a lock that nobody need remember: %v", st)
	}
}

func TestShares(t *testing.T) {
	r := newRig(t, nil, 0)
	share := func(client string, proc, mode, access uint32) Stat {
		d := r.do(client, Program, proc, func(e *xdr.Encoder) {
			e.Opaque([]byte("c"))
			e.String("host-" + client)
			e.Opaque(r.fh)
			e.Opaque([]byte("o"))
			e.Uint32(mode)
			e.Uint32(access)
			e.Bool(false)
		})
		d.Opaque(10)
		return Stat(d.Uint32())
	}
	for i, c := range []struct {
		client             string
		proc, mode, access uint32
		want               Stat
	}{
		{alice, ProcShare, 2, 1, Granted}, // reads, and nobody is to write
		{bob, ProcShare, 0, 1, Granted},
		{bob, ProcShare, 0, 3, Denied},
		{bob, ProcShare, 1, 1, Denied},
		{alice, ProcUnshare, 2, 1, Granted},
		{bob, ProcShare, 0, 3, Granted},
	} {
		if st := share(c.client, c.proc, c.mode, c.access); st != c.want {
			t.Errorf("%d: %v, want %v", i, st, c.want)
		}
	}
	// What another protocol has reserved counts, and the other way round.
	x := lock.File{Export: 1}
	_, x.Handle, _ = r.codec.Parse(r.fh)
	other := lock.Owner{Client: "other"}
	if st := r.shares.Reserve(time.Now(), x, other, netip.Addr{}, nfs.ShareRead,
		nfs.ShareWrite); st != nfs.ErrShareDenied {
		t.Errorf("beside a writer: %v", st)
	}
	if st := share(bob, ProcUnshare, 0, 3); st != Granted {
		t.Error(st)
	}
	if st := r.shares.Reserve(time.Now(), x, other, netip.Addr{}, nfs.ShareRead, nfs.ShareWrite); st != nfs.OK {
		t.Errorf("beside nobody: %v", st)
	}
	if st := share(alice, ProcShare, 0, 3); st != Denied {
		t.Errorf("a writer: %v", st)
	}
	if st := share(alice, ProcShare, 0, 1); st != Granted {
		t.Errorf("a reader: %v", st)
	}
	// A client that starts anew has none any more.
	if st := share(bob, ProcShare, 1, 0); st != Denied {
		t.Errorf("to keep a reader out: %v", st)
	}
	r.shares.Unreserve(x, other)
	if st := share(alice, ProcShare, 2, 1); st != Granted {
		t.Error(st)
	}
	if d := r.do(alice, Program, ProcFreeAll,
		func(e *xdr.Encoder) { e.String("host-" + alice); e.Uint32(3) }); d.Err() != nil {
		t.Error(d.Err())
	}
	if r.shares.Denying() {
		t.Error("a reservation outlives its client")
	}
}

// shares is the table of reservations with a clock.
type shares struct{ *state.Server }

func (s shares) Denied(f lock.File, host netip.Addr, write, mayWait bool) bool {
	return s.Server.Denied(time.Now(), f, host, write, mayWait)
}

func (s shares) Reserve(f lock.File, owner lock.Owner, host netip.Addr, access, deny uint32) nfs.Status {
	return s.Server.Reserve(time.Now(), f, owner, host, access, deny)
}

// TestLockPermission: who may neither read nor write a file, and is not its owner, cannot lock it
// or ask who has.
func TestLockPermission(t *testing.T) {
	r := newRig(t, nil, 0)
	x := r.s.cfg.Exports.ByID(1)
	root, err := x.FS.Root()
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := x.FS.Lookup(nil, root, "file")
	if err != nil {
		t.Fatal(err)
	}
	owner, group, mode := uint32(1000), uint32(2000), uint32(0)
	set := func(m uint32) {
		t.Helper()
		mode = m
		if _, err := x.FS.SetAttr(nil, h, &blockstore.SetAttr{UID: &owner, GID: &group, Mode: &mode}, nil); err != nil {
			t.Fatal(err)
		}
	}
	user := func(uid uint32, groups ...uint32) *rpc.Cred {
		return &rpc.Cred{Flavor: rpc.AuthSys, UID: uid, GID: 9, Groups: groups}
	}
	share := func(deny uint32) Stat {
		d := r.do(alice, Program, ProcShare, func(e *xdr.Encoder) {
			e.Opaque([]byte("cookie"))
			e.String("host")
			e.Opaque(r.fh)
			e.Opaque([]byte("o"))
			e.Uint32(deny)
			e.Uint32(1)
			e.Bool(false)
		})
		d.Opaque(stringMax)
		return Stat(d.Uint32())
	}
	for _, c := range []struct {
		about string
		mode  uint32
		cred  *rpc.Cred
		want  Stat
		deny  Stat // of a reservation that denies reading
	}{
		{"another user", 0o600, user(1001), Failed, Failed},
		{"nobody", 0o600, nil, Failed, Failed},
		{"root, squashed", 0o600, user(0), Failed, Failed},
		{"the owner", 0o000, user(1000), Granted, Granted},
		{"the group", 0o640, user(1001, 2000), Granted, Failed},
		{"not the group", 0o640, user(1001), Failed, Failed},
		{"execution alone", 0o611, user(1001), Failed, Failed},
		{"writing alone", 0o602, user(1001), Granted, Granted},
		{"all", 0o644, user(1001), Granted, Failed},
		{"all, nobody", 0o644, nil, Granted, Failed},
	} {
		set(c.mode)
		r.cred = c.cred
		for _, proc := range []uint32{ProcTest, ProcLock, ProcNMLock} {
			for _, ex := range []bool{false, true} {
				if st := r.ask(ask{client: alice, proc: proc, pid: 1, n: 10, ex: ex}); st != c.want {
					t.Errorf("%s: procedure %d: %v, not %v", c.about, proc, st, c.want)
				}
			}
		}
		if st := share(nfs.ShareWrite); st != c.want {
			t.Errorf("%s: SHARE: %v, not %v", c.about, st, c.want)
		}
		if st := share(nfs.ShareBoth); st != c.deny {
			t.Errorf("%s: SHARE that denies reading: %v, not %v", c.about, st, c.deny)
		}
		// What was taken before is given up whatever the mode says by then.
		set(0)
		if st := r.ask(ask{client: alice, proc: ProcUnlock, pid: 1, n: 10}); st != Granted {
			t.Errorf("%s: UNLOCK: %v", c.about, st)
		}
		r.shares.UnreserveAll(netip.MustParseAddr(alice).String() + " host")
		if n, _ := r.locks.Count(); n != 0 {
			t.Errorf("%s: %d locks are left", c.about, n)
		}
	}
}

// TestStartedAnewBySomebody: where an export wants reserved ports, a user of a client cannot have
// the locks of all others there dropped.
func TestStartedAnewBySomebody(t *testing.T) {
	r := newRig(t, nil, 0)
	for _, c := range []struct {
		secure bool
		port   uint16
		want   int
	}{{false, 50000, 0}, {true, 50000, 1}, {true, 700, 0}} {
		one := *r.s.cfg.Exports.ByID(1)
		one.Clients = []nfs.ClientRule{{CIDR: netip.MustParsePrefix("10.0.0.0/24"), Secure: c.secure}}
		if err := r.s.cfg.Exports.Replace([]*nfs.Export{&one}); err != nil {
			t.Fatal(err)
		}
		for _, how := range []struct{ prog, proc uint32 }{{Program, ProcFreeAll}, {StatusProgram, StatusNotify}} {
			r.port = 0
			if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true}); st != Granted {
				t.Fatal(st)
			}
			r.port = c.port
			r.do(alice, how.prog, how.proc, func(e *xdr.Encoder) {
				e.String("host-" + alice)
				e.Uint32(7)
			})
			if n, _ := r.locks.Count(); n != c.want {
				t.Errorf("%+v, %+v: %d locks, not %d", c, how, n, c.want)
			}
			r.port = 0
			r.ask(ask{client: alice, proc: ProcUnlock, pid: 1, n: 10})
		}
	}
}

func FuzzPrograms(f *testing.F) {
	var e xdr.Encoder
	e.Opaque([]byte("cookie"))
	e.Bool(true)
	e.Bool(true)
	EncodeLock(&e, &Lock{Caller: "host", Handle: make([]byte, 32), Owner: []byte("o")})
	f.Add(uint32(Program), uint32(ProcLock), e.B)
	f.Add(uint32(StatusProgram), uint32(StatusNotify), []byte{0, 0, 0, 1, 'x', 0, 0, 0, 0, 0, 0, 1})
	r := newRig(f, nil, 0)
	go func() {
		for range r.calls { //nolint:revive // nobody looks
		}
	}()
	f.Fuzz(func(t *testing.T, prog, proc uint32, args []byte) {
		vers := uint32(Version)
		if prog == StatusProgram {
			vers = StatusVersion
		}
		var e xdr.Encoder
		rpc.EncodeCall(&e, 7, prog, vers, proc, nil)
		done := make(chan struct{})
		c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(alice + ":700")}, BulkMax: -1}
		c.Reply = func(*rpc.Call, bool) { close(done) }
		r.rpc.Dispatch(c, xdr.NewDecoder(append(e.B, args...)), true)
		<-done
	})
}

// delegated is a file that somebody has, or not.
type delegated struct {
	nfs.Delegations
	taken bool
	held  int
}

func (g *delegated) Free(lock.File, bool, bool) bool { return !g.taken }

func (g *delegated) Delegating() bool { return true }

func (g *delegated) BeginChange(lock.File) (begun, ok bool) {
	if !g.taken {
		g.held++
	}
	return !g.taken, !g.taken
}

func (g *delegated) EndChange(lock.File) { g.held-- }

// TestDelegatedToOthers: clients come again, as in a grace period.
func TestDelegatedToOthers(t *testing.T) {
	r := newRig(t, nil, 0)
	g := &delegated{taken: true}
	r.s.cfg.Delegations = g
	for _, want := range []Stat{DeniedGrace, Granted} {
		for _, proc := range []uint32{ProcTest, ProcLock} {
			for _, ex := range []bool{false, true} {
				if st := r.ask(ask{client: alice, proc: proc, pid: 1, n: 10, ex: ex}); st != want {
					t.Errorf("procedure %d: %v, not %v", proc, st, want)
				}
			}
		}
		g.taken = false
	}
	if g.held != 0 {
		t.Errorf("held %d times", g.held)
	}
}

// TestFlavor: who may not use an export by a flavor cannot lock in it by that either.
func TestFlavor(t *testing.T) {
	r := newRig(t, nil, 0)
	for _, proc := range []uint32{ProcTest, ProcLock, ProcNMLock, ProcUnlock, ProcCancel} {
		if st := r.ask(ask{client: "10.0.0.1", fh: r.krb, pid: 1, n: 1, ex: true, proc: proc}); st == Granted {
			t.Errorf("procedure %d is served without Kerberos", proc)
		}
	}
	for what, fh := range map[string][]byte{"elsewhere": r.fh, "with insecure_locks": r.open} {
		if st := r.ask(ask{client: "10.0.0.1", fh: fh, pid: 1, n: 1, ex: true, proc: ProcLock}); st != Granted {
			t.Errorf("a lock %s: %v", what, st)
		}
	}
}

// TestReclaimOfAnotherServer: clients of a server of the same cluster, which is lost, are notified
// and reclaim here. What they reclaim is remembered here, so that they may do so again.
func TestReclaimOfAnotherServer(t *testing.T) {
	r := newRig(t, nil, 0)
	lost := Client{"host-" + alice, netip.MustParseAddr(alice), netip.MustParseAddr("10.0.0.100")}
	reclaim := ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true, reclaim: true}
	if st := r.ask(reclaim); st != DeniedGrace {
		t.Fatalf("a reclaim before the period: %v", st)
	}
	r.s.BeginReclaim([]Client{lost}, clock.Now().Add(time.Minute), 77)
	g := <-r.calls
	d := xdr.NewDecoder(g.args)
	if name, state := d.String(100), d.Uint32(); g.host.String() != alice || g.proc != StatusNotify ||
		name != "10.0.0.100" || state != 77 {
		t.Errorf("%+v: %q, state %d", g, name, state)
	}
	if st := r.ask(ask{client: bob, proc: ProcLock, pid: 1, n: 1}); st != DeniedGrace {
		t.Fatalf("a new lock in the period: %v", st)
	}
	if st := r.ask(reclaim); st != Granted {
		t.Fatalf("a reclaim: %v", st)
	}
	r.mu.Lock()
	known := r.known
	r.mu.Unlock()
	if !slices.Equal(known, []Client{lost}) {
		t.Fatalf("%v may reclaim after the next start", known)
	}
	r.s.EndGrace()
	if st := r.ask(ask{client: bob, proc: ProcLock, pid: 1, n: 1}); st != Denied {
		t.Fatalf("after the period: %v", st)
	}
	if st := r.ask(reclaim); st != DeniedGrace {
		t.Fatalf("a reclaim after the period: %v", st)
	}
}
