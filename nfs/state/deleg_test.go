package state

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// path is a connection that calls nobody.
type path struct{ gone atomic.Bool }

func (p *path) Call(*rpc.BackwardCall) { panic("the state calls nobody") }
func (p *path) Connected() bool        { return !p.gone.Load() }

var backAttr = Channel{MaxRequest: 4096, MaxResponse: 4096, MaxOps: 2, MaxSlots: 4}

// delegs is a server whose recalls are kept.
type delegs struct {
	*Server
	t    *testing.T
	mu   sync.Mutex
	sent []Recall
}

func delegServer(t *testing.T, cfg Config) *delegs {
	d := &delegs{t: t}
	cfg.Boot, cfg.Lease = 7, 90*time.Second
	cfg.Recall = func(list []Recall) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.sent = append(d.sent, list...)
	}
	d.Server = New(cfg)
	return d
}

// callable is a client with a session whose backchannel has answered.
func (d *delegs) callable(now time.Time, owner string) (*Client, *Session, *path) {
	d.t.Helper()
	c, x := join(d.t, d.Server, now, owner)
	x.Back = NewBackchannel(backAttr, 1, nil)
	p := new(path)
	d.Bind(x, p)
	prove(d.t, x)
	return c, x, p
}

func prove(t *testing.T, x *Session) {
	t.Helper()
	if !x.Back.Probe() || x.Back.Probe() {
		t.Fatal("a new backchannel is not to be tried out, or twice")
	}
	a, ok := x.Back.Begin("probe")
	if !ok {
		t.Fatal("no slot")
	}
	x.Back.End(&a, Executed)
}

func (d *delegs) open(c *Client, now time.Time, f lock.File, access uint32) (Stateid, nfs.Status) {
	got, st := c.Open(now, &Open{Owner: []byte("p"), File: f, Access: access})
	return got.ID, st
}

// give has a client open a file and get a delegation.
func (d *delegs) give(c *Client, now time.Time, f lock.File, write bool) Stateid {
	d.t.Helper()
	access := uint32(Read)
	if write {
		access = Both
	}
	if _, st := d.open(c, now, f, access); st != nfs.OK {
		d.t.Fatal(st)
	}
	got, why := c.Delegate(now, &Delegate{File: f, Write: write})
	if why != Given || got.Write != write {
		d.t.Fatalf("no delegation: %d", why)
	}
	return got.ID
}

// recalls takes the recalls so far, and says that their clients have heard.
func (d *delegs) recalls(told bool) (list []Recall) {
	d.mu.Lock()
	list, d.sent = d.sent, nil
	d.mu.Unlock()
	for i := range list {
		d.Recalled(&list[i], told)
	}
	return list
}

// TestNoNeedlessRecall: an owner that has denied writing before others were given a delegation for
// reading opens the file for reading again, which stands against nothing.
func TestNoNeedlessRecall(t *testing.T) {
	d := delegServer(t, Config{})
	a, _, _ := d.callable(begin, "a")
	b, _, _ := d.callable(begin, "b")
	if _, st := b.Open(begin, &Open{Owner: []byte("q"), File: fileA, Access: Read, Deny: Write}); st != nfs.OK {
		t.Fatal(st)
	}
	d.give(a, begin, fileA, false)
	if _, st := b.Open(begin, &Open{Owner: []byte("q"), File: fileA, Access: Read}); st != nfs.OK ||
		len(d.recalls(true)) != 0 {
		t.Errorf("OPEN for reading: %v", st)
	}
	if _, st := b.Open(begin, &Open{Owner: []byte("q"), File: fileA, Access: Read, Deny: Write}); st != nfs.ErrJukebox ||
		len(d.recalls(true)) != 1 {
		t.Errorf("OPEN that denies: %v", st)
	}
}

// TestDelegateOrNot: what stands against a delegation.
func TestDelegateOrNot(t *testing.T) {
	for _, c := range []struct {
		name  string
		ready func(d *delegs, a, b *Client, x *Session, p *path)
		read  WhyNot
		write WhyNot
	}{
		{"nothing", func(*delegs, *Client, *Client, *Session, *path) {}, Given, Given},
		{
			"own open for writing", func(d *delegs, a, _ *Client, _ *Session, _ *path) { d.open(a, begin, fileA, Write) }, Given,
			Given,
		},
		{
			"open for reading", func(d *delegs, _, b *Client, _ *Session, _ *path) { d.open(b, begin, fileA, Read) }, Given,
			WhyContention,
		},
		{
			"open for writing", func(d *delegs, _, b *Client, _ *Session, _ *path) { d.open(b, begin, fileA, Write) },
			WhyContention, WhyContention,
		},
		{"another file", func(d *delegs, _, b *Client, _ *Session, _ *path) { d.open(b, begin, fileB, Both) }, Given, Given},
		{
			"read delegation", func(d *delegs, _, b *Client, _ *Session, _ *path) { d.give(b, begin, fileA, false) }, Given,
			WhyContention,
		},
		{
			"own delegation", func(d *delegs, a, _ *Client, _ *Session, _ *path) { d.give(a, begin, fileA, false) }, WhyResource,
			WhyUpgrade,
		},
		{
			"own delegation for writing", func(d *delegs, a, _ *Client, _ *Session, _ *path) { d.give(a, begin, fileA, true) },
			WhyDowngrade, WhyResource,
		},
		{
			"a change going on", func(d *delegs, _, _ *Client, _ *Session, _ *path) { d.BeginChange(begin, fileA, nil) },
			WhyContention,
			WhyContention,
		},
		{"a change that is over", func(d *delegs, _, _ *Client, _ *Session, _ *path) {
			d.BeginChange(begin, fileA, nil)
			d.EndChange(fileA)
		}, Given, Given},
		{
			"connection gone", func(_ *delegs, _, _ *Client, _ *Session, p *path) { p.gone.Store(true) }, WhyResource,
			WhyResource,
		},
		{"not tried out", func(d *delegs, _, _ *Client, x *Session, p *path) {
			x.Back.Unbind(p)
			d.Bind(x, new(path))
		}, WhyResource, WhyResource},
		{"a foreign lock", func(d *delegs, _, _ *Client, _ *Session, _ *path) {
			d.cfg.Locks.Lock(fileA, lock.Lock{Owner: lock.Owner{Client: "nlm", ID: "x"}, End: 9, Exclusive: true})
		}, WhyContention, WhyContention},
		{"a foreign shared lock", func(d *delegs, _, _ *Client, _ *Session, _ *path) {
			d.cfg.Locks.Lock(fileA, lock.Lock{Owner: lock.Owner{Client: "nlm", ID: "x"}, End: 9})
		}, Given, WhyContention},
		{
			"session ended", func(d *delegs, _, _ *Client, x *Session, _ *path) { d.DestroySession(x.ID, &By{Principal: root}) },
			WhyResource, WhyResource,
		},
	} {
		for _, write := range []bool{false, true} {
			d := delegServer(t, Config{})
			a, x, p := d.callable(begin, "a")
			b, _, _ := d.callable(begin, "b")
			c.ready(d, a, b, x, p)
			want := c.read
			if write {
				want = c.write
			}
			if _, why := a.Delegate(begin, &Delegate{File: fileA, Write: write}); why != want {
				t.Errorf("%s, write %v: %d instead of %d", c.name, write, why, want)
			}
		}
	}
}

// TestConflicts: what others may do while a file is delegated, and that they may once
// it was returned.
func TestConflicts(t *testing.T) {
	now := begin
	for _, c := range []struct {
		name string
		do   func(d *delegs, b *Client) nfs.Status
		read bool // goes on beside a read delegation
	}{
		{"open for reading", func(d *delegs, b *Client) nfs.Status { _, st := d.open(b, now, fileA, Read); return st }, true},
		{
			"open for writing", func(d *delegs, b *Client) nfs.Status { _, st := d.open(b, now, fileA, Write); return st },
			false,
		},
		{"open that denies", func(_ *delegs, b *Client) nfs.Status {
			_, st := b.Open(now, &Open{Owner: []byte("p"), File: fileA, Access: Read, Deny: Write})
			return st
		}, false},
		{"read", func(d *delegs, b *Client) nfs.Status { return free(d.Free(now, fileA, b, false)) }, true},
		{"change", func(d *delegs, b *Client) nfs.Status { return free(d.Free(now, fileA, b, true)) }, false},
		{"read of nobody", func(d *delegs, _ *Client) nfs.Status { return free(d.Free(now, fileA, nil, false)) }, true},
		{"change of nobody", func(d *delegs, _ *Client) nfs.Status {
			held, ok := d.BeginChange(now, fileA, nil)
			if held {
				d.EndChange(fileA)
			}
			return free(ok)
		}, false},
	} {
		for _, write := range []bool{false, true} {
			d := delegServer(t, Config{})
			a, _, _ := d.callable(now, "a")
			b, _, _ := d.callable(now, "b")
			id := d.give(a, now, fileA, write)
			// Whose it is does not stand in his own way.
			if _, st := d.open(a, now, fileA, Read); st != nfs.OK {
				t.Error(st)
			}
			if held, ok := d.BeginChange(now, fileA, a); !held || !ok {
				t.Errorf("%s: the owner of the delegation has to wait for himself", c.name)
			}
			d.EndChange(fileA)
			if st := a.Close(mustOpen(t, a, now), fileA); st != nfs.OK { // a delegation outlives the open
				t.Fatal(st)
			}
			want := nfs.ErrJukebox
			if c.read && !write {
				want = nfs.OK
			}
			for range 3 {
				if st := c.do(d, b); st != want {
					t.Errorf("%s, write %v: %v instead of %v", c.name, write, st, want)
				}
			}
			sent := d.recalls(true)
			if want == nfs.OK {
				if len(sent) != 0 {
					t.Errorf("%s, write %v: recalled all the same", c.name, write)
				}
				continue
			}
			if len(sent) != 1 || sent[0].ID != id || sent[0].Client != a || sent[0].File != fileA {
				t.Fatalf("%s, write %v: recalls %+v", c.name, write, sent)
			}
			if st := a.IO(now, id, fileA, false); st != nfs.OK {
				t.Errorf("read by a recalled delegation: %v", st)
			}
			if st := b.ReturnDelegation(id, fileA); st != nfs.ErrBadStateID {
				t.Errorf("returned by another client: %v", st)
			}
			if st := a.ReturnDelegation(id, fileB); st != nfs.ErrBadStateID {
				t.Errorf("returned for another file: %v", st)
			}
			if st := a.ReturnDelegation(id, fileA); st != nfs.OK {
				t.Error(st)
			}
			if st := a.ReturnDelegation(id, fileA); st != nfs.ErrBadStateID {
				t.Errorf("returned twice: %v", st)
			}
			if st := c.do(d, b); st != nfs.OK {
				t.Errorf("%s, write %v, then %v", c.name, write, st)
			}
			// The file is left alone for a while.
			e := testFile(9)
			for _, f := range []lock.File{fileA, e} {
				_, why := a.Delegate(now.Add(recentTime-1), &Delegate{File: f})
				if f == fileA && why != WhyContention || f == e && why != Given {
					t.Errorf("%s: %d", c.name, why)
				}
			}
			if n := d.Delegations(); n.Now != 1 || n.Recalls != 1 || n.Revoked != 0 {
				t.Errorf("%+v", n)
			}
		}
	}
}

func mustOpen(t *testing.T, c *Client, now time.Time) Stateid {
	t.Helper()
	got, st := c.Open(now, &Open{Owner: []byte("p"), File: fileA, Access: Read})
	if st != nfs.OK {
		t.Fatal(st)
	}
	return got.ID
}

func free(ok bool) nfs.Status {
	if ok {
		return nfs.OK
	}
	return nfs.ErrJukebox
}

// TestRecallAgain: a client that has not heard is called again, once a second, as long
// as somebody wants the file.
func TestRecallAgain(t *testing.T) {
	d := delegServer(t, Config{})
	a, _, _ := d.callable(begin, "a")
	d.give(a, begin, fileA, true)
	for _, c := range []struct {
		at   time.Duration
		want int
		told bool
	}{
		{0, 1, false},
		{900 * time.Millisecond, 0, false},
		{1100 * time.Millisecond, 1, false},
		{2200 * time.Millisecond, 1, true},
		{9 * time.Second, 0, true},
	} {
		if d.Free(begin.Add(c.at), fileA, nil, true) {
			t.Fatal("the delegation does not count")
		}
		if got := d.recalls(c.told); len(got) != c.want {
			t.Errorf("after %v: %d calls instead of %d", c.at, len(got), c.want)
		}
	}
}

// TestStoreWantsLease: a client that goes on writing keeps a delegation for two leases from when the
// store wanted its lease of the file back, whoever has had it recalled before.
func TestStoreWantsLease(t *testing.T) {
	const lease = 90 * time.Second
	for _, before := range []time.Duration{0, 60 * time.Second} {
		d := delegServer(t, Config{})
		a, _, _ := d.callable(begin, "a")
		id := d.give(a, begin, fileA, true)
		d.Free(begin, fileA, nil, true) // another client
		wanted := begin.Add(before)
		for at := begin; ; at = at.Add(time.Second) {
			a.renew(at)
			st := a.IO(at, id, fileA, true)
			if at.Before(wanted) {
				continue
			}
			if free := d.FreeLease(at, fileA); free != at.After(wanted.Add(2*lease)) {
				t.Fatalf("%v after the store wanted its lease: free %v, the last WRITE %v", at.Sub(wanted), free, st)
			} else if free {
				break
			}
		}
	}
}
