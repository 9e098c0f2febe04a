package lock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/rstored/rstored/blockstore"
)

var theFile = File{Export: 1, Handle: blockstore.Handle{Len: 1, B: [blockstore.HandleMax]byte{7}}}

func owner(i int) Owner { return Owner{Client: fmt.Sprint("client", i%2), ID: fmt.Sprint(i)} }

// TestAgainstBytes runs random programs against a model that has one entry for each
// byte and owner.
func TestAgainstBytes(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("RSTORED_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("RSTORED_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const size, owners = 24, 4
	for round := range 200 {
		tab := New(0)
		var model [owners][size]byte // 0, 'r' or 'w'
		free := func(o int, from, to uint64, ex bool) bool {
			for other := range owners {
				for b := from; b <= to; b++ {
					if m := model[other][b]; other != o && (m == 'w' || m == 'r' && ex) {
						return false
					}
				}
			}
			return true
		}
		type pending struct {
			w *Waiter
			o int
		}
		var queue []pending
		granted := map[*Waiter]bool{}
		set := func(o int, from, to uint64, v byte) {
			for b := from; b <= to; b++ {
				model[o][b] = v
			}
		}
		kind := func(ex bool) byte {
			if ex {
				return 'w'
			}
			return 'r'
		}
		settle := func() {
			for i := 0; i < len(queue); { // again from the start after each
				p := queue[i]
				if l := p.w.Lock; free(p.o, l.Start, l.End, l.Exclusive) {
					set(p.o, l.Start, l.End, kind(l.Exclusive))
					if !granted[p.w] {
						t.Fatalf("round %d: %+v is free and was not granted", round, l)
					}
					queue = append(queue[:i], queue[i+1:]...)
					i = 0
				} else {
					i++
				}
			}
			for _, p := range queue {
				if granted[p.w] {
					t.Fatalf("round %d: %+v is not free and was granted", round, p.w.Lock)
				}
			}
		}
		for step := range 300 {
			if rnd.IntN(100) == 0 {
				tab = handedOver(t, tab, nil, func(w *Waiter) {
					i := slices.IndexFunc(queue, func(p pending) bool { return p.w.Lock == w.Lock })
					if i < 0 || string(w.Note) != fmt.Sprint(queue[i].o) {
						t.Fatalf("round %d, step %d: %+v waits with %q", round, step, w.Lock, w.Note)
					}
					w.Granted = func() { granted[w] = true }
					queue[i].w = w
				})
			}
			o := rnd.IntN(owners)
			from := uint64(rnd.IntN(size))
			to := from + uint64(rnd.IntN(size-int(from)))
			l := Lock{Owner: owner(o), Start: from, End: to, Exclusive: rnd.IntN(2) == 0}
			where := fmt.Sprintf("round %d, step %d, %+v", round, step, l)
			waits := false
			for _, p := range queue {
				waits = waits || p.o == o
			}
			switch rnd.IntN(8) {
			case 0, 1, 2:
				_, ok, err := tab.Lock(theFile, l)
				if want := free(o, from, to, l.Exclusive); err != nil || ok != want {
					t.Fatalf("%s: lock: %v %v, want %v", where, ok, err, want)
				}
				if ok {
					set(o, from, to, kind(l.Exclusive))
				}
			case 3:
				if waits {
					continue // a process waits for one lock at a time
				}
				w := &Waiter{Lock: l, Note: []byte(fmt.Sprint(o))}
				w.Granted = func() { granted[w] = true }
				taken, err := tab.Wait(theFile, w)
				if want := free(o, from, to, l.Exclusive); taken != want {
					t.Fatalf("%s: wait: %v, want %v", where, taken, want)
				}
				switch {
				case errors.Is(err, ErrDeadlock):
				case err != nil:
					t.Fatal(err)
				case taken:
					set(o, from, to, kind(l.Exclusive))
				default:
					queue = append(queue, pending{w, o})
				}
			case 4:
				if len(queue) > 0 {
					p := queue[0]
					if !tab.Cancel(theFile, p.w.Lock) {
						t.Fatalf("%s: cancel found nothing", where)
					}
					queue = queue[1:]
				}
			case 5:
				holder, ok := tab.Test(theFile, l)
				if want := free(o, from, to, l.Exclusive); ok != want {
					t.Fatalf("%s: test: %v, want %v", where, ok, want)
				}
				if !ok && (holder.Owner == l.Owner || holder.Start > to || holder.End < from) {
					t.Fatalf("%s: test: in the way is %+v", where, holder)
				}
			default:
				set(o, from, to, 0)
				tab.Unlock(theFile, owner(o), from, to)
			}
			settle()
		}
		for i := range 2 {
			tab.Drop(fmt.Sprint("client", i))
			if tab.Holds(fmt.Sprint("client", i)) {
				t.Fatal("something is left of a client that is gone")
			}
		}
		left := len(tab.waiting) + int(tab.count.Load())
		for i := range shards {
			left += len(tab.shards[i].files) + len(tab.clients[i].count)
		}
		if left != 0 {
			t.Fatalf("round %d: something is left: %+v", round, tab)
		}
	}
}

func TestDeadlock(t *testing.T) {
	tab := New(0)
	var files [3]File
	for i := range files {
		files[i] = File{Export: uint32(i)}
		if _, ok, err := tab.Lock(files[i], Lock{Owner: owner(i), End: ToEnd, Exclusive: true}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	wait := func(i, f int) error {
		_, err := tab.Wait(files[f], &Waiter{Lock: Lock{Owner: owner(i), End: ToEnd}, Granted: func() {}})
		return err
	}
	if err := errors.Join(wait(0, 1), wait(1, 2)); err != nil {
		t.Fatal(err)
	}
	if err := wait(2, 0); !errors.Is(err, ErrDeadlock) {
		t.Errorf("a circle of three: %v", err)
	}
	if err := wait(3, 0); err != nil {
		t.Errorf("a fourth who holds nothing: %v", err)
	}
}

func TestBounds(t *testing.T) {
	tab := New(16)
	n := 0
	for i := range uint64(20) {
		if _, ok, err := tab.Lock(theFile, Lock{Owner: owner(0), Start: 10 * i, End: 10*i + 1}); ok && err == nil {
			n++
		} else if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	if n != 7 {
		t.Errorf("a client has %d of 16", n)
	}
	if _, ok, err := tab.Lock(theFile, Lock{Owner: owner(1), Start: 0, End: 1}); !ok || err != nil {
		t.Errorf("another client: %v", err)
	}
	tab.DropExport(1)
	if h, w := tab.Count(); h+w != 0 || tab.count.Load() != 0 {
		t.Errorf("%d locks of an export that is gone", h+w)
	}
	if _, ok, _ := tab.Lock(theFile, Lock{Owner: owner(0), Start: 5, End: ToEnd, Exclusive: true}); !ok {
		t.Error("no room although all is free")
	}
	tab.Unlock(theFile, owner(0), 7, 8)
	if h, _ := tab.Count(); h != 2 {
		t.Errorf("a lock that was split is %d locks", h)
	}
}

// TestCircles has pairs of owners lock two files each in opposite order at once: of each pair one
// is told that they would wait for each other, however the files are spread.
func TestCircles(t *testing.T) {
	tab := New(0)
	var all sync.WaitGroup
	for p := range 50 {
		files := [2]File{{Export: uint32(2 * p)}, {Export: uint32(2*p + 1)}}
		for side := range 2 {
			all.Go(func() {
				me := Owner{Client: fmt.Sprint("client", p, side), ID: "x"}
				l := Lock{Owner: me, End: ToEnd, Exclusive: true}
				for range 100 {
					for n, f := range []File{files[side], files[1-side]} {
						granted := make(chan struct{})
						taken, err := tab.Wait(f, &Waiter{Lock: l, Granted: func() { close(granted) }})
						if n == 0 && err != nil || err != nil && !errors.Is(err, ErrDeadlock) {
							t.Error(err)
						}
						if err == nil && !taken {
							<-granted
						}
					}
					for _, f := range files {
						tab.Unlock(f, me, 0, ToEnd)
					}
				}
			})
		}
	}
	all.Wait()
	if held, waiting := tab.Count(); held+waiting != 0 {
		t.Errorf("%d held and %d waiting are left", held, waiting)
	}
}
