package wq

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestRing compares a ring with a slice, over many growths and wraps.
func TestRing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var r Ring[int]
	var model []int
	for n := range 20000 {
		switch k := rnd.IntN(100); {
		case k < 52:
			*r.Push() = n
			model = append(model, n)
		case k < 98 && len(model) > 0:
			if *r.Front() != model[0] {
				t.Fatalf("front %d, want %d", *r.Front(), model[0])
			}
			r.Pop()
			model = model[1:]
		default:
			dst := make([]int, rnd.IntN(5))
			k := r.Drain(dst)
			if want := min(len(dst), len(model)); k != want || !slices.Equal(dst[:k], model[:k]) {
				t.Fatalf("drained %v, want the first %d of %v", dst[:k], want, model)
			}
			model = model[k:]
		}
		if r.Len() != len(model) {
			t.Fatalf("%d elements, want %d", r.Len(), len(model))
		}
		if len(model) > 0 {
			if i := rnd.IntN(len(model)); *r.At(i) != model[i] {
				t.Fatalf("element %d is %d, want %d", i, *r.At(i), model[i])
			}
		}
	}
}

// TestScatter: bytes go to the elements of the list, and none beyond it.
func TestScatter(t *testing.T) {
	for _, c := range []struct {
		off  uint32
		data string
		want string
	}{
		{0, "", "........"},
		{0, "ab", "ab......"},
		{1, "abcd", ".abcd..."},
		{3, "ab", "...ab..."},
		{2, "abcdefghij", "..abcdef"},
		{8, "ab", "........"},
		{99, "ab", "........"},
	} {
		mem := []byte("........")
		sgl := []rdma.SGE{{Buf: mem[:3]}, {}, {Buf: mem[3:4]}, {Buf: mem[4:]}}
		if Scatter(sgl, c.off, []byte(c.data)); string(mem) != c.want {
			t.Errorf("%q at %d: %q, want %q", c.data, c.off, mem, c.want)
		}
		if Length(sgl) != 8 {
			t.Errorf("%d bytes", Length(sgl))
		}
	}
}

// TestQueue: a list that does not fit is not queued at all. A receive keeps its list when it is
// taken.
func TestQueue(t *testing.T) {
	q := Queue{Most: 3, SGEs: 1}
	one := func(id uint64) rdma.RecvWR { return rdma.RecvWR{ID: id, SGL: []rdma.SGE{{Buf: make([]byte, id)}}} }
	if err := q.Post([]rdma.RecvWR{one(1), {SGL: make([]rdma.SGE, 2)}}, 0); !errors.Is(err, rdma.ErrInvalidWR) ||
		q.Len() != 0 {
		t.Errorf("%v, %d are queued", err, q.Len())
	}
	if err := q.Post([]rdma.RecvWR{one(1), one(2), one(3)}, 1); !errors.Is(err, rdma.ErrQueueFull) || q.Len() != 0 {
		t.Errorf("%v, %d are queued", err, q.Len())
	}
	if err := q.Post([]rdma.RecvWR{one(1), one(2)}, 1); err != nil {
		t.Fatal(err)
	}
	var e Recv
	for id := uint64(1); id <= 2; id++ {
		if q.Take(&e); e.ID != id || e.Length != uint32(id) || len(e.SGL) != 1 || len(e.SGL[0].Buf) != int(id) {
			t.Errorf("took %+v", e)
		}
	}
}

// TestSRQ: the limit is reported once for each Arm.
func TestSRQ(t *testing.T) {
	s := NewSRQ(4, 99, 2)
	if err := s.PostRecv([]rdma.RecvWR{{SGL: make([]rdma.SGE, 3)}}); !errors.Is(err, rdma.ErrInvalidWR) {
		t.Errorf("three elements, of two at most: %v", err)
	}
	if err := s.PostRecv([]rdma.RecvWR{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}); err != nil {
		t.Fatal(err)
	}
	s.Arm(3)
	var e Recv
	for i, low := range []bool{false, true, false} {
		if s.Front().ID != uint64(i+1) {
			t.Errorf("front %d", s.Front().ID)
		}
		if s.Take(&e); e.ID != uint64(i+1) || s.Low() != low {
			t.Errorf("receive %d: low is not %v", e.ID, low)
		}
	}
	if s.Drain(); s.Len() != 0 || s.Low() {
		t.Error("not empty")
	}
}
