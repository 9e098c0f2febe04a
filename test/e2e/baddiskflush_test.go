package e2e

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/posixfs"
)

// TestFaultFlush: writes that a store has acknowledged as stable are on the disk after a loss of
// power, although flushes of the disk fail while they are made. The filesystem ends then. A sync of
// ext4 and XFS that is under way at that moment can return success, with its transaction lost.
func TestFaultFlush(t *testing.T) {
	for _, c := range []struct {
		kind    string
		size    int64
		options []string
	}{
		{"ext4", 96 << 20, []string{"-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"}},
		{"xfs", 320 << 20, []string{"-q", "-K", "-f"}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			for range 6 {
				seed := rand.Uint64()
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					flushFails(t, newBadDisk(t, c.kind, c.size, seed, c.options...), seed)
				})
			}
		})
	}
}

func flushFails(t *testing.T, d *badDisk, seed uint64) {
	const files, pages = 12, 256
	dir := filepath.Join(d.dir, "data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	store, err := posixfs.Open(dir, posixfs.Options{StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	root, err := store.Root()
	if err != nil {
		t.Fatal(err)
	}
	var acked [files][pages]uint32
	var work sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for i := range uint32(files) {
		mode := uint32(0o600)
		h, _, _, err := store.Create(nil, root, fmt.Sprint("f", i), blockstore.Guarded, &blockstore.SetAttr{Mode: &mode},
			[8]byte{})
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		work.Go(func() {
			for gen := uint32(1); ctx.Err() == nil; gen++ {
				n := r.Uint32N(pages)
				how := blockstore.DataSync + blockstore.Stability(r.IntN(2))
				if _, _, _, err := store.WriteAt(nil, h, page(i, n, gen), uint64(n)*diskPage, how); err != nil {
					return
				}
				acked[i][n] = gen
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	d.fail(0, 0, 20)
	time.Sleep(150 * time.Millisecond)
	d.fail(0, 0, 0)
	d.cut(func() {
		stop()
		work.Wait()
		_ = store.Close()
	})
	for i := range uint32(files) {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("f", i)))
		if err != nil {
			t.Error(err)
		}
		b = append(b, make([]byte, pages*diskPage)...)
		for n, gen := range acked[i] {
			p := b[n*diskPage:][:diskPage]
			if got, ok := generation(p, i, uint32(n)); gen > 0 && (!ok || got < gen || bytes.Equal(p, zeroPage)) {
				t.Errorf("file %d, page %d: has write %d (whole %v), %d was acknowledged", i, n, got, ok, gen)
			}
		}
	}
}
