package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/rstored/rstored/blockstore"
)

// testStress runs all operations on the same few names, in several goroutines at once. Errors that
// a race explains are allowed. Corruption, a deadlock, or a finding of the race detector fails the
// test.
func testStress(e *env) {
	const workers, steps = 8, 150
	dirs := []blockstore.Handle{e.root, e.mkdir(nil, e.root, "d1", 0o777), e.mkdir(nil, e.root, "d2", 0o777)}
	shared := e.mkfile(nil, e.root, "shared", 0o666, string(make([]byte, workers*4096)))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			mine := make([]byte, 4096)
			for i := range mine {
				mine[i] = byte(w + 1)
			}
			for range steps {
				if err := stressStep(e, r, dirs); err != nil && !explained(err) {
					e.Errorf("worker %d: %v", w, err)
					return
				}
				off := uint64(w) * 4096
				if _, _, _, err := e.WriteAt(nil, shared, mine, off, blockstore.Unstable); err != nil {
					e.Errorf("worker %d: %v", w, err)
					return
				}
				got := make([]byte, 4096)
				if n, _, err := e.ReadAt(nil, shared, got, off, false); err != nil || n != 4096 || string(got) != string(mine) {
					e.Errorf("worker %d: its part of the shared file: %d, %v", w, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, d := range dirs {
		for name := range e.names(d, 5) {
			if _, err := e.lookup(d, name); err != nil {
				e.Errorf("%q is listed but %v", name, err)
			}
		}
	}
}

func explained(err error) bool {
	for _, ok := range []error{
		blockstore.ErrNotExist, blockstore.ErrExist, blockstore.ErrStale, blockstore.ErrIsDir, blockstore.ErrNotDir,
		blockstore.ErrNotEmpty, blockstore.ErrWouldBlock, blockstore.ErrJukebox, blockstore.ErrInval,
	} {
		if errors.Is(err, ok) {
			return true
		}
	}
	return false
}

func stressStep(e *env, r *rand.Rand, dirs []blockstore.Handle) error {
	name := func() string { return fmt.Sprintf("s%d", r.IntN(6)) }
	dir := func() blockstore.Handle { return dirs[r.IntN(len(dirs))] }
	mode := uint32(0o777)
	switch r.IntN(9) {
	case 0:
		h, _, _, err := e.Create(nil, dir(), name(), blockstore.Unchecked, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
		if err != nil {
			return err
		}
		_, _, _, err = e.WriteAt(nil, h, []byte("stress"), uint64(r.IntN(1<<20)), blockstore.Unstable)
		return err
	case 1:
		_, _, _, err := e.Mkdir(nil, dir(), name(), &blockstore.SetAttr{Mode: &mode})
		return err
	case 2:
		_, err := e.Remove(nil, dir(), name())
		return err
	case 3:
		_, err := e.Rmdir(nil, dir(), name())
		return err
	case 4, 5:
		_, _, err := e.Rename(nil, dir(), name(), dir(), name())
		return err
	case 6:
		h, _, err := e.Lookup(nil, dir(), name())
		if err != nil {
			return err
		}
		_, _, err = e.Link(nil, h, dir(), name())
		if errors.Is(err, blockstore.ErrPerm) {
			return nil // a directory
		}
		return err
	case 7:
		_, _, err := e.ReadDir(nil, dir(), 0, [8]byte{}, true, func(*blockstore.DirEntry) bool { return true })
		return err
	}
	h, _, err := e.Lookup(nil, dir(), name())
	if err != nil {
		return err
	}
	size := uint64(r.IntN(1 << 16))
	if _, err = e.SetAttr(nil, h, &blockstore.SetAttr{Size: &size}, nil); err != nil {
		return err
	}
	_, _, err = e.ReadAt(nil, h, make([]byte, 1000), 0, true)
	return err
}
