package memfs

import (
	"testing"

	"github.com/rstored/rstored/blockstore"
)

func TestSmoke(t *testing.T) {
	f := New(Options{})
	r, _ := f.Root()
	h, _, w, err := f.Create(nil, r, "a", blockstore.Guarded, nil, [8]byte{})
	if err != nil || w.Post == nil {
		t.Fatal(err)
	}
	if _, _, _, err := f.WriteAt(nil, h, []byte("hello"), 5<<30, blockstore.FileSync); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16)
	n, eof, err := f.ReadAt(nil, h, b, 5<<30-2, true)
	if n != 7 || !eof || err != nil || string(b[2:7]) != "hello" {
		t.Fatal(n, eof, err)
	}
}
