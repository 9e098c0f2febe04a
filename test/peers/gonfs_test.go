package peers

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/go-git/go-billy/v5/osfs"
	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	gonfsrdma "github.com/rstored/rstored/nfs/gonfs"
	"github.com/rstored/rstored/rpcrdma"
)

// serveGoNFS exports a fresh directory of this host by go-nfs over TCP.
func serveGoNFS(t *testing.T) (dir string, addr netip.AddrPort) {
	t.Helper()
	dir = t.TempDir()
	l := listen(t, netip.AddrPortFrom(loopback(), 0))
	handler := helpers.NewCachingHandler(helpers.NewNullAuthHandler(change{osfs.New(dir)}), 4096)
	go func() { _ = gonfs.Serve(l, handler) }()
	t.Cleanup(func() { l.Close() })
	return dir, l.Addr().(*net.TCPAddr).AddrPort()
}

// TestGoNFSServer has our client work on a go-nfs server: over TCP, and over
// RDMA by package gonfs.
func TestGoNFSServer(t *testing.T) {
	t.Run("tcp", func(t *testing.T) {
		dir, addr := serveGoNFS(t)
		workOnGoNFS(t, newClient(t, dialTCP(addr)), dir)
	})
	t.Run("rdma", func(t *testing.T) {
		dir := t.TempDir()
		front := netip.AddrPortFrom(loopback(), portRDMA)
		l, err := gonfsrdma.ServeFS(device(t, front.Addr()), portRDMA, change{osfs.New(dir)},
			rpcrdma.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		workOnGoNFS(t, newClient(t, dialRDMA(t, front)), dir)
		if s := l.Stats(); s.RDMAWriteBytes < 5<<20 || s.RDMAReadBytes < 5<<20 {
			t.Errorf("%d bytes written and %d read by RDMA, want 5 MiB of each", s.RDMAWriteBytes, s.RDMAReadBytes)
		}
	})
}

func workOnGoNFS(t *testing.T, c *client.Client, dir string) {
	t.Helper()
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/")
	if err != nil {
		t.Fatal(err)
	}
	mode := uint32(0o755)
	sub, err := c.Mkdir(ctx, root.Handle, "sub", &blockstore.SetAttr{Mode: &mode})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "000"), []byte("small"), 0o644); err != nil {
		t.Fatal(err)
	}
	view, err := c.FS(ctx, "/")
	if err != nil {
		t.Fatal(err)
	}
	// TestFS reads every file by single bytes, so the big one comes later.
	if err := fstest.TestFS(view, "sub/000"); err != nil {
		t.Error(err)
	}
	data := random(9, 5<<20+3)
	mode = 0o644
	n, err := c.Create(ctx, sub.Handle, "big", blockstore.Unchecked, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Upload(ctx, n.Handle, readerAt(data), 0, uint64(len(data)), nil); err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadFile(filepath.Join(dir, "sub", "big"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the stored file", stored, data)
	if _, err := c.Symlink(ctx, root.Handle, "link", "sub/big", nil); err != nil {
		t.Fatal(err)
	}
	got, err := fs.ReadFile(view, "link")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "what is read through the link", got, data)
	// More entries than fit in one answer of go-nfs.
	for i := 1; i < 200; i++ {
		if err := os.WriteFile(filepath.Join(dir, "sub", fmt.Sprintf("%03d", i)), []byte{byte(i)}, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := fs.ReadDir(view, "sub"); err != nil || len(list) != 201 {
		t.Errorf("%d entries are listed, want 201: %v", len(list), err)
	}
	if err := c.Rename(ctx, sub.Handle, "000", root.Handle, "moved"); err != nil {
		t.Error(err)
	}
	if err := c.Remove(ctx, root.Handle, "moved"); err != nil {
		t.Error(err)
	}
	if err := c.Rmdir(ctx, root.Handle, "sub"); err == nil {
		t.Error("a directory that is not empty was removed")
	}
	if s, err := os.ReadDir(filepath.Join(dir, "sub")); err != nil || len(s) != 200 {
		t.Errorf("%d files are left, %v", len(s), err)
	}
	if _, err := c.Lookup(ctx, root.Handle, "nothing"); !client.IsStatus(err, nfs.ErrNoEnt) {
		t.Errorf("lookup of nothing: %v", err)
	}
	if _, err := c.Stat(ctx, root.Handle); err != nil {
		t.Error(err)
	}
}

// readerAt is bytes as an io.ReaderAt.
type readerAt []byte

// ReadAt implements io.ReaderAt.
func (b readerAt) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(b)) {
		return 0, io.EOF
	}
	n := copy(p, b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
