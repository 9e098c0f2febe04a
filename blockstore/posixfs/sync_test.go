package posixfs

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// disk syncs when it is told to: each sync announces itself and waits for its outcome.
type disk struct {
	begun   []bool // all of each sync
	outcome chan error
}

func (d *disk) sync(all bool) error {
	d.begun = append(d.begun, all)
	return <-d.outcome
}

// TestSyncsShare: what comes while a sync is under way waits for the next, and shares it.
func TestSyncsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s syncs
		d := disk{outcome: make(chan error)}
		got := map[string]error{}
		var mu sync.Mutex
		do := func(name string, all bool) {
			go func() {
				_, err := s.do(all, s.failures(), d.sync)
				mu.Lock()
				got[name] = err
				mu.Unlock()
			}()
			synctest.Wait()
		}
		end := func(err error, begun int, want map[string]error) {
			t.Helper()
			d.outcome <- err
			synctest.Wait()
			if len(d.begun) != begun {
				t.Errorf("%d syncs have begun, want %d", len(d.begun), begun)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("ended: %v, want %v", got, want)
			}
			clear(got)
		}
		lost := errors.New("lost")
		do("a", false)
		do("b", false)
		do("c", true)
		do("d", false)
		if len(d.begun) != 1 {
			t.Errorf("%d syncs at once", len(d.begun))
		}
		end(nil, 2, map[string]error{"a": nil})
		// The second has begun: what comes now was perhaps written too late for it, or in time and
		// lost by it.
		do("e", false)
		do("f", false)
		end(lost, 3, map[string]error{"b": lost, "c": lost, "d": lost})
		end(nil, 3, map[string]error{"e": lost, "f": lost})
		do("g", true)
		end(lost, 4, map[string]error{"g": lost})
		do("h", false)
		end(nil, 5, map[string]error{"h": nil})
		if want := []bool{false, true, false, true, false}; fmt.Sprint(d.begun) != fmt.Sprint(want) {
			t.Errorf("syncs with attributes: %v, want %v", d.begun, want)
		}
	})
}

// TestSyncsCover has many writers of one number sync it, and looks at what was on the disk
// when they were told that theirs was.
func TestSyncsCover(t *testing.T) {
	var s syncs
	var written, stable atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				since := s.failures()
				mine := written.Add(1)
				_, err := s.do(false, since, func(bool) error {
					stable.Store(written.Load())
					return nil
				})
				if now := stable.Load(); err != nil || now < mine {
					t.Errorf("%d is on disk where %d was synced: %v", now, mine, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestSharedSyncFails: every write and commit that was under way when a sync failed fails, also
// one that a later sync covered, and the verifier changes once.
func TestSharedSyncFails(t *testing.T) {
	f, _ := openTemp(t, Options{})
	h := dataFile(t, f, 8192)
	synctest.Test(t, func(t *testing.T) {
		d := disk{outcome: make(chan error)}
		f.kernelSync = func(_ int, all bool) error { return d.sync(all) }
		defer func() { f.kernelSync = kernelSync }()
		errs := make([]error, 6)
		write := func(i int, how blockstore.Stability) {
			go func() { _, _, _, errs[i] = f.WriteAt(nil, h, []byte("data"), uint64(i*4), how) }()
			synctest.Wait()
		}
		write(0, blockstore.DataSync)
		write(1, blockstore.DataSync)
		write(2, blockstore.FileSync)
		go func() { _, errs[3] = f.Commit(nil, h, 0, 0) }()
		synctest.Wait()
		v := f.Verifier()
		d.outcome <- nil
		synctest.Wait()
		write(4, blockstore.FileSync)
		d.outcome <- unix.EIO
		synctest.Wait()
		if errs[0] != nil {
			t.Error("the first:", errs[0])
		}
		for i, err := range errs[1:4] {
			if !errors.Is(err, blockstore.ErrIO) {
				t.Errorf("%d: %v", i+1, err)
			}
		}
		if c := f.Counters(); f.Verifier() == v || c.SyncFailures != 1 || c.SyncsShared != 3 {
			t.Errorf("%d failures, %d shared, verifier %x", c.SyncFailures, c.SyncsShared, f.Verifier())
		}
		d.outcome <- nil
		synctest.Wait()
		if !errors.Is(errs[4], blockstore.ErrIO) {
			t.Error("the one that was written while the sync failed:", errs[4])
		}
		write(5, blockstore.FileSync)
		d.outcome <- nil
		synctest.Wait()
		if errs[5] != nil {
			t.Error("the one after:", errs[5])
		}
		if want := []bool{false, true, true, true}; fmt.Sprint(d.begun) != fmt.Sprint(want) {
			t.Errorf("syncs with attributes: %v, want %v", d.begun, want)
		}
	})
}

// BenchmarkStable is writes of 4 KiB by eight at a time, each to be on disk before it returns.
func BenchmarkStable(b *testing.B) {
	for _, files := range []int{1, 8} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			f, _ := openTemp(b, Options{})
			var hs []blockstore.Handle
			root, _ := f.Root()
			mode := uint32(0o644)
			for i := range files {
				h, _, _, err := f.Create(nil, root, fmt.Sprint(i), blockstore.Unchecked, &blockstore.SetAttr{Mode: &mode},
					[8]byte{})
				must(b, err)
				_, _, _, err = f.WriteAt(nil, h, make([]byte, 1<<20), 0, blockstore.FileSync)
				must(b, err)
				hs = append(hs, h)
			}
			var next, fsyncs atomic.Int64
			f.kernelSync = func(fd int, all bool) error { fsyncs.Add(1); return kernelSync(fd, all) }
			p := bytes.Repeat([]byte("4096"), 1024)
			b.ResetTimer()
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if _, _, _, err := f.WriteAt(nil, hs[int(i)%files], p, uint64(i%256)*4096, blockstore.FileSync); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
			b.ReportMetric(float64(fsyncs.Load())/b.Elapsed().Seconds(), "syncs/s")
		})
	}
}
