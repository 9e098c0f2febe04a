package fault_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/fault"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/blockstore/storetest"
)

// TestTransparent: with rules that never apply, or only delay, it is the store.
func TestTransparent(t *testing.T) {
	storetest.Run(t, func(t *testing.T) blockstore.FS {
		return fault.New(memfs.New(memfs.Options{RootMode: 0o777}), 1,
			fault.Rule{Ops: fault.Any, P: 0, Err: blockstore.ErrIO},
			fault.Rule{Ops: fault.Any, P: 0.01, Delay: 100 * time.Microsecond})
	}, storetest.Options{User: &blockstore.Cred{UID: 1, GID: 1}, AnyUser: true, Root: true, BigDir: 500})
}

func TestFaults(t *testing.T) {
	f := fault.New(memfs.New(memfs.Options{}), 7)
	root, _ := f.Root()
	f.Set(fault.Rule{Ops: fault.Create, P: 1, Err: blockstore.ErrIO, After: true})
	if _, _, _, err := f.Create(nil, root, "f", blockstore.Guarded, nil, [8]byte{}); !errors.Is(err, blockstore.ErrIO) {
		t.Fatal(err)
	}
	f.Set(fault.Rule{Ops: fault.WriteAt | fault.ReadAt, P: 1, Short: true},
		fault.Rule{Ops: fault.Commit, P: 1, Err: blockstore.ErrNoSpace})
	h, _, err := f.Lookup(nil, root, "f")
	if err != nil {
		t.Fatalf("the create before its error did not happen: %v", err)
	}
	data := bytes.Repeat([]byte("data"), 1000)
	short := 0
	for off := 0; off < len(data); {
		n, _, _, err := f.WriteAt(nil, h, data[off:], uint64(off), blockstore.Unstable)
		if err != nil || n < 1 {
			t.Fatal(n, err)
		}
		if n < len(data)-off {
			short++
		}
		off += n
	}
	var got []byte
	for eof := false; !eof; {
		p := make([]byte, 1000)
		n, end, err := f.ReadAt(nil, h, p, uint64(len(got)), false)
		if err != nil {
			t.Fatal(err)
		}
		got, eof = append(got, p[:n]...), end
	}
	if !bytes.Equal(got, data) || short == 0 {
		t.Fatalf("%d bytes back, %d short writes", len(got), short)
	}
	if _, err := f.Commit(nil, h, 0, 0); !errors.Is(err, blockstore.ErrNoSpace) {
		t.Fatal(err)
	}
	if f.Faults() == 0 {
		t.Fatal("nothing counted")
	}
}
