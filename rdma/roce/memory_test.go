package roce

import (
	"math/rand/v2"
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
	for range 3000 { // past the rest of slots
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
		tab.Local(1, r.LKey(), r.buf[100:], true)
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

// TestCQKeepsWhatDoesNotFit fills a small queue from a queue pair with more
// completions than it holds.
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
