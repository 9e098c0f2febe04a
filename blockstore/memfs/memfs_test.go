package memfs_test

import (
	"errors"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/blockstore/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) blockstore.FS {
		return memfs.New(memfs.Options{RootMode: 0o777})
	}, storetest.Options{User: &blockstore.Cred{UID: 1000, GID: 1000, Groups: []uint32{2000}}, AnyUser: true, Root: true})
}

func TestNoSpace(t *testing.T) {
	f := memfs.New(memfs.Options{MaxBytes: 1 << 20})
	r, _ := f.Root()
	h, _, _, err := f.Create(nil, r, "f", blockstore.Guarded, nil, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1<<16)
	var off uint64
	for range 100 {
		n, _, _, err := f.WriteAt(nil, h, p, off, blockstore.Unstable)
		off += uint64(n)
		if err != nil {
			if !errors.Is(err, blockstore.ErrNoSpace) {
				t.Fatal(err)
			}
			break
		}
	}
	if off == 0 || off > 1<<20 {
		t.Fatalf("wrote %d bytes into %d", off, 1<<20)
	}
	if _, err := f.Remove(nil, r, "f"); err != nil {
		t.Fatal(err)
	}
	s, err := f.Stat(nil, r)
	if err != nil || s.FreeBytes < 1<<20-4096 {
		t.Fatalf("after the removal %d bytes are free: %v", s.FreeBytes, err)
	}
}

func TestReadOnly(t *testing.T) {
	f := memfs.New(memfs.Options{ReadOnly: true})
	r, _ := f.Root()
	if _, _, _, err := f.Mkdir(nil, r, "d", nil); !errors.Is(err, blockstore.ErrROFS) {
		t.Fatal(err)
	}
	if got, _, err := f.Access(nil, r, 0x3f); err != nil || got != blockstore.AccessRead|blockstore.AccessLookup {
		t.Fatalf("access %#x, %v", got, err)
	}
}
