package dial_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rdmatest"
)

// TestDMABuf reads files of a server into memory of another device, which only the RDMA device
// reaches, and writes them out of it. NFS_TEST_URL is a directory there, and NFS_TEST_VERSIONS
// which versions of NFS to do it by; guests' cases set them. Over a device whose driver registers
// no dma-bufs the client says so, and uses a mapping.
func TestDMABuf(t *testing.T) {
	url := os.Getenv("NFS_TEST_URL")
	if url == "" {
		t.Skip("NFS_TEST_URL names no server: the guests' cases do")
	}
	for _, name := range strings.Fields(os.Getenv("NFS_TEST_VERSIONS")) {
		t.Run(name, func(t *testing.T) {
			version, err := client.ParseVersion(name)
			if err != nil {
				t.Fatal(err)
			}
			testDMABuf(t, url, version)
		})
	}
}

func testDMABuf(t *testing.T, url string, version client.Version) {
	const page, room, size = 4096, 6 << 20, 5<<20 + 4097
	u, err := client.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	d, other := &dial.Dialer{Version: version}, &dial.Dialer{Version: version}
	defer d.Close()
	defer other.Close()
	c := d.Client(u)
	file := u.Path + "/file"
	f, err := c.CreateFile(t.Context(), file, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := random(size)
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}

	fd := rdmatest.UDMABuf(t, room+2*page)
	all, err := rdma.OpenDMABuf(fd, 0, room+2*page, true)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	want := random(len(all.Names)) // what is in the memory
	copy(all.Names, want)
	names, err := rdma.OpenDMABuf(fd, page, room, false)
	if err != nil {
		t.Fatal(err)
	}
	defer names.Close()
	before := rdmatest.DMABufReferences(t, fd)
	m, err := c.RegisterDMABuf(client.DMABuf(*names))
	if err == nil {
		// The connection may have to be made anew for it: then the first call tells.
		var n int
		if n, err = f.ReadAt(m.Bytes()[:10], 0); err == nil && n != 10 {
			t.Fatalf("%d bytes of 10", n)
		}
		copy(want[page:], data[:10])
		if err != nil {
			m.Close()
		}
	}
	switch taken := os.Getenv(rdmatest.DMABufEnv); {
	case err == nil && taken == "refused":
		t.Fatal("the device has the memory")
	case err != nil && taken == "taken" ||
		err != nil && (!errors.Is(err, client.ErrNoDMABuf) || !errors.Is(err, rdma.ErrUnsupported)):
		t.Fatal(err)
	case err != nil:
		t.Log(err)
		if names, err = rdma.OpenDMABuf(fd, page, room, true); err != nil {
			t.Fatal(err)
		}
		defer names.Close()
		before = rdmatest.DMABufReferences(t, fd)
		if m, err = c.RegisterDMABuf(client.DMABuf(*names)); err != nil {
			t.Fatalf("by a mapping: %v", err)
		}
	}

	// Others have the connection too.
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	wg.Go(func() {
		b := make([]byte, 300_000)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n, err := f.ReadAt(b, 1000); n != len(b) || err != nil || !bytes.Equal(b, data[1000:][:n]) {
				t.Errorf("beside it: %d bytes, %v, or others", n, err)
				return
			}
		}
	})
	same := func(what string, off, n int) {
		t.Helper()
		if !bytes.Equal(all.Names, want) {
			t.Fatalf("%s %d bytes at %d: the memory has others", what, n, off)
		}
	}
	for _, r := range []struct{ at, off, n int }{
		{0, 0, size},
		{3, 1, 1},
		{4095, 100, 8194},
		{page, page, 1 << 20},
		{777, 1001, 2_000_003},
		{room - 5, size - 5, 5},
	} {
		if n, err := f.ReadAt(m.Bytes()[r.at:][:r.n], int64(r.off)); n != r.n || err != nil {
			t.Fatalf("reading %d bytes at %d: %d, %v", r.n, r.off, n, err)
		}
		copy(want[page+r.at:], data[r.off:][:r.n])
		same("reading", r.off, r.n)
	}
	// Out of it, into another file.
	copy(want[page:], random(room))
	copy(all.Names, want)
	out, err := c.CreateFile(t.Context(), u.Path+"/out", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	stored := make([]byte, size)
	for _, w := range []struct{ at, off, n int }{
		{1, 0, size},
		{0, 5, 1},
		{4095, 4097, 10_000},
		{room - 999_999, 1_000_001, 999_999},
	} {
		if n, err := out.WriteAt(m.Bytes()[w.at:][:w.n], int64(w.off)); n != w.n || err != nil {
			t.Fatalf("writing %d bytes at %d: %d, %v", w.n, w.off, n, err)
		}
		copy(stored[w.off:], want[page+w.at:][:w.n])
		same("writing", w.off, w.n)
	}
	if err := out.Sync(); err != nil {
		t.Fatal(err)
	}
	check, err := other.Client(u).Open(t.Context(), u.Path+"/out")
	if err != nil {
		t.Fatal(err)
	}
	defer check.Close()
	got := make([]byte, size)
	if n, err := check.ReadAt(got, 0); n != size || err != nil || !bytes.Equal(got, stored) {
		t.Errorf("another client reads %d bytes, %v, or others", n, err)
	}
	m.Close()
	if err := c.Null(t.Context()); err != nil { // the memory is given back on the connection's loop
		t.Error(err)
	}
	if after := rdmatest.DMABufReferences(t, fd); after != before {
		t.Errorf("%d references, %d before", after, before)
	}
}

var randomly = rand.NewChaCha8([32]byte{7})

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = randomly.Read(b)
	return b
}
