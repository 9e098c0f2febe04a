package dial_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// serve exports a memory file system with one file at /data/hello over both
// transports and returns where.
func serve() (rdma, tcpAt string, l *rpcrdma.Listener, stop func()) {
	store := memfs.New(memfs.Options{RootMode: 0o777})
	root, err := store.Root()
	if err != nil {
		log.Fatal(err)
	}
	mode := uint32(0o644)
	h, _, _, err := store.Create(nil, root, "hello", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		log.Fatal(err)
	}
	if _, _, _, err := store.WriteAt(nil, h, []byte(greeting), 0, blockstore.FileSync); err != nil {
		log.Fatal(err)
	}
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{ID: 1, Pseudo: "/data", FS: store}); err != nil {
		log.Fatal(err)
	}
	cfg := nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("the secret of the handles"))}
	four := nfs4.New(nfs4.Config{Config: cfg, Identity: []byte("server"), Boot: 1, Locks: lock.New(0)})
	srv := rpc.NewServer(rpc.ServerConfig{Programs: append(nfs3.Programs(cfg), four.Programs()...)})
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if l, err = rpcrdma.Serve(dev, 20049, srv, rpcrdma.Config{}); err != nil {
		log.Fatal(err)
	}
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	t := tcp.Serve(nl, srv)
	return netip.AddrPortFrom(dev.Addr(), 20049).String(), nl.Addr().String(), l, func() {
		_, _ = l.Close(), t.Close()
		srv.Close()
		_ = dev.Close()
	}
}

const greeting = "Hello, remote memory.\n"

// Read a file into memory that was registered once.
func Example() {
	server, _, _, stop := serve()
	defer stop()
	ctx := context.Background()

	var d dial.Dialer
	defer d.Close()
	f, err := d.Open(ctx, "nfs+rdma://"+server+"/data/hello")
	if err != nil {
		log.Fatal(err)
	}
	u, _ := client.ParseURL("nfs+rdma://" + server)
	m, err := d.Client(u).Register(make([]byte, 1<<20))
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	n, err := f.ReadAt(m.Bytes()[4096:4096+len(greeting)], 0) // lands there by RDMA WRITE
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(m.Bytes()[4096 : 4096+n]))
	// Output: Hello, remote memory.
}

func TestFS(t *testing.T) {
	rdma, tcpAt, l, stop := serve()
	defer stop()
	for _, version := range []client.Version{client.Version3, client.Version41, client.Version42} {
		for _, url := range []string{"nfs+rdma://" + rdma + "/data", "nfs+tcp://" + tcpAt + "/data"} {
			t.Run(url[:8]+" "+version.String(), func(t *testing.T) {
				d := dial.Dialer{Version: version}
				defer func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				}()
				view, err := d.FS(context.Background(), url)
				if err != nil {
					t.Fatal(err)
				}
				if err := fstest.TestFS(view, "hello"); err != nil {
					t.Error(err)
				}
				if b, err := fs.ReadFile(view, "hello"); string(b) != greeting {
					t.Errorf("%q, %v", b, err)
				}
			})
		}
	}
	if n := len(l.Conns()); n > 1 {
		t.Errorf("%d RDMA connections", n)
	}
	var d dial.Dialer
	if _, err := d.FS(context.Background(), "nfs+rdma://"+rdma+"/nothing"); err == nil {
		t.Error("a path that is not exported was opened")
	}
	if _, err := d.Open(context.Background(), "http://"+rdma); err == nil {
		t.Error("http was dialed")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// sections writes into memory at offsets.
type sections []byte

func (s sections) WriteAt(p []byte, off int64) (int, error) { return copy(s[off:], p), nil }

// TestTransfers: data of any length goes both ways in every version, over RDMA by
// the server's RDMA READs and WRITEs alone.
func TestTransfers(t *testing.T) {
	at, tcpAt, l, stop := serve()
	defer stop()
	ctx := context.Background()
	data := make([]byte, 5<<20+77)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(data)
	for _, version := range []client.Version{client.Version3, client.Version41, client.Version42} {
		for _, url := range []string{"nfs+rdma://" + at, "nfs+tcp://" + tcpAt} {
			name := url[:8] + " " + version.String()
			before := l.Stats()
			d := dial.Dialer{Version: version}
			u, err := client.ParseURL(url)
			if err != nil {
				t.Fatal(err)
			}
			c := d.Client(u)
			root, err := c.Resolve(ctx, "/data")
			if err != nil {
				t.Fatal(name, err)
			}
			for _, n := range []int{0, 1, 3000, 5000, 1 << 20, len(data)} {
				f, err := c.Create(ctx, root.Handle, fmt.Sprint(name[4:], n), blockstore.Guarded, nil, [8]byte{})
				if err != nil {
					t.Fatal(name, err)
				}
				if err := c.Upload(ctx, f.Handle, bytes.NewReader(data), 0, uint64(n), nil); err != nil {
					t.Fatal(name, n, err)
				}
				got := make(sections, n)
				if err := c.Download(ctx, f.Handle, got, 0, uint64(n), nil); err != nil || !bytes.Equal(got, data[:n]) {
					t.Errorf("%s, %d bytes: %v", name, n, err)
				}
			}
			var out bytes.Buffer
			f, err := c.Lookup(ctx, root.Handle, fmt.Sprint(name[4:], len(data)))
			if err != nil {
				t.Fatal(err)
			}
			m, err := c.Register(make([]byte, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			if n, _, err := c.Read(ctx, f.Handle, m.Bytes(), 4096); err != nil ||
				!bytes.Equal(m.Bytes()[:n], data[4096:4096+n]) || n < 1<<19 {
				t.Errorf("%s: %d bytes into registered memory, %v", name, n, err)
			}
			m.Close()
			if _, err := c.Stream(ctx, f.Handle, &out, 0); err != nil || !bytes.Equal(out.Bytes(), data) {
				t.Errorf("%s: stream: %v", name, err)
			}
			long := strings.Repeat("x", 4000)
			if s, err := c.Symlink(ctx, root.Handle, "link "+name[4:], long, nil); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if got, err := c.ReadLink(ctx, s.Handle); err != nil || got != long {
				t.Errorf("%s: %d bytes of a link, %v", name, len(got), err)
			}
			entries := 0
			if err := c.ReadDir(ctx, root.Handle, func(*client.Entry) error { entries++; return nil }); err != nil ||
				entries == 0 {
				t.Errorf("%s: %d entries, %v", name, entries, err)
			}
			if c.Version() != version {
				t.Errorf("%s: version %v", name, c.Version())
			}
			if after := l.Stats(); u.Transport == rpc.TransportRDMA {
				wrote, read := after.RDMAWriteBytes-before.RDMAWriteBytes, after.RDMAReadBytes-before.RDMAReadBytes
				if wrote < uint64(2*len(data)+2<<20) || read < uint64(len(data)+1<<20) {
					t.Errorf("%s: %d bytes by RDMA WRITE, %d by RDMA READ", name, wrote, read)
				}
				if inline := after.InlineBytes - before.InlineBytes; inline > 256<<10 {
					t.Errorf("%s: %d bytes in messages", name, inline)
				}
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
