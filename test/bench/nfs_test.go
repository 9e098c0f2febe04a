// Package bench measures NFS from the Go client's call to the store in memory and
// back, over RDMA and over TCP, and says in the same run what the machine's TCP does
// with messages of the same size. Client and server share a process and its cores.
//
// What rdma alone does is in the benchmarks of rdma/roce, with bare UDP and TCP
// beside it.
package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

const fileSize = 64 << 20

// serve exports a store over both transports, in versions 3 and 4 as the daemon does, and
// returns how to dial each.
func serve(b testing.TB, fs blockstore.FS) map[string]func(context.Context) (rpc.Client, error) {
	b.Helper()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	table := nfs.NewTable(nil)
	must(table.Add(&nfs.Export{
		ID: 1, Pseudo: "/", FS: fs,
		Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Squash: nfs.NoRootSquash}},
	}))
	cfg := nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("the secret of the handles"))}
	four := nfs4.New(nfs4.Config{Config: cfg, Identity: []byte("bench"), Boot: 1, Locks: lock.New(0)})
	cfg.Delegations, cfg.Shares = four, four
	srv := rpc.NewServer(rpc.ServerConfig{Programs: append(nfs3.Programs(cfg), four.Programs()...)})
	dev, err := roce.Open(roce.Config{})
	must(err)
	l, err := rpcrdma.Serve(dev, 20049, srv, rpcrdma.Config{})
	must(err)
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	t := tcp.Serve(nl, srv)
	near, err := roce.Open(roce.Config{})
	must(err)
	b.Cleanup(func() {
		_ = near.Close()
		_ = l.Close()
		_ = t.Close()
		srv.Close()
		_ = dev.Close()
	})
	return map[string]func(context.Context) (rpc.Client, error){
		"rdma": func(ctx context.Context) (rpc.Client, error) {
			return rpcrdma.Dial(ctx, near, netip.AddrPortFrom(dev.Addr(), 20049), rpcrdma.ClientConfig{})
		},
		"tcp": func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, nl.Addr().String()) },
	}
}

// BenchmarkNFS reads and writes a file that is in the store's memory. of-tcp is the
// share of what bare TCP over loopback moves in messages of 1 MiB.
func BenchmarkNFS(b *testing.B) {
	ctx := context.Background()
	limit := bareTCP(b)
	b.Logf("bare TCP %.0f MB/s", limit/1e6)
	dials := serve(b, memfs.New(memfs.Options{RootMode: 0o777}))
	for _, transport := range []string{"rdma", "tcp"} {
		c := client.New(client.Config{
			Version: client.Version3, Peer: "server", Dial: dials[transport],
			Cred: &rpc.Cred{Flavor: rpc.AuthSys},
		})
		b.Cleanup(func() { _ = c.Close() })
		root, err := c.Resolve(ctx, "/")
		if err != nil {
			b.Fatal(err)
		}
		f, err := c.Create(ctx, root.Handle, "file-"+transport, blockstore.Unchecked, &blockstore.SetAttr{}, [8]byte{})
		if err != nil {
			b.Fatal(err)
		}
		for off := uint64(0); off < fileSize; off += client.TransferMax {
			if _, err := c.Write(ctx, f.Handle, make([]byte, client.TransferMax), off, blockstore.Unstable); err != nil {
				b.Fatal(err)
			}
		}
		for _, op := range []struct {
			name string
			do   func(p []byte, off uint64) (int, error)
		}{
			{"READ", func(p []byte, off uint64) (int, error) {
				n, _, err := c.Read(ctx, f.Handle, p, off)
				return n, err
			}},
			{"WRITE", func(p []byte, off uint64) (int, error) {
				w, err := c.Write(ctx, f.Handle, p, off, blockstore.Unstable)
				return w.N, err
			}},
		} {
			for _, size := range []int{4 << 10, 1 << 20} {
				for _, flight := range []int{1, 16} {
					b.Run(fmt.Sprintf("%s/%s/%dKiB/%d-in-flight", transport, op.name, size>>10, flight), func(b *testing.B) {
						b.SetBytes(int64(size))
						b.ReportAllocs()
						var next atomic.Int64
						var wg sync.WaitGroup
						fail := make(chan error, flight)
						bufs := make([][]byte, flight)
						for i := range bufs {
							bufs[i] = make([]byte, size)
						}
						b.ResetTimer()
						for i := range flight {
							wg.Go(func() {
								for {
									k := next.Add(1) - 1
									if k >= int64(b.N) {
										return
									}
									off := uint64(k*int64(size)) % fileSize
									if n, err := op.do(bufs[i], off); err != nil || n != size {
										fail <- fmt.Errorf("%d of %d bytes: %w", n, size, err)
										return
									}
								}
							})
						}
						wg.Wait()
						b.StopTimer()
						select {
						case err := <-fail:
							b.Fatal(err)
						default:
						}
						if s := b.Elapsed().Seconds(); s > 0 {
							b.ReportMetric(float64(size)*float64(b.N)/s/limit, "of-tcp")
						}
					})
				}
			}
		}
	}
}

// bareTCP is the rate of TCP over loopback in bytes per second, one way, 1 MiB at
// a time.
func bareTCP(b *testing.B) float64 {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		buf := make([]byte, 1<<20)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return
			}
			if _, err := c.Write(buf[:1]); err != nil {
				return
			}
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	// Sixteen messages are under way, as in the benchmark it is held against.
	const messages, flight = 1024, 16
	buf, ack := make([]byte, 1<<20), make([]byte, 1)
	start := time.Now()
	acks := 0
	for i := range messages + flight {
		if i >= flight {
			if _, err := io.ReadFull(c, ack); err != nil {
				b.Fatal(err)
			}
			acks++
		}
		if i < messages {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	return float64(acks) * (1 << 20) / time.Since(start).Seconds()
}
