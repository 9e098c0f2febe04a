package nfs4

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
)

// solid is a store whose files have no holes.
type solid struct{ *memfs.FS }

func (solid) Deallocate(*blockstore.Cred, blockstore.Handle, uint64, uint64) error {
	return blockstore.ErrNotSupp
}

// TestCopyKeepsHoles: a copy between two stores has the data of the source where it was asked for,
// holes where the source has some and the target's store can make them, and what was in the target
// elsewhere.
func TestCopyKeepsHoles(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const unit = 64 << 10 // a multiple of what a store has as one
	mode := uint32(0o600)
	// file makes a file of units that are data or holes.
	file := func(fs blockstore.FS, units int, fill byte) (blockstore.Handle, []byte) {
		root, err := fs.Root()
		if err != nil {
			t.Fatal(err)
		}
		size := uint64(units) * unit
		h, _, _, err := fs.Create(nil, root, "file", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fs.SetAttr(nil, h, &blockstore.SetAttr{Size: &size}, nil); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, size)
		for i := range units {
			if r.IntN(2) == 0 {
				continue
			}
			p := bytes.Repeat([]byte{fill + byte(i)}, unit)
			copy(want[i*unit:], p)
			if _, _, _, err := fs.WriteAt(nil, h, p, uint64(i)*unit, blockstore.Unstable); err != nil {
				t.Fatal(err)
			}
		}
		return h, want
	}
	for i := range 60 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			a, b := memfs.New(memfs.Options{}), memfs.New(memfs.Options{})
			var to blockstore.FS = b
			holes := r.IntN(4) > 0
			if !holes {
				to = solid{b}
			}
			ah, source := file(a, 1+r.IntN(30), 1)
			bh, want := file(b, r.IntN(30), 101)
			c := &copying{pieces: true}
			c.from = object{x: &nfs.Export{FS: a}, h: ah}
			c.to = object{x: &nfs.Export{FS: to}, h: bh}
			units := len(source) / unit
			first := r.IntN(units)
			n := 1 + r.IntN(units-first)
			at := r.IntN(30)
			c.sourceOff, c.dstOff, c.count = uint64(first)*unit, uint64(at)*unit, uint64(n)*unit
			if grow := (at + n) * unit; grow > len(want) {
				want = append(want, make([]byte, grow-len(want))...)
			}
			part := source[first*unit:][:n*unit]
			copy(want[at*unit:], part)
			var buf []byte
			for c.done < c.count {
				if k, err := c.step(&buf); err != nil || k == 0 {
					t.Fatalf("%d of %d: %d, %v", c.done, c.count, k, err)
				}
			}
			got := make([]byte, len(want)+1)
			k, _, err := b.ReadAt(nil, bh, got, 0, false)
			if err != nil || !bytes.Equal(got[:k], want) {
				t.Fatalf("%d bytes, want %d, %v", k, len(want), err)
			}
			for i := 0; holes && i < n; i++ {
				if source[(first+i)*unit] != 0 {
					continue
				}
				off := uint64(at+i) * unit
				if next, err := b.Seek(nil, bh, off, true); err != nil || next != off {
					t.Errorf("unit %d is a hole in the source and data in the target: %d, %v", i, next, err)
				}
			}
		})
	}
}
