package nlm

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// succeed puts another server, with another table of locks, in the place of the one there is.
func (r *rig) succeed() {
	r.t.Helper()
	r.s.Pause(true)
	locks, err1 := r.locks.Snapshot()
	mine, err2 := r.s.Snapshot()
	if err := errors.Join(err1, err2); err != nil {
		r.t.Fatal(err)
	}
	cfg := r.s.cfg
	cfg.Locks, cfg.Known, cfg.State, cfg.Call = lock.New(0), nil, 99, r.call
	next := New(cfg)
	next.Pause(true)
	if err := errors.Join(next.Restore(mine), cfg.Locks.Restore(locks, next.RestoreWaiter)); err != nil {
		r.t.Fatal(err)
	}
	r.s, r.locks = next, cfg.Locks
	srv := rpc.NewServer(rpc.ServerConfig{Programs: next.Programs(), Workers: 2})
	r.rpc.Close()
	r.rpc = srv
	next.Pause(false)
}

// TestSucceeded: what is held is held, who waits is granted his lock in his turn, and told.
func TestSucceeded(t *testing.T) {
	r := newRig(t, nil, 0)
	r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true})
	for _, pid := range []int32{1, 2} {
		if st := r.ask(ask{client: bob, proc: ProcLock, pid: pid, n: 10, ex: true, block: true}); st != Blocked {
			t.Fatal(st)
		}
	}
	r.succeed()
	if st := r.ask(ask{client: bob, proc: ProcTest, pid: 7, n: 1, wantHeld: "true 1 1@x 0 10"}); st != Denied {
		t.Error(st)
	}
	for _, next := range []string{alice, bob} {
		pid := int32(1)
		r.ask(ask{client: next, proc: ProcUnlock, pid: pid})
		g := <-r.calls
		d := xdr.NewDecoder(g.args)
		cookie, ex := d.String(100), d.Bool()
		l := DecodeLock(&d)
		if g.host.String() != bob || g.proc != ProcGranted || cookie != "cookie" || !ex || l.Length != 10 || d.Err() != nil {
			t.Errorf("%+v: %q %v %+v", g, cookie, ex, l)
		}
		if want := map[string]int32{alice: 1, bob: 2}[next]; l.SVID != want {
			t.Errorf("process %d was told instead of %d", l.SVID, want)
		}
		r.s.calls.Wait()
	}
	if r.s.cfg.State != 5 || len(r.s.clients) != 2 {
		t.Errorf("state %d, %d clients", r.s.cfg.State, len(r.s.clients))
	}
	// A client that has started anew is known.
	r.do(bob, StatusProgram, StatusNotify, func(e *xdr.Encoder) { e.String("host-" + bob); e.Uint32(7) })
	if held, waiting := r.locks.Count(); held+waiting != 0 {
		t.Errorf("%d locks are left, %d wait", held, waiting)
	}
}

// TestToldByTheNext: a client that was being told of its lock is told by the next server, or by
// the one that goes on.
func TestToldByTheNext(t *testing.T) {
	for _, succeeded := range []bool{true, false} {
		r := newRig(t, nil, 0)
		begun := make(chan struct{}, 10)
		r.s.cfg.Call = func(ctx context.Context, _ netip.Addr, _, _, _ uint32, _ func(*xdr.Encoder),
			_ func(*xdr.Decoder) error,
		) error {
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true})
		r.ask(ask{client: bob, proc: ProcLock, pid: 1, n: 10, ex: true, block: true})
		r.ask(ask{client: alice, proc: ProcUnlock, pid: 1})
		<-begun
		if succeeded {
			r.succeed()
		} else {
			r.s.Pause(true)
			r.s.cfg.Call = r.call
			r.s.Pause(false)
		}
		if g := <-r.calls; g.host.String() != bob || g.proc != ProcGranted {
			t.Errorf("%+v", g)
		}
		r.s.calls.Wait()
		if st := r.ask(ask{client: alice, proc: ProcTest, pid: 1, n: 1, wantHeld: "true 1 1@x 0 10"}); st != Denied {
			t.Error(st)
		}
		if len(r.s.grants) != 0 {
			t.Error("it is told of for ever")
		}
	}
}

// TestNoticesGoOn: the grace period goes on, and clients that do not know yet of the server's
// start are told.
func TestNoticesGoOn(t *testing.T) {
	r := newRig(t, nil, 0)
	c := Client{"host-" + alice, netip.MustParseAddr(alice), netip.MustParseAddr("10.0.0.100")}
	r.s.until.Store(time.Now().Add(time.Hour).UnixNano())
	r.s.clients[c.key()], r.s.notices[c] = c, struct{}{}
	r.succeed()
	if g := <-r.calls; g.host.String() != alice || g.prog != StatusProgram || g.proc != StatusNotify {
		t.Errorf("%+v", g)
	}
	r.s.calls.Wait()
	if len(r.s.notices) != 0 {
		t.Error("it is told of for ever")
	}
	if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true}); st != DeniedGrace {
		t.Error(st)
	}
	if st := r.ask(ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true, reclaim: true}); st != Granted {
		t.Error(st)
	}
}

func TestDamagedSnapshots(t *testing.T) {
	good := waiting{Client{Name: "x", Addr: netip.MustParseAddr(bob)}, []byte("c"), Lock{Caller: "x"}}
	nowhere := good
	nowhere.who.Addr = netip.Addr{}
	f := lock.File{Handle: blockstore.Handle{Len: 1}}
	for name, x := range map[string]snapshot{
		"too many":     {Clients: make([]Client, clientsMax+1)},
		"no handle":    {Grants: []snapGrant{{Note: good.encode()}}},
		"no note":      {Grants: []snapGrant{{File: f}}},
		"long note":    {Grants: []snapGrant{{File: f, Note: append(good.encode(), 0)}}},
		"note of none": {Grants: []snapGrant{{File: f, Note: nowhere.encode()}}},
	} {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(&x); err != nil {
			t.Fatal(err)
		}
		r := newRig(t, nil, 0)
		if err := r.s.Restore(b.Bytes()); !errors.Is(err, errSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r := newRig(t, nil, 0); r.s.RestoreWaiter(lock.File{}, &lock.Waiter{Note: []byte("?")}) == nil {
		t.Error("it is not known who waits")
	}
}

// FuzzRestore: a snapshot is refused, or restored.
func FuzzRestore(f *testing.F) {
	var b bytes.Buffer
	w := waiting{Client{Name: "x", Addr: netip.MustParseAddr(bob)}, []byte("c"), Lock{Caller: "x"}}
	g := snapGrant{File: lock.File{Handle: blockstore.Handle{Len: 1}}, Note: w.encode()}
	x := snapshot{State: 3, Clients: []Client{w.who}, Grants: []snapGrant{g}}
	if err := gob.NewEncoder(&b).Encode(&x); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(_ *testing.T, b []byte) {
		s := New(Config{})
		defer s.Close()
		if s.Restore(b) == nil {
			_, _ = s.Snapshot()
		}
	})
}
