package posixfs

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// pageCache is the kernel's page cache of one file, as far as failures go: an error of writing
// back is reported once, and the pages that it was of are clean afterwards. Each write has a
// page of its own.
type pageCache struct {
	dirty, durable map[int]bool
	unseen         bool         // an error was not reported yet
	syncing        bool         // a sync is under way
	covered        map[int]bool // the pages that were dirty when it began
	outcome        chan error
	reported       int
}

// sync is fdatasync: what becomes of it the driver of the test decides.
func (k *pageCache) sync(int, bool) error {
	k.syncing, k.covered = true, maps.Clone(k.dirty)
	return <-k.outcome
}

// lose has some dirty pages fail to be written back.
func (k *pageCache) lose(r *rand.Rand) {
	for page := range modelOps { // in the order of pages, so that the seed decides
		if k.dirty[page] && r.IntN(2) == 0 {
			delete(k.dirty, page)
			k.unseen = true
		}
	}
}

// end ends the sync that is under way, which writes back what was dirty when it began and, if it
// fails, perhaps more.
func (k *pageCache) end() {
	for page := range k.covered {
		if k.dirty[page] {
			delete(k.dirty, page)
			k.durable[page] = true
		}
	}
	var err error
	if k.unseen {
		err = unix.EIO
		k.unseen = false
		k.reported++
	}
	k.syncing = false
	k.outcome <- err
}

// modelOps is how many actions a run of TestSyncModel has.
const modelOps = 200

// modelCall is a WRITE or a COMMIT of the model's client.
type modelCall struct {
	page     int // -1: a COMMIT
	how      blockstore.Stability
	verf     [8]byte
	owed     []unstableWrite // what a COMMIT is to put on disk
	reported int             // failures when it began
	ended    bool
	err      error
}

// unstableWrite is one that the client has not committed.
type unstableWrite struct {
	page int
	verf [8]byte
}

// TestSyncModel: whatever the order of writes, commits and failures, no client takes for stable
// what is lost. A write that is stable by its reply is on disk, and so is an unstable one after
// a COMMIT with the same verifier.
func TestSyncModel(t *testing.T) {
	seeds := []uint64{rand.Uint64()}
	for seed := range uint64(40) {
		seeds = append(seeds, seed)
	}
	f, _ := openTemp(t, Options{})
	h := dataFile(t, f, 1<<20)
	must(t, f.syncData(mustAcquire(t, f, h), failures{}))
	var failed, changed, kept int
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, c := runSyncModel(t, f, h, seed)
				failed, changed, kept = failed+a, changed+b, kept+c
			})
		})
	}
	if failed == 0 || changed == 0 || kept == 0 {
		t.Errorf("%d calls failed, %d writes saw another verifier, %d were committed: a case is missing", failed, changed,
			kept)
	}
}

func mustAcquire(t *testing.T, f *FS, h blockstore.Handle) *object {
	o, err := f.acquire(h)
	must(t, err)
	t.Cleanup(func() { f.release(o) })
	return o
}

func runSyncModel(t *testing.T, f *FS, h blockstore.Handle, seed uint64) (failed, changed, kept int) {
	r := rand.New(rand.NewPCG(seed, 0))
	k := &pageCache{dirty: map[int]bool{}, durable: map[int]bool{}, outcome: make(chan error)}
	f.kernelSync = k.sync
	defer func() { f.kernelSync = kernelSync }()
	var calls []*modelCall
	var owed []unstableWrite
	page := 0
	look := func() {
		synctest.Wait()
		rest := calls[:0]
		for _, c := range calls {
			switch {
			case !c.ended:
				rest = append(rest, c)
			case c.err != nil:
				failed++
				if !errors.Is(c.err, blockstore.ErrIO) || k.reported == c.reported {
					t.Errorf("page %d failed with %v after %d failures, %d when it began", c.page, c.err, k.reported, c.reported)
				}
			case c.page >= 0 && c.how == blockstore.Unstable:
				owed = append(owed, unstableWrite{c.page, c.verf})
			case c.page >= 0:
				if !k.durable[c.page] {
					t.Errorf("page %d is stable by the reply, and lost", c.page)
				}
			default:
				for _, w := range c.owed {
					if w.verf != c.verf {
						changed++ // the client writes it again
						continue
					}
					kept++
					if !k.durable[w.page] {
						t.Errorf("page %d was committed with its verifier, and is lost", w.page)
					}
				}
			}
		}
		calls = rest
	}
	start := func(c *modelCall) {
		c.reported = k.reported
		calls = append(calls, c)
		go func() {
			defer func() { c.ended = true }()
			if c.page < 0 {
				_, c.err = f.Commit(nil, h, 0, 0)
				c.verf = f.Verifier()
				return
			}
			c.verf = f.Verifier()
			_, _, _, c.err = f.WriteAt(nil, h, []byte("page"), uint64(c.page)*4096, c.how)
		}()
		look()
	}
	for range modelOps {
		switch n := r.IntN(10); {
		case n < 4:
			k.dirty[page] = true
			start(&modelCall{page: page, how: blockstore.Stability(r.IntN(3))})
			page++
		case n < 6:
			start(&modelCall{page: -1, owed: append([]unstableWrite(nil), owed...)})
		case n < 7:
			k.lose(r)
		case k.syncing:
			k.end()
			look()
		}
	}
	for k.syncing {
		k.end()
		look()
	}
	start(&modelCall{page: -1, owed: owed})
	k.end()
	look()
	if len(calls) > 0 {
		t.Fatalf("%d calls have not ended", len(calls))
	}
	return failed, changed, kept
}

// TestLastUser: the last user of an evicted object that has unstable writes waits for no sync, a
// COMMIT of them does, and calls that open further objects wait when many of them are to be
// synced.
func TestLastUser(t *testing.T) {
	f, _ := openTemp(t, Options{})
	h := dataFile(t, f, 8192)
	root, err := f.Root()
	must(t, err)
	synctest.Test(t, func(t *testing.T) {
		d := disk{outcome: make(chan error)}
		f.kernelSync = func(_ int, all bool) error { return d.sync(all) }
		defer func() { f.kernelSync = kernelSync }()
		v := f.Verifier()
		_, _, _, err := f.WriteAt(nil, h, []byte("data"), 0, blockstore.Unstable)
		must(t, err)
		o := f.objects.get(&h)
		f.objects.drop(&h)
		released := false
		go func() {
			f.release(o)
			released = true
		}()
		synctest.Wait()
		if !released || len(d.begun) != 1 {
			t.Errorf("released %v, %d syncs have begun", released, len(d.begun))
		}
		f.leaving.max = 1
		found, committed := false, false
		go func() {
			_, _, err := f.Lookup(nil, root, "data")
			must(t, err)
			found = true
			_, err = f.Commit(nil, h, 0, 0)
			must(t, err)
			committed = true
			if f.Verifier() == v {
				t.Error("the verifier of the lost write is that of the commit")
			}
		}()
		synctest.Wait()
		if found || committed {
			t.Errorf("opened %v beside too many that wait, committed %v", found, committed)
		}
		f.leaving.max = leavingMax
		d.outcome <- unix.EIO
		synctest.Wait()
		if !found || len(d.begun) != 2 {
			t.Errorf("opened %v, %d syncs have begun", found, len(d.begun))
		}
		d.outcome <- nil
		synctest.Wait()
		if !committed {
			t.Error("COMMIT still waits")
		}
	})
}

// TestEvicted: the kernel reports a failed sync to one descriptor of a file, and then to no
// other. Every COMMIT that begins before the server knows of the failure fails too, also when
// the file is about to leave the cache.
func TestEvicted(t *testing.T) {
	for _, inUse := range []bool{true, false} {
		t.Run(fmt.Sprintf("in use %v", inUse), func(t *testing.T) {
			f, s := openTemp(t, Options{})
			h := dataFile(t, f, 8192)
			must(t, os.WriteFile(filepath.Join(s.dir, "other"), nil, 0o644))
			root, err := f.Root()
			must(t, err)
			synctest.Test(t, func(t *testing.T) {
				outcome := make(chan error)
				reported := -1 // the descriptor
				f.kernelSync = func(fd int, _ bool) error {
					if reported >= 0 {
						return nil
					}
					reported = fd
					return <-outcome
				}
				defer func() { f.kernelSync = kernelSync }()
				_, _, _, err := f.WriteAt(nil, h, []byte("data"), 0, blockstore.Unstable)
				must(t, err)
				v := f.Verifier()
				if inUse {
					go func() { _, _, _, _ = f.WriteAt(nil, h, []byte("more"), 4, blockstore.FileSync) }()
					synctest.Wait()
				}
				f.objects.max = 1
				go func() {
					_, _, err := f.Lookup(nil, root, "other")
					must(t, err)
				}()
				synctest.Wait()
				if reported < 0 {
					t.Fatal("no sync has begun")
				}
				committed := false
				go func() {
					_, err := f.Commit(nil, h, 0, 0)
					if err == nil && f.Verifier() == v {
						t.Error("what is lost was committed with its verifier")
					}
					committed = true
				}()
				synctest.Wait()
				outcome <- unix.EIO
				synctest.Wait()
				if !committed {
					t.Error("COMMIT still waits")
				}
				if _, err := f.Commit(nil, h, 0, 0); err != nil || f.Verifier() == v {
					t.Errorf("a COMMIT later: %v, verifier %x", err, f.Verifier())
				}
			})
		})
	}
}
