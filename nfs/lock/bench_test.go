package lock

import (
	"fmt"
	"testing"
)

// BenchmarkManyOwners is a lock and its end among those of 1000 other owners of a file.
func BenchmarkManyOwners(b *testing.B) {
	t := New(0)
	f := File{Export: 1}
	at := func(i int) Lock {
		return Lock{
			Owner: Owner{Client: fmt.Sprintf("nfs4 %016x", i%4), ID: fmt.Sprintf("lock id: %16d", i)},
			Start: uint64(2 * i), End: uint64(2 * i), Exclusive: true,
		}
	}
	for i := range 1000 {
		if _, ok, err := t.Lock(f, at(i)); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
	l := at(5000)
	for b.Loop() {
		_, _, _ = t.Lock(f, l)
		t.Unlock(f, l.Owner, 0, ToEnd)
	}
}
