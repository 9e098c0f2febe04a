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
		File  File
		Locks []Lock
		News  string
	}
	b := encoded(t, struct {
		Files []someFile
		More  []uint64
	}{[]someFile{{File: theFile, Locks: []Lock{{Owner: owner(1), End: 5, Exclusive: true}}, News: "x"}}, []uint64{1}})
	tab := New(0)
	if err := tab.Restore(b, nil); err != nil {
		t.Fatal(err)
	}
	if holder, free := tab.Test(theFile, Lock{Owner: owner(2), Start: 5, End: 5}); free || holder.Owner != owner(1) {
		t.Fatalf("%+v %v", holder, free)
	}
}

// wide is a handle as gob writes it, of any length.
type wide []byte

func (w wide) MarshalBinary() ([]byte, error) { return w, nil }

func TestDamagedSnapshots(t *testing.T) {
	shared, excl := Lock{Owner: owner(1), End: 5}, Lock{Owner: owner(2), Start: 3, End: 9, Exclusive: true}
	for name, x := range map[string][]snapFile{
		"no handle":       {{Locks: []Lock{shared}}},
		"no locks":        {{File: theFile}},
		"a file twice":    {{File: theFile, Locks: []Lock{shared}}, {File: theFile, Locks: []Lock{shared}}},
		"conflict":        {{File: theFile, Locks: []Lock{shared, excl}}},
		"no order":        {{File: theFile, Locks: []Lock{excl, shared}}},
		"backwards":       {{File: theFile, Locks: []Lock{{Owner: owner(1), Start: 2, End: 1}}}},
		"waits backwards": {{File: theFile, Queue: []*Waiter{{Lock: Lock{Start: 2, End: 1}}}}},
	} {
		err := New(0).Restore(encoded(t, snapshot{Files: x}), func(File, *Waiter) error { return nil })
		if !errors.Is(err, errSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	type wideFile struct {
		File  struct{ Handle wide }
		Locks []Lock
	}
	x := wideFile{Locks: []Lock{shared}}
	x.File.Handle = make(wide, blockstore.HandleMax)
	if err := New(0).Restore(encoded(t, struct{ Files []wideFile }{[]wideFile{x}}), nil); err != nil {
		t.Errorf("the longest handle: %v", err)
	}
	x.File.Handle = make(wide, blockstore.HandleMax+1)
	if err := New(0).Restore(encoded(t, struct{ Files []wideFile }{[]wideFile{x}}), nil); !errors.Is(err, errSnapshot) {
		t.Errorf("a longer handle: %v", err)
	}
	if err := New(0).Restore(nil, nil); !errors.Is(err, errSnapshot) {
		t.Error(err)
	}
	bad := errors.New("no")
	one := encoded(t, snapshot{Files: []snapFile{{File: theFile, Queue: []*Waiter{{Lock: shared}}}}})
	if err := New(0).Restore(one, func(File, *Waiter) error { return bad }); !errors.Is(err, bad) {
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
