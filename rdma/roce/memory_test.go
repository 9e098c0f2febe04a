package roce

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rstored/rstored/rdma"
)

func newTable() *table {
	t := new(table)
	t.init(&source{f: rand.New(rand.NewPCG(1, 2)).Uint32})
	return t
}

func TestCipherIsAPermutation(t *testing.T) {
	c := newCipher(&source{f: rand.Uint32})
	for range 100000 {
		v := rand.Uint32()
		if got := c.decrypt(c.encrypt(v)); got != v {
			t.Fatalf("%#x became %#x", v, got)
		}
	}
}

func TestKeysEnd(t *testing.T) {
	tab := newTable()
	buf := make([]byte, 100)
	const all = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead
	seen := map[uint32]bool{}
	for range 3000 { // so often that slots are used again
		r, err := tab.register(1, buf, all)
		if err != nil {
			t.Fatal(err)
		}
		k := r.RKey()
		if seen[k] || k == r.LKey() || k == 0 {
			t.Fatalf("key %#x again", k)
		}
		seen[k] = true
		if _, s := tab.Remote(1, 1, k, r.Addr()+1, 99, all&^rdma.LocalWrite); s != rdma.Success {
			t.Fatal(s)
		}
		if s := tab.Local(1, r.LKey(), buf[5:], true); s != rdma.Success {
			t.Fatal(s)
		}
		if s := tab.Local(1, k, buf, false); s == rdma.Success {
			t.Fatal("an R_Key serves as L_Key")
		}
		if _, s := tab.Remote(1, 1, r.LKey(), r.Addr(), 1, rdma.RemoteRead); s == rdma.Success {
			t.Fatal("an L_Key serves as R_Key")
		}
		fresh := r.Invalidate()
		if _, s := tab.Remote(1, 1, k, r.Addr(), 1, rdma.RemoteRead); s == rdma.Success || fresh == k {
			t.Fatal("an invalidated key lives")
		}
		r.Close()
		r.Close()
		if _, s := tab.Remote(1, 1, fresh, r.Addr(), 1, rdma.RemoteRead); s == rdma.Success {
			t.Fatal("the key of a closed region lives")
		}
		if r.Invalidate() != 0 {
			t.Fatal("a closed region gives out keys")
		}
	}
	if tab.live != 0 {
		t.Errorf("%d regions left", tab.live)
	}
}

// TestKeyZero: no region has the key 0, and none gets it when its key ends. The cipher maps 0 to a
// slot like any other key, so the region of the test is in that slot.
func TestKeyZero(t *testing.T) {
	const all = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead
	for _, end := range []func(tab *table, r *region){
		func(*table, *region) {},
		func(tab *table, r *region) { tab.Invalidate(1, 1, r.RKey()) },
		func(_ *table, r *region) { r.Close() },
	} {
		tab := newTable()
		n := tab.codes.decrypt(0) & slotMask
		tab.used = n - 1 // the L_Key's slot is the one before
		r, err := tab.register(1, make([]byte, 100), all)
		if err != nil || r.rslot != n {
			t.Fatal(err, r)
		}
		end(tab, r)
		if _, s := tab.Remote(1, 1, 0, r.Addr(), 1, rdma.RemoteRead); s == rdma.Success {
			t.Error("the key 0 opens a region")
		}
		if s := tab.Invalidate(1, 1, 0); s == rdma.Success {
			t.Error("the key 0 was invalidated")
		}
	}
}

func TestRegisterRefuses(t *testing.T) {
	tab := newTable()
	if _, err := tab.register(1, nil, 0); err == nil {
		t.Error("a region of nothing")
	}
	if _, err := tab.register(1, make([]byte, 1), rdma.RemoteWrite); err == nil {
		t.Error("remote write without local write")
	}
}

func TestMemoryNoAllocs(t *testing.T) {
	tab := newTable()
	r, err := tab.register(1, make([]byte, 8192), rdma.LocalWrite|rdma.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, s := tab.Remote(1, 1, r.RKey(), r.Addr(), 4096, rdma.RemoteWrite); s != rdma.Success {
			t.Error(s)
		}
		tab.Local(1, r.LKey(), r.Bytes()[100:], true)
		r.Invalidate()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRemote(b *testing.B) {
	tab := newTable()
	r, err := tab.register(1, make([]byte, 8192), rdma.LocalWrite|rdma.RemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		tab.Remote(1, 1, r.RKey(), r.Addr(), 4096, rdma.RemoteWrite)
	}
}

// TestCQKeepsWhatDoesNotFit: a queue pair has more completions than its small completion queue
// holds. None is lost.
func TestCQKeepsWhatDoesNotFit(t *testing.T) {
	d, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l := d.Loops()[0]
	got := make(chan []uint64, 1)
	l.Submit(func() {
		p, _ := d.AllocPD()
		var ids []uint64
		var q rdma.CQ
		q, _ = d.CreateCQ(l, rdma.CQOptions{Depth: 3, OnEvent: func() {
			var wc [2]rdma.WC
			for n := q.Poll(wc[:]); n > 0; n = q.Poll(wc[:]) {
				for _, w := range wc[:n] {
					ids = append(ids, w.ID)
				}
			}
			got <- ids
		}})
		k, err := d.CreateQP(l, rdma.QPConfig{PD: p, SendCQ: q, RecvCQ: q, Caps: rdma.QPCaps{MaxRecvWR: 20}})
		if err != nil {
			t.Error(err)
			return
		}
		_ = k.Modify(rdma.QPAttr{State: rdma.StateInit})
		for i := range 20 {
			if err := k.PostRecv([]rdma.RecvWR{{ID: uint64(i)}}); err != nil {
				t.Error(err)
			}
		}
		_ = k.Modify(rdma.QPAttr{State: rdma.StateErr})
	})
	ids := <-got
	if len(ids) != 20 {
		t.Fatalf("%d of 20 completions", len(ids))
	}
	for i, id := range ids {
		if id != uint64(i) {
			t.Errorf("completion %d is of request %d", i, id)
		}
	}
}

// TestReregister gives a region new memory many times. Only the last key is valid, and it opens
// only the last memory.
func TestReregister(t *testing.T) {
	tab := newTable()
	const all = rdma.LocalWrite | rdma.RemoteWrite
	r, err := tab.register(1, make([]byte, 100), all)
	if err != nil {
		t.Fatal(err)
	}
	lkey := r.LKey()
	refused := func(what string, key uint32, addr uint64) {
		t.Helper()
		if _, s := tab.Remote(1, 1, key, addr, 1, rdma.RemoteWrite); s == rdma.Success {
			t.Fatal(what)
		}
	}
	seen := map[uint32]bool{}
	for i := range 3000 { // so often that slots are used again
		key, addr, buf := r.RKey(), r.Addr(), make([]byte, 10+i%5)
		if seen[key] {
			t.Fatalf("key %#x again", key)
		}
		seen[key] = true
		if i%3 == 0 {
			tab.Invalidate(1, 1, key) // as the peer does
		}
		if i%2 == 0 {
			if err := r.Reregister(nil, 0); err != nil {
				t.Fatal(err)
			}
			if r.RKey() != 0 || r.Bytes() != nil || r.Invalidate() != 0 {
				t.Fatal("a region without memory has a key, or memory")
			}
			refused("the key of a region without memory lives", key, addr)
			refused("0 is a key", 0, 0)
			if s := tab.Local(1, lkey, buf, false); s == rdma.Success {
				t.Fatal("memory of a region without memory")
			}
		}
		if err := r.Reregister(buf, all); err != nil {
			t.Fatal(err)
		}
		refused("the key of before lives", key, addr)
		refused("the key of before opens the memory of now", key, r.Addr())
		b, s := tab.Remote(1, 1, r.RKey(), r.Addr(), uint32(len(buf)), rdma.RemoteWrite)
		if s != rdma.Success || &b[0] != &buf[0] {
			t.Fatal(s)
		}
		if s := tab.Local(1, lkey, buf, true); s != rdma.Success {
			t.Fatal(s)
		}
		if _, s := tab.Remote(1, 1, r.RKey(), r.Addr(), uint32(len(buf))+1, rdma.RemoteWrite); s == rdma.Success {
			t.Fatal("more than the memory of now")
		}
	}
	last, addr := r.RKey(), r.Addr()
	for what, err := range map[string]error{
		"no right to write":      r.Reregister(make([]byte, 1), rdma.RemoteWrite),
		"for windows to rest on": r.Reregister(make([]byte, 1), rdma.WindowBind),
	} {
		if !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("the key of before an error lives", last, addr)
	r.Close()
	if err := r.Reregister(make([]byte, 1), 0); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if tab.live != 0 || len(tab.free) != int(tab.used) {
		t.Errorf("%d regions left, %d of %d slots free", tab.live, len(tab.free), tab.used)
	}
}

// TestReregisterWhileLookedAt: loops look up a region while other goroutines reregister it. A
// lookup finds all of one memory, or nothing. It never finds memory that the key does not open.
func TestReregisterWhileLookedAt(t *testing.T) {
	tab := newTable()
	const all = rdma.LocalWrite | rdma.RemoteWrite
	bufs := [2][]byte{make([]byte, 64), make([]byte, 8192)}
	r, err := tab.register(1, bufs[0], all)
	if err != nil {
		t.Fatal(err)
	}
	type told struct {
		key  uint32
		addr uint64
		of   int
	}
	var last atomic.Pointer[told]
	last.Store(&told{r.RKey(), r.Addr(), 0})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				k := last.Load()
				buf := bufs[k.of]
				b, s := tab.Remote(1, 1, k.key, k.addr, uint32(len(buf)), rdma.RemoteWrite)
				if s == rdma.Success && (&b[0] != &buf[0] || len(b) != len(buf)) {
					t.Error("a key opens memory that is not its own")
					return
				}
				if s := tab.Local(1, r.LKey(), bufs[1][1:], true); s != rdma.Success && s != rdma.LocProtErr {
					t.Error(s)
					return
				}
			}
		})
	}
	for i := range 20000 {
		of := i % 2
		if err := r.Reregister(bufs[of], all); err != nil {
			t.Error(err)
			break
		}
		last.Store(&told{r.RKey(), r.Addr(), of})
	}
	close(done)
	wg.Wait()
}
