package rdma

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

func TestArenaHandsOutDisjointBlocks(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const limit = 5<<20 + 12345
	a, err := NewArena(limit)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	type block struct {
		b   []byte
		tag byte
	}
	var live []block
	for i := range 20000 {
		if rnd.IntN(5) < 3 {
			n := 1 + rnd.IntN(1<<(1+rnd.IntN(21)))
			b := a.Alloc(n)
			if b == nil {
				continue
			}
			if len(b) != n || uintptr(unsafe.Pointer(&b[0]))%ArenaBlockMin != 0 {
				t.Fatalf("asked for %d bytes, got %d", n, len(b))
			}
			b[0], b[n-1] = byte(i), byte(i)
			live = append(live, block{b, byte(i)})
		} else if len(live) > 0 {
			k := rnd.IntN(len(live))
			l := live[k]
			if l.b[0] != l.tag || l.b[len(l.b)-1] != l.tag {
				t.Fatal("a block was handed out twice")
			}
			a.Free(l.b[:0])
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
		}
	}
	for _, l := range live {
		a.Free(l.b)
	}
	s := a.Stats()
	if s.InUse != 0 || s.Blocks != 0 || s.Failed == 0 || s.Peak > s.Limit {
		t.Errorf("all returned: %+v", s)
	}
	// All free blocks have merged again: the arena is one block of the largest size.
	if a.Alloc(4<<20) == nil {
		t.Error("4 MiB do not fit an empty arena of 5 MiB")
	}
}

func TestArenaBounds(t *testing.T) {
	a, err := NewArena(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, -1, 64<<10 + 1, ArenaBlockMax + 1} {
		if a.Alloc(n) != nil {
			t.Errorf("Alloc(%d) succeeded", n)
		}
	}
	b := a.Alloc(64 << 10)
	if b == nil || a.Alloc(1) != nil {
		t.Fatal("the arena does not hold just what it is made for")
	}
	a.Free(b)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a double Free went unnoticed")
			}
		}()
		a.Free(b)
	}()
	if n := testing.AllocsPerRun(100, func() { a.Free(a.Alloc(5000)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a.Alloc(1) != nil || a.Close() == nil {
		t.Error("a closed arena is still used")
	}
}
