package lock

import (
	"bytes"
	"encoding/gob"
	"errors"
	"testing"

	"github.com/rstored/rstored/blockstore"
)

// handedOver is another table that goes on from a snapshot of this one, which is as it was.
func handedOver(t *testing.T, tab *Table, hosts Hosts, granted func(*Waiter)) *Table {
	t.Helper()
	b, err := tab.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	next := New(0)
	if hosts != nil {
		next.UseHost(hosts)
	}
	if err := next.Restore(b, func(_ File, w *Waiter) error { granted(w); return nil }); err != nil {
		t.Fatal(err)
	}
	h1, w1 := tab.Count()
	h2, w2 := next.Count()
	if h1 != h2 || w1 != w2 || tab.count.Load() != next.count.Load() {
		t.Fatalf("%d held and %d waiting have become %d and %d", h1, w1, h2, w2)
	}
	return next
}

func encoded(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSnapshotOfAnother: fields that are not known are nothing, and those that are missing are
// zero.
func TestSnapshotOfAnother(t *testing.T) {
	type someFile struct {
		Handle []byte
		Held   []Lock
		News   string
	}
	b := encoded(t, struct {
		Files []someFile
		More  []uint64
	}{[]someFile{{Handle: []byte{1}, Held: []Lock{{Owner: owner(1), End: 5, Exclusive: true}}, News: "x"}}, []uint64{1}})
	tab := New(0)
	if err := tab.Restore(b, nil); err != nil {
		t.Fatal(err)
	}
	f := File{}
	f.Handle.Len, f.Handle.B[0] = 1, 1
	if holder, free := tab.Test(f, Lock{Owner: owner(2), Start: 5, End: 5}); free || holder.Owner != owner(1) {
		t.Fatalf("%+v %v", holder, free)
	}
}

func TestDamagedSnapshots(t *testing.T) {
	h := []byte{1}
	shared, excl := Lock{Owner: owner(1), End: 5}, Lock{Owner: owner(2), Start: 3, End: 9, Exclusive: true}
	for name, x := range map[string][]snapFile{
		"no handle":       {{Held: []Lock{shared}}},
		"long handle":     {{Handle: make([]byte, blockstore.HandleMax+1), Held: []Lock{shared}}},
		"nothing held":    {{Handle: h}},
		"a file twice":    {{Handle: h, Held: []Lock{shared}}, {Handle: h, Held: []Lock{shared}}},
		"conflict":        {{Handle: h, Held: []Lock{shared, excl}}},
		"no order":        {{Handle: h, Held: []Lock{excl, shared}}},
		"backwards":       {{Handle: h, Held: []Lock{{Owner: owner(1), Start: 2, End: 1}}}},
		"waits backwards": {{Handle: h, Queue: []snapWaiter{{Lock: Lock{Start: 2, End: 1}}}}},
	} {
		if err := New(0).Restore(encoded(t, snapshot{Files: x}), func(File, *Waiter) error { return nil }); !errors.Is(err, errSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := New(0).Restore(nil, nil); !errors.Is(err, errSnapshot) {
		t.Error(err)
	}
	bad := errors.New("no")
	one := snapFile{Handle: h, Queue: []snapWaiter{{Lock: shared}}}
	if err := New(0).Restore(encoded(t, snapshot{Files: []snapFile{one}}), func(File, *Waiter) error { return bad }); !errors.Is(err, bad) {
		t.Error(err)
	}
	tab := New(0)
	if _, _, err := tab.Lock(theFile, shared); err != nil {
		t.Fatal(err)
	}
	if err := tab.Restore(encoded(t, snapshot{}), nil); err == nil {
		t.Error("a table that was in use")
	}
}

// FuzzRestore: a snapshot is refused, or makes a table that can be used.
func FuzzRestore(f *testing.F) {
	tab := New(0)
	for i := range 4 {
		_, _, _ = tab.Lock(theFile, Lock{Owner: owner(i), Start: uint64(i * 10), End: uint64(i*10 + 4), Exclusive: i%2 == 0})
		_, _ = tab.Wait(theFile, &Waiter{Lock: Lock{Owner: owner(i + 4), End: ToEnd, Exclusive: true}, Note: []byte("x")})
	}
	b, err := tab.Snapshot()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(encoded(f, snapshot{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		tab := New(0)
		if tab.Restore(b, func(_ File, w *Waiter) error { w.Granted = func() {}; return nil }) != nil {
			return
		}
		for _, h := range tab.List(1 << 10) {
			tab.Unlock(h.File, h.Owner, 0, ToEnd)
			tab.Cancel(h.File, h.Lock)
		}
		for _, h := range tab.List(1 << 10) {
			tab.Drop(h.Owner.Client)
		}
	})
}
