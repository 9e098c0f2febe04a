package daemon

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// lossy is a link that loses some of what it is to send.
type lossy struct {
	link.Link
	rnd  *rand.Rand
	lose int // one packet of so many
}

func (l *lossy) SendsVolatile() bool { return l.Link.(link.VolatileSender).SendsVolatile() }

func (l *lossy) Stats() udp.Stats { return l.Link.(*udp.Link).Stats() }

func (l *lossy) Send(b *wire.Batch) error {
	kept := b.D[:0]
	for _, d := range b.D {
		if d.PayloadLen < 1024 || l.rnd.IntN(l.lose) > 0 {
			kept = append(kept, d)
		}
	}
	b.D = kept
	return l.Link.Send(b)
}

// mappedServer is a server of one directory whose files are sent from where they are in
// memory, however lately they changed.
type mappedServer struct {
	store *posixfs.FS
	dev   *roce.Device
	l     *rpcrdma.Listener
	dir   string
	at    string
}

func newMappedServer(t *testing.T, cfg roce.Config) *mappedServer {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "rstored")
	if err != nil {
		t.Skip("files are to be where it is known that they can be mapped: ", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return newServerOf(t, dir, cfg)
}

// newServerOf is newMappedServer of the directory dir.
func newServerOf(t *testing.T, dir string, cfg roce.Config) *mappedServer {
	t.Helper()
	err := os.Chmod(dir, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	s := &mappedServer{dir: dir}
	if s.store, err = posixfs.Open(s.dir, posixfs.Options{MapAfter: 1}); err != nil {
		t.Fatal(err)
	}
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{ID: 1, Pseudo: "/data", FS: exports.Guard(s.store)}); err != nil {
		t.Fatal(err)
	}
	nc := nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("the secret of the handles"))}
	four := nfs4.New(nfs4.Config{Config: nc, Identity: []byte("server"), Boot: 1, Locks: lock.New(0)})
	srv := rpc.NewServer(rpc.ServerConfig{Programs: append(nfs3.Programs(nc), four.Programs()...)})
	if s.dev, err = roce.Open(cfg); err != nil {
		t.Fatal(err)
	}
	if s.l, err = rpcrdma.Serve(s.dev, 20049, srv, rpcrdma.Config{}); err != nil {
		t.Fatal(err)
	}
	s.at = "nfs+rdma://" + netip.AddrPortFrom(s.dev.Addr(), 20049).String() + "/data/"
	t.Cleanup(func() {
		if err := s.l.Close(); err != nil {
			t.Error(err)
		}
		srv.Close()
		if err := s.dev.Close(); err != nil {
			t.Error(err)
		}
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// words fills b, which belongs at off of a file, with words that say where they are.
func words(b []byte, off int, file uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], file<<56|uint64(off+i)+1)
	}
}

// notOf finds what is neither such a word nor, if holes may be, zero.
func notOf(b []byte, off int, file uint64, holes bool) error {
	for i := 0; i+8 <= len(b); i += 8 {
		if v := binary.LittleEndian.Uint64(b[i:]); v != file<<56|uint64(off+i)+1 && (v != 0 || !holes) {
			return fmt.Errorf("%#x at %#x of file %d", v, off+i, file)
		}
	}
	return nil
}

// TestReadOfChangingFiles reads files over RDMA which are cut off and written again all
// the time. Nobody's connection may end, nor anything else, and what is read is of
// the file, or was cut off.
func TestReadOfChangingFiles(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  roce.Config
	}{
		{"nothing lost", roce.Config{}},
		{"packets lost", roce.Config{Wrap: func(i int, l link.Link) link.Link {
			return &lossy{l, rand.New(rand.NewPCG(uint64(i), 5)), 500}
		}}},
	} {
		t.Run(c.name, func(t *testing.T) { readChanging(t, c.cfg) })
	}
}

func readChanging(t *testing.T, cfg roce.Config) {
	const size, io = 4 << 20, 1 << 20
	s := newMappedServer(t, cfg)
	versions := []client.Version{client.Version3, client.Version42}
	var files [3]*os.File // the last is left alone
	all := make([]byte, size)
	for i := range files {
		f, err := os.OpenFile(filepath.Join(s.dir, fmt.Sprint(i)), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
		// Read lately, so that no READ has that to note.
		if err := os.Chtimes(f.Name(), time.Now().Add(time.Hour), time.Time{}); err != nil {
			t.Fatal(err)
		}
		words(all, 0, uint64(i))
		if _, err := f.WriteAt(all, 0); err != nil {
			t.Fatal(err)
		}
	}
	var stop atomic.Bool
	var wg, writers sync.WaitGroup
	for i := range files[:2] {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 2))
			b := make([]byte, size)
			words(b, 0, uint64(i))
			for last := false; !last; {
				last = stop.Load() // the file is whole then
				cut := rnd.IntN(size) &^ 7
				if err := files[i].Truncate(int64(cut)); err != nil {
					t.Error(err)
				}
				if _, err := files[i].WriteAt(b[cut:], int64(cut)); err != nil {
					t.Error(err)
				}
				if rnd.IntN(2) == 0 { // the same again, which tears nothing
					if _, err := files[i].WriteAt(b, 0); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	reads := func(version client.Version, i int, enough func(n int) bool, holes bool) {
		d := dial.Dialer{Version: version}
		defer d.Close()
		f, err := d.Open(t.Context(), s.at+fmt.Sprint(i))
		if err != nil {
			t.Error(err)
			return
		}
		rnd := rand.New(rand.NewPCG(uint64(i), 3))
		b := make([]byte, io)
		for n := 0; !enough(n); n++ {
			off := rnd.IntN(size-io) &^ 7
			k, err := f.ReadAt(b, int64(off))
			if k < io && !holes {
				t.Errorf("version %v, file %d: %d bytes at %d: %v", version, i, k, off, err)
				return
			}
			if err := notOf(b[:k], off, uint64(i), holes); err != nil {
				t.Errorf("version %v: %v", version, err)
				return
			}
		}
	}
	began := time.Now()
	for _, v := range versions {
		for i := range files {
			wg.Go(func() {
				reads(v, i, func(n int) bool {
					// Until both ways of a file's changing have been met, within reason.
					return n >= 40 && (n >= 1000 || time.Since(began) > 2*time.Second)
				}, i < 2)
			})
		}
	}
	wg.Wait()
	stop.Store(true)
	writers.Wait()
	for _, v := range versions {
		was := s.l.Stats().LentBytes
		for i := range files {
			reads(v, i, func(n int) bool { return n >= 8 }, false)
		}
		if s.l.Stats().LentBytes == was {
			t.Errorf("version %v: nothing was sent from where it is", v)
		}
	}
	link, n := s.dev.Stats().Link, s.store.Counters()
	t.Logf("%d READs mapped, %d faults, %d packets copied", n.Mapped, link.TxFaults, link.TxCopied)
	if n.Mapped == 0 {
		t.Error("nothing was sent from where it is")
	}
	if link.TxCopied == 0 {
		t.Error("no packet was sent from a copy")
	}
	if link.TxVoid > 0 {
		t.Errorf("%d packets of which nothing was left", link.TxVoid)
	}
	if st := s.l.Stats(); st.Connections != uint64(2*len(versions)*len(files)) ||
		st.Errors["rpcrdma_write_failed"]+st.Errors["rpcrdma_send_failed"] > 0 {
		t.Errorf("%d connections, errors %v", st.Connections, st.Errors)
	}
}
