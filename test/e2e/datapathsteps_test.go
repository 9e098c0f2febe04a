package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

func (x *namer) step() {
	ctx, cancel := context.WithTimeout(x.w.t.Context(), 2*time.Minute)
	defer cancel()
	cuts := x.w.cuts.Load()
	names := slices.Sorted(maps.Keys(x.files))
	if len(names) < 3 {
		name := x.fresh()
		mode := uint32(0o600)
		n, err := x.c.Create(ctx, x.dir, name, blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
		if err != nil {
			x.failed("CREATE "+name, err, cuts, name)
			return
		}
		x.files[name] = &named{h: n.Handle, id: n.Attr.FileID}
		return
	}
	name := names[x.r.IntN(len(names))]
	f := x.files[name]
	x.w.done[6].Add(1)
	switch x.r.IntN(4) {
	case 0:
		if err := x.c.Remove(ctx, x.dir, name); err != nil {
			x.failed("REMOVE "+name, err, cuts, name)
			return
		}
		delete(x.files, name)
		if _, err := x.c.GetAttr(ctx, f.h); !client.IsStatus(err, nfs.ErrStale) {
			x.w.t.Errorf("%s was removed: %v", name, err)
		}
	case 1, 2:
		to := x.fresh()
		if x.r.IntN(3) == 0 { // over another
			to = names[x.r.IntN(len(names))]
		}
		if to == name {
			return
		}
		if err := x.c.Rename(ctx, x.dir, name, x.dir, to); err != nil {
			x.failed("RENAME "+name+" "+to, err, cuts, name, to)
			return
		}
		delete(x.files, name)
		x.files[to] = f
	case 3:
		size := uint64(x.r.IntN(1 << 20))
		f.sizes = append(f.sizes, size)
		if err := x.c.SetAttr(ctx, f.h, &blockstore.SetAttr{Size: &size}, nil); err != nil {
			x.w.failed("SETATTR of "+name, err)
			return
		}
		f.size, f.sizes = size, nil
	}
}

// check looks at every name and handle.
func (x *namer) check(ctx context.Context) {
	there := map[string]bool{}
	err := x.c.ReadDir(ctx, x.dir, func(e *client.Entry) error {
		there[e.Name] = true
		return nil
	})
	if err != nil {
		x.w.failed("READDIR", err)
		return
	}
	for name, f := range x.files {
		n, err := x.c.Lookup(ctx, x.dir, name)
		if err != nil || n.Attr.FileID != f.id || !bytes.Equal(n.Handle, f.h) {
			x.w.t.Errorf("%s is not what it was: %v", name, err)
			continue
		}
		if n.Attr.Size != f.size && !slices.Contains(f.sizes, n.Attr.Size) {
			x.w.t.Errorf("%s has %d bytes, and not %d or one of %d", name, n.Attr.Size, f.size, f.sizes)
		}
		delete(there, name)
	}
	prefix := fmt.Sprintf("n%d-", x.id)
	for name := range there {
		if len(name) > len(prefix) && name[:len(prefix)] == prefix && !x.lost[name] {
			x.w.t.Errorf("%s is there, and was removed or renamed", name)
		}
	}
}

// TestDataPath: on disks that fail, with filesystems that get full, with kills, losses of power and
// upgrades, what clients of versions 3 and 4.2 over both transports were told to be stable is on
// the disk, and nothing else than what they wrote. The seed decides what is done, the host when:
// DATAPATH_SEED sets it, DATAPATH_ROUNDS how long it takes.
func TestDataPath(t *testing.T) {
	for _, c := range []struct {
		kind    string
		size    int64
		options []string
	}{
		{"ext4", 96 << 20, []string{"-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"}},
		{"xfs", 320 << 20, []string{"-q", "-K", "-f"}},
		{"btrfs", 192 << 20, []string{"-q", "-K", "-f"}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			_, _ = fmt.Sscan(os.Getenv("DATAPATH_SEED"), &seed)
			t.Logf("seed %d", seed)
			disk := newBadDisk(t, c.kind, c.size, seed, c.options...)
			w := &datapath{t: t, disk: disk}
			w.d = newDaemonOn(t, func(d *daemon) {
				d.export, d.state = filepath.Join(disk.dir, "data"), filepath.Join(disk.dir, "state")
				for _, p := range []string{d.export, d.state} {
					if err := os.MkdirAll(p, 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}, "--lease-time", "10s")
			t.Cleanup(func() { w.end(syscall.SIGKILL) })
			w.run(rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

// end ends the daemon, whichever process it is.
func (w *datapath) end(sig syscall.Signal) {
	w.d.stop(sig)
	w.d.successor = 0
}

const (
	dataFiles = 3
	dataPages = 24 // of a file, for each writer
)

func (w *datapath) run(r *rand.Rand) {
	t := w.t
	var clients []*client.Client
	for _, v := range []client.Version{client.Version3, client.Version42} {
		for _, transport := range []string{"rdma", "tcp"} {
			clients = append(clients, w.d.clientOf(v, transport))
		}
	}
	var writers []*writer
	var namers []*namer
	mode := uint32(0o600)
	for i, c := range clients {
		root, err := c.Resolve(patient(t), "/data")
		if err != nil {
			t.Fatal(err)
		}
		for file := range dataFiles {
			name := fmt.Sprint("shared", file)
			n, err := c.Create(patient(t), root.Handle, name, blockstore.Unchecked, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
			if err != nil {
				t.Fatal(err)
			}
			writers = append(writers, &writer{
				w: w, c: c, h: n.Handle, name: name, file: uint32(file), first: uint32(i * dataPages),
				blocks: make([]block, dataPages), r: rand.New(rand.NewPCG(r.Uint64(), 0)),
			})
		}
		namers = append(namers, &namer{
			w: w, c: c, dir: root.Handle, id: i, files: map[string]*named{}, lost: map[string]bool{},
			r: rand.New(rand.NewPCG(r.Uint64(), 0)),
		})
	}
	var work sync.WaitGroup
	each := func(step func()) {
		work.Go(func() {
			for !w.stop.Load() && !t.Failed() {
				w.gate.RLock()
				step()
				w.gate.RUnlock()
			}
		})
	}
	for _, x := range writers {
		each(x.step)
	}
	for _, x := range namers {
		each(x.step)
	}
	defer work.Wait()
	defer w.stop.Store(true)

	look := func(what string) {
		t.Helper()
		w.gate.Lock()
		defer w.gate.Unlock()
		ctx := patient(t)
		for _, x := range writers {
			x.read(ctx)
		}
		for _, x := range namers {
			x.check(ctx)
		}
		if t.Failed() {
			t.Fatalf("after %s", what)
		}
	}
	pause := func(most int) { time.Sleep(time.Duration(50+r.IntN(most)) * time.Millisecond) }
	cut := func() {
		w.cuts.Add(1)
		w.disk.fail(0, 0, 0)
		w.disk.cut(func() { w.end(syscall.SIGKILL) })
		w.cuts.Add(1)
		w.d.start()
	}
	rounds := 4
	_, _ = fmt.Sscan(os.Getenv("DATAPATH_ROUNDS"), &rounds)
	for i := range rounds {
		pause(200)
		var what string
		switch n := r.IntN(7); {
		case i == rounds/2: // once for sure; clients take long to find out
			what = "a loss of power"
			cut()
		case n < 2:
			what = "a kill"
			w.end(syscall.SIGKILL)
			w.d.start()
		case n == 2:
			what = "an upgrade"
			w.disk.fail(r.IntN(2)*10, 0, 0)
			w.d.takeOver("upgrade")
			_, w.d.successor = w.d.serving()
		case n == 3 || n == 4:
			what = "failures of writes"
			w.disk.fail(5+r.IntN(40), r.IntN(2)*10, 0)
			pause(500)
			if r.IntN(2) == 0 {
				what += " and a kill"
				w.end(syscall.SIGKILL)
				w.d.start()
			}
		case n == 5:
			what = "a full filesystem"
			w.fill(r)
		case n == 6:
			// The filesystem may end then.
			what = "failures of flushes and a loss of power"
			w.disk.fail(0, 0, 20)
			pause(300)
			cut()
		}
		w.disk.fail(0, 0, 0)
		t.Logf("round %d: %s", i, what)
		look(what)
	}
	w.stop.Store(true)
	work.Wait()
	cut()
	look("the last loss of power")
	d := w.disk
	t.Logf("%d writes, %d reads, %d flushes failed, %d pages lost; %d calls failed; WRITEs unstable %d, data %d, file "+
		"%d; %d committed, %d again; %d reads, %d names",
		d.failedWrites, d.failedReads, d.failedFlushes, d.lostPages, w.fails.Load(), w.done[0].Load(), w.done[1].Load(),
		w.done[2].Load(), w.done[3].Load(), w.done[4].Load(),
		w.done[5].Load(), w.done[6].Load())
}

// fill has the host take all room for a while.
func (w *datapath) fill(r *rand.Rand) {
	name := filepath.Join(w.disk.dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		w.t.Log(err)
		return
	}
	defer f.Close()
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		w.t.Fatal(err)
	}
	free := int64(s.Bfree) * s.Bsize
	for n := free; n > 0; n = n * 15 / 16 {
		if unix.Fallocate(int(f.Fd()), 0, 0, n) == nil {
			break
		}
	}
	time.Sleep(time.Duration(100+r.IntN(300)) * time.Millisecond)
	if err := os.Remove(name); err != nil {
		w.t.Fatal(err)
	}
}
