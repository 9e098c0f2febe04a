package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

func testProcedures(t *testing.T, s *server) {
	c := s.client()
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	h := root.Handle
	if err := c.Null(ctx); err != nil {
		t.Error(err)
	}
	f, err := c.Create(ctx, h, "f", blockstore.Exclusive, nil, [8]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Create(ctx, h, "f", blockstore.Exclusive, nil, [8]byte{1}); err != nil ||
		!bytes.Equal(again.Handle, f.Handle) {
		t.Errorf("exclusive create again: %v", err)
	}
	if _, err := c.Create(ctx, h, "f", blockstore.Guarded, nil, [8]byte{}); !IsStatus(err, nfs.ErrExist) {
		t.Errorf("guarded create: %v", err)
	}
	size, mode := uint64(100), uint32(0o600)
	if err := c.SetAttr(ctx, f.Handle, &blockstore.SetAttr{Size: &size, Mode: &mode}, nil); err != nil {
		t.Error(err)
	}
	stale := time.Unix(1, 0)
	if err := c.SetAttr(ctx, f.Handle, &blockstore.SetAttr{Size: &size}, &stale); !IsStatus(err, nfs.ErrNotSync) {
		t.Errorf("guarded setattr: %v", err)
	}
	if err := c.Link(ctx, f.Handle, h, "g"); err != nil {
		t.Error(err)
	}
	if a, err := c.GetAttr(ctx, f.Handle); err != nil || a.NLink != 2 || a.Size != 100 || a.Mode != 0o600 {
		t.Errorf("%+v, %v", a, err)
	}
	if err := c.Rename(ctx, h, "g", h, "i"); err != nil {
		t.Error(err)
	}
	if _, err := c.Lookup(ctx, h, "g"); !IsStatus(err, nfs.ErrNoEnt) {
		t.Errorf("lookup of the old name: %v", err)
	}
	if n, err := c.Symlink(ctx, h, "s", "target", nil); err != nil {
		t.Error(err)
	} else if s, err := c.ReadLink(ctx, n.Handle); err != nil || s != "target" {
		t.Errorf("%q, %v", s, err)
	}
	if n, err := c.Mknod(ctx, h, "p", blockstore.TypeFifo, 0, 0, nil); err != nil || n.Attr.Type != blockstore.TypeFifo {
		t.Errorf("fifo: %v", err)
	}
	if _, err := c.Mkdir(ctx, h, "d", nil); err != nil {
		t.Error(err)
	}
	if err := c.Remove(ctx, h, "d"); err == nil {
		t.Error("REMOVE removed a directory")
	}
	if err := c.Rmdir(ctx, h, "d"); err != nil {
		t.Error(err)
	}
	if err := c.Remove(ctx, h, "i"); err != nil {
		t.Error(err)
	}
	if got, err := c.Access(ctx, f.Handle, blockstore.AccessRead|blockstore.AccessModify); err != nil ||
		got != blockstore.AccessRead|blockstore.AccessModify {
		t.Errorf("access %#x, %v", got, err)
	}
	if i, err := c.Info(ctx, h); err != nil || i.ReadMax < 1<<20 || i.WriteMax < 1<<20 {
		t.Errorf("%+v, %v", i, err)
	}
	if p, err := c.PathConf(ctx, h); err != nil || p.NameMax != 255 {
		t.Errorf("%+v, %v", p, err)
	}
	if s, err := c.Stat(ctx, h); err != nil || s.TotalBytes == 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if list, err := c.Exports(ctx); err != nil || len(list) == 0 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := c.Resolve(ctx, "/data/none/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("resolve of nothing: %v", err)
	}
}

func TestTransfersOfAnySizeAndManyEntries(t *testing.T) {
	eachVersion(t, testTransfersOfAnySizeAndManyEntries)
}

func testTransfersOfAnySizeAndManyEntries(t *testing.T, s *server) {
	c := s.client()
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 4095, TransferMax - 1, TransferMax, TransferMax + 1, 9<<20 + 3} {
		data := fill(byte(n), n)
		f, err := c.Create(ctx, root.Handle, fmt.Sprint(n), blockstore.Unchecked, nil, [8]byte{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Upload(ctx, f.Handle, bytes.NewReader(data), 0, uint64(n), nil); err != nil {
			t.Fatal(err)
		}
		got := &memory{b: make([]byte, n)}
		if err := c.Download(ctx, f.Handle, got, 0, uint64(n), nil); err != nil || !bytes.Equal(got.b, data) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if err := c.Download(ctx, f.Handle, &memory{b: make([]byte, n+1)}, 0, uint64(n)+1, nil); !errors.Is(err,
			io.ErrUnexpectedEOF) {
			t.Errorf("beyond the end: %v", err)
		}
	}
	d, err := c.Mkdir(ctx, root.Handle, "many", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		if _, err := c.Create(ctx, d.Handle, fmt.Sprintf("%05d", i), blockstore.Unchecked, nil, [8]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]int{}
	if err := c.ReadDir(ctx, d.Handle, func(e *Entry) error { seen[e.Name]++; return nil }); err != nil ||
		len(seen) != 5000 {
		t.Errorf("%d entries, %v", len(seen), err)
	}
}

// TestServerThatTakesLess: the kernel's server offers 256 KiB when it has little
// memory, and refuses what is longer.
func TestServerThatTakesLess(t *testing.T) {
	srv := newServer(t)
	srv.vers = Version3
	c := srv.client()
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if l, err := c.limit(ctx, root.Handle, limitsAsked); err != nil || l.read != limitsAsked || c.limits.Load() != nil {
		t.Errorf("limits %+v, %v; a short call need not ask", l, err)
	}
	if l, err := c.limit(ctx, root.Handle, limitsAsked+1); err != nil || l.read != nfs.MaxIO || l.write != nfs.MaxIO {
		t.Errorf("limits %+v, %v", l, err)
	}
	c.limits.Store(&limits{read: 40_000, write: 30_000})
	const n = 3 << 20
	data := fill(9, n)
	f, err := c.Create(ctx, root.Handle, "file", blockstore.Unchecked, nil, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Upload(ctx, f.Handle, bytes.NewReader(data), 0, n, nil); err != nil {
		t.Fatal(err)
	}
	got := &memory{b: make([]byte, n)}
	if err := c.Download(ctx, f.Handle, got, 0, n, nil); err != nil || !bytes.Equal(got.b, data) {
		t.Errorf("download: %v", err)
	}
	var b bytes.Buffer
	if _, err := c.Stream(ctx, f.Handle, &b, 0); err != nil || !bytes.Equal(b.Bytes(), data) {
		t.Errorf("stream: %v", err)
	}
	for _, p := range srv.rpc.Stats().Procs {
		// A stream reads ahead of the end, which it does not know.
		if want := map[string]uint64{"READ": 2 * 3 * 27, "WRITE": 3 * 35}[p.Procedure]; p.Calls < want ||
			want > 0 && p.Calls > want+20 {
			t.Errorf("%d calls of %s, want %d", p.Calls, p.Procedure, want)
		}
	}
}

type memory struct {
	mu sync.Mutex
	b  []byte
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(m.b[off:], p), nil
}

// TestConnectionsCutInTheMiddle renames and writes while the server's
// connections are cut: everything is done, and once.
func TestConnectionsCutInTheMiddle(t *testing.T) { eachVersion(t, connectionsCut) }

func connectionsCut(t *testing.T, s *server) {
	c := s.client()
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(ctx, root.Handle, "n0", blockstore.Guarded, nil, [8]byte{}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
				_ = s.ports.Close()
				s.listen(s.addr)
			}
		}
	})
	deadline := time.Now().Add(1500 * time.Millisecond)
	i := 0
	for ; time.Now().Before(deadline); i++ {
		if err := c.Rename(ctx, root.Handle, fmt.Sprint("n", i), root.Handle, fmt.Sprint("n", i+1)); err != nil {
			t.Errorf("rename %d: %v", i, err)
			break
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("%d renames, %d connections, %d calls sent again", i, c.nfs.reconnects.Load(), c.nfs.resent.Load())
	if c.nfs.reconnects.Load() < 5 {
		t.Error("the connection was hardly ever cut")
	}
}
