package nfs_test

import (
	"bytes"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// TestAppendNoted: the handle is the same with and without a note, and a note of another
// export is not taken.
func TestAppendNoted(t *testing.T) {
	c := nfs.NewCodec([]byte("a secret"))
	h, _ := blockstore.MakeHandle([]byte("some object"))
	var note blockstore.Note
	for _, export := range []uint32{1, 1, 2, 2, 1} {
		want := c.Append(nil, export, &h)
		if got := c.AppendNoted(nil, export, &h, &note); !bytes.Equal(got, want) || !note.Made || note.For != export {
			t.Errorf("export %d: %x, want %x; note %+v", export, got, want, note)
		}
		if got := c.AppendNoted(nil, export, &h, nil); !bytes.Equal(got, want) {
			t.Errorf("export %d without a note: %x", export, got)
		}
	}
}
