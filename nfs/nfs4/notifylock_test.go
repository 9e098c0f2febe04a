package nfs4

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// lockNotified is a CB_NOTIFY_LOCK.
type lockNotified struct {
	fh     []byte
	client uint64
	owner  string
}

// notices makes a callee that passes on each CB_NOTIFY_LOCK.
func notices(t testing.TB) (*callee, chan lockNotified) {
	c, got := newCallee(t), make(chan lockNotified, 16)
	c.answer = func(k *callback) (v verdict) {
		if k.notify != nil {
			got <- *k.notify
		}
		return v
	}
	return c, got
}

// locker is a client with the file open.
type locker struct {
	*sess
	fh    []byte
	owner string
	open  state.Stateid
	mine  state.Stateid // of its locks
	flags uint32        // of its OPEN
}

func (r *rig) locker(x *sess, fh []byte, owner string) *locker {
	p := x.openFH(fh, state.Both|WantNoDeleg, owner).ok(OpOpen)
	id, _, _ := p.opened()
	return &locker{sess: x, fh: fh, owner: owner, open: id, flags: p.rflags}
}

// lock is a LOCK of the whole file.
func (l *locker) lock(typ uint32) nfs.Status {
	l.r.t.Helper()
	lockArgs := op(OpLock, typ, false, uint64(0), uint64(lock.ToEnd), true, uint32(0), l.open, uint32(0), uint64(0),
		l.owner)
	if l.mine != (state.Stateid{}) {
		lockArgs = op(OpLock, typ, false, uint64(0), uint64(lock.ToEnd), false, l.mine, uint32(0))
	}
	p := l.do(op(OpPutFH, l.fh), lockArgs).ok(OpPutFH)
	st := p.next(OpLock)
	if st == nfs.OK {
		l.mine = DecodeStateid(p.Decoder)
	}
	return st
}

func (l *locker) unlock() {
	l.r.t.Helper()
	p := l.do(op(OpPutFH, l.fh), op(OpLockU, LockWrite, uint32(0), l.mine, uint64(0), uint64(lock.ToEnd))).ok(OpPutFH)
	l.mine = DecodeStateid(p.ok(OpLockU).Decoder)
}

func (l *locker) wants(typ uint32, want nfs.Status) {
	l.r.t.Helper()
	if st := l.lock(typ); st != want {
		l.r.t.Fatalf("LOCK by %s: %v instead of %v", l.owner, st, want)
	}
}

func received(t *testing.T, c chan lockNotified) lockNotified {
	t.Helper()
	select {
	case n := <-c:
		return n
	case <-time.After(10 * time.Second):
		t.Fatal("no CB_NOTIFY_LOCK")
		return lockNotified{}
	}
}

// TestNotifyLock: clients that wait are called in the order in which they came, and nobody else
// gets the lock meanwhile.
func TestNotifyLock(t *testing.T) {
	r := newRig(t)
	fh := r.session(2, "maker").file("f")
	call1, got1 := notices(t)
	call2, got2 := notices(t)
	first := r.locker(r.called("first", call1), fh, "one")
	second := r.locker(r.called("second", call2), fh, "two")
	r.back = nil
	holder := r.locker(r.session(2, "holder"), fh, "holder")
	if first.flags&resultMayNotify == 0 || holder.flags&resultMayNotify != 0 {
		t.Errorf("flags of OPEN: %x with a backchannel, %x without", first.flags, holder.flags)
	}
	holder.wants(LockWrite, nfs.OK)
	first.wants(lockWriteWait, nfs.ErrDenied)
	second.wants(lockReadWait, nfs.ErrDenied)
	holder.unlock()
	n := received(t, got1)
	if !bytes.Equal(n.fh, fh) || n.client != first.client || n.owner != "one" {
		t.Errorf("CB_NOTIFY_LOCK of %x, client %x, owner %q", n.fh, n.client, n.owner)
	}
	holder.wants(LockRead, nfs.ErrDenied)
	second.wants(lockReadWait, nfs.ErrDenied)
	first.wants(lockWriteWait, nfs.OK)
	first.unlock()
	if n := received(t, got2); n.owner != "two" {
		t.Errorf("notified %q", n.owner)
	}
	second.wants(lockReadWait, nfs.OK)
	select {
	case n := <-got1:
		t.Errorf("notified %q again", n.owner)
	default:
	}
	// The server counts a callback after it has sent it.
	for end := time.Now().Add(time.Minute); r.s.Faults()[CountNotified] != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d counted", r.s.Faults()[CountNotified])
		}
	}
}

// TestNotifyNobody: a client that was called and does not come keeps the lock free for the time of
// an offer; one that only tries has no place in the queue.
func TestNotifyNobody(t *testing.T) {
	r := newRig(t)
	fh := r.session(2, "maker").file("f")
	call, got := notices(t)
	gone := r.locker(r.called("gone", call), fh, "gone")
	r.back = nil
	holder, other := r.locker(r.session(2, "holder"), fh, "holder"), r.locker(r.session(2, "other"), fh, "other")
	holder.wants(LockWrite, nfs.OK)
	other.wants(LockWrite, nfs.ErrDenied)
	if n := r.locks.Asking(); n != 0 {
		t.Errorf("%d ask", n)
	}
	gone.wants(lockWriteWait, nfs.ErrDenied)
	holder.unlock()
	received(t, got)
	other.wants(LockWrite, nfs.ErrDenied)
	for r.locks.Tick() > 0 {
	}
	other.wants(LockWrite, nfs.OK)
}

// TestPolledLock: version 4.0 polls. Its place in the queue counts among those of other versions.
func TestPolledLock(t *testing.T) {
	r := newRig(t)
	fh := r.session(2, "maker").file("f")
	call, got := notices(t)
	late := r.locker(r.called("late", call), fh, "late")
	r.back = nil
	holder := r.locker(r.session(2, "holder"), fh, "holder")
	holder.wants(LockWrite, nfs.OK)
	// What a client of version 4.0 does to package state.
	early := lock.Lock{Owner: lock.Owner{Client: "4.0", ID: "early"}, End: lock.ToEnd, Exclusive: true}
	if _, ok, err := r.locks.Ask(r.file(fh), early); ok || err != nil {
		t.Fatal(ok, err)
	}
	late.wants(lockWriteWait, nfs.ErrDenied)
	holder.unlock()
	late.wants(lockWriteWait, nfs.ErrDenied)
	if _, ok, err := r.locks.Ask(r.file(fh), early); !ok || err != nil {
		t.Fatal(ok, err)
	}
	r.locks.Drop("4.0")
	received(t, got)
	late.wants(lockWriteWait, nfs.OK)
}

// TestLockDeadlock: two clients that would wait for each other.
func TestLockDeadlock(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "maker")
	f, g := x.file("f"), x.file("g")
	one, two := r.session(2, "one"), r.session(2, "two")
	oneF, oneG := r.locker(one, f, "one"), r.locker(one, g, "one")
	twoF, twoG := r.locker(two, f, "two"), r.locker(two, g, "two")
	oneF.wants(LockWrite, nfs.OK)
	twoG.wants(LockWrite, nfs.OK)
	oneG.wants(lockWriteWait, nfs.ErrDenied)
	twoF.wants(lockWriteWait, nfs.ErrDeadlock)
	twoF.wants(LockWrite, nfs.ErrDenied)
	twoG.unlock()
	oneG.wants(lockWriteWait, nfs.OK)
}

// TestNotifyLockAgain: a callback that cannot be sent while the server is paused is sent
// afterwards.
func TestNotifyLockAgain(t *testing.T) {
	r := newRig(t)
	fh := r.session(2, "maker").file("f")
	call, got := notices(t)
	a := r.locker(r.called("a", call), fh, "a")
	r.back = nil
	holder := r.locker(r.session(2, "holder"), fh, "holder")
	holder.wants(LockWrite, nfs.OK)
	a.wants(lockWriteWait, nfs.ErrDenied)
	r.s.Pause(true)
	holder.unlock()
	select {
	case <-got:
		t.Error("a callback of a paused server")
	case <-time.After(50 * time.Millisecond):
	}
	r.s.Pause(false)
	received(t, got)
	a.wants(lockWriteWait, nfs.OK)
	r.s.Close()
	r.s.lockOffered(r.file(fh), lock.Owner{Client: "nobody"}) // does nothing, and starts nothing
}

// TestNotifyManyLocks: many clients wait at once, over few slots.
func TestNotifyManyLocks(t *testing.T) {
	r := newRig(t)
	fh := r.session(2, "maker").file("f")
	const owners = 40
	var mu sync.Mutex
	waiting := make(map[string]*locker)
	c := newCallee(t)
	got := make(chan string, owners)
	c.answer = func(k *callback) (v verdict) {
		if k.notify != nil {
			got <- k.notify.owner
		}
		return v
	}
	x := r.called("a", c)
	r.back = nil
	holder := r.locker(r.session(2, "holder"), fh, "holder")
	holder.wants(LockWrite, nfs.OK)
	for i := range owners {
		l := r.locker(x, fh, string(rune('A'+i)))
		l.wants(lockReadWait, nfs.ErrDenied)
		mu.Lock()
		waiting[l.owner] = l
		mu.Unlock()
	}
	holder.unlock()
	for range owners {
		select {
		case o := <-got:
			waiting[o].wants(lockReadWait, nfs.OK)
			delete(waiting, o)
		case <-time.After(10 * time.Second):
			t.Fatalf("%d were not called", len(waiting))
		}
	}
}

var _ rpc.Caller = (*callee)(nil)
