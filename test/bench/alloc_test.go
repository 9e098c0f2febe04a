package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// stores are those whose calls are counted.
func stores(t *testing.T) map[string]blockstore.FS {
	t.Helper()
	disk, err := posixfs.Open(t.TempDir(), posixfs.Options{MapAfter: 1}) // lent, where that can be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = disk.Close() })
	return map[string]blockstore.FS{"memfs": memfs.New(memfs.Options{RootMode: 0o777}), "posixfs": disk}
}

// file makes a file of n bytes in the root and returns its handle and the root's.
func file(t testing.TB, c *client.Client, name string, data []byte) (h, root client.Handle) {
	t.Helper()
	ctx := t.Context()
	r, err := c.Resolve(ctx, "/")
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Create(ctx, r.Handle, name, blockstore.Unchecked, &blockstore.SetAttr{}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(data); off += client.TransferMax {
		part := data[off:min(off+client.TransferMax, len(data))]
		if _, err := c.Write(ctx, f.Handle, part, uint64(off), blockstore.Unstable); err != nil {
			t.Fatal(err)
		}
	}
	return f.Handle, r.Handle
}

// TestAllocations holds how many allocations a call takes in the steady state, client,
// both carriers and server together. Over RDMA the client opens its memory to the server
// for each READ and WRITE that does not travel in a message, in regions that it keeps.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector sync.Pool forgets on purpose")
	}
	ctx := t.Context()
	for store, fs := range stores(t) {
		dials := serve(t, fs)
		// With a client of version 4 there, files may be delegated.
		four := client.New(client.Config{
			Version: client.Version42, Peer: "server", Dial: dials["tcp"],
			Cred: &rpc.Cred{Flavor: rpc.AuthSys},
		})
		t.Cleanup(func() { _ = four.Close() })
		file(t, four, "another", nil)
		for _, transport := range []string{"rdma", "tcp"} {
			c := client.New(client.Config{
				Version: client.Version3, Peer: "server", Dial: dials[transport],
				Cred: &rpc.Cred{Flavor: rpc.AuthSys, Groups: []uint32{1, 2}},
			})
			t.Cleanup(func() { _ = c.Close() })
			name := "file-" + transport
			h, root := file(t, c, name, make([]byte, 4<<20))
			raw := func(proc uint32, args func(*xdr.Encoder)) func() error {
				var status uint32
				r := rpc.Request{
					Prog: nfs3.Program, Vers: nfs3.Version, Proc: proc, Cred: &rpc.Cred{Flavor: rpc.AuthSys}, Args: args,
					Res: func(d *xdr.Decoder) error { status = d.Uint32(); return d.Err() },
				}
				return func() error {
					r.XID = 0
					if err := c.RPC().Call(ctx, &r); err != nil {
						return err
					}
					if status != 0 {
						return fmt.Errorf("status %d", status)
					}
					return nil
				}
			}
			c4 := client.New(client.Config{
				Version: client.Version42, Peer: "server", Dial: dials[transport],
				Cred: &rpc.Cred{Flavor: rpc.AuthSys},
			})
			t.Cleanup(func() { _ = c4.Close() })
			h4, _ := file(t, c4, "file4-"+transport, make([]byte, 2<<20))
			read := func(c *client.Client, h client.Handle, n int) func() error {
				p := make([]byte, n)
				return func() error {
					k, _, err := c.Read(ctx, h, p, 4096)
					if err == nil && k != n {
						err = errors.New("short")
					}
					return err
				}
			}
			write := func(c *client.Client, h client.Handle, n int) func() error {
				p := make([]byte, n)
				return func() error {
					w, err := c.Write(ctx, h, p, 4096, blockstore.Unstable)
					if err == nil && w.N != n {
						err = errors.New("short")
					}
					return err
				}
			}
			for _, op := range []struct {
				name string
				do   func() error
				most int
			}{
				{"GETATTR", raw(nfs3.ProcGetAttr, func(e *xdr.Encoder) { nfs3.EncodeHandle(e, h) }), 0},
				{"LOOKUP", raw(nfs3.ProcLookup, func(e *xdr.Encoder) {
					nfs3.EncodeHandle(e, root)
					e.String(name)
				}), 1}, // the name
				{"READ of 512 bytes", read(c, h, 512), 0},
				{"READ of 4 KiB", read(c, h, 4<<10), 0},
				{"READ of 1 MiB", read(c, h, 1<<20), 0},
				{"WRITE of 512 bytes", write(c, h, 512), 0},
				{"WRITE of 4 KiB", write(c, h, 4<<10), 0},
				{"WRITE of 1 MiB", write(c, h, 1<<20), 0},
				{"READ of 4 KiB in version 4.2", read(c4, h4, 4<<10), 0},
				{"WRITE of 4 KiB in version 4.2", write(c4, h4, 4<<10), 0},
			} {
				t.Run(store+"/"+transport+"/"+op.name, func(t *testing.T) {
					do := func() {
						if err := op.do(); err != nil {
							t.Fatal(err)
						}
					}
					for range 200 { // buffers, caches and queues come to their sizes
						do()
					}
					if n := testing.AllocsPerRun(400, do); n > float64(op.most) {
						t.Errorf("%v allocations, at most %d are allowed", n, op.most)
					}
				})
			}
		}
	}
}

// TestGivenUpCalls has many callers who lose patience at random: what they give up never
// turns up in another call, though calls use each other's memory.
func TestGivenUpCalls(t *testing.T) {
	const (
		callers = 16
		calls   = 300
		blocks  = 64
		block   = 8 << 10
	)
	data := make([]byte, blocks*block)
	for i := range data {
		data[i] = byte(i / block * 3)
	}
	dials := serve(t, memfs.New(memfs.Options{RootMode: 0o777}))
	for _, tc := range []struct {
		name, transport string
		version         client.Version
	}{
		{"rdma", "rdma", client.Version3},
		{"tcp", "tcp", client.Version3},
		{"rdma-4.2", "rdma", client.Version42},
		{"tcp-4.2", "tcp", client.Version42},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := client.New(client.Config{
				Version: tc.version, Peer: "server", Dial: dials[tc.transport],
				Cred: &rpc.Cred{Flavor: rpc.AuthSys},
			})
			t.Cleanup(func() { _ = c.Close() })
			h, _ := file(t, c, "file-"+tc.name, data)
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(1, uint64(i)))
					p := make([]byte, block)
					for range calls {
						at := rnd.IntN(blocks)
						n := 1 + rnd.IntN(block)
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(2000))*time.Microsecond)
						if rnd.IntN(2) == 0 {
							cancel()
							ctx, cancel = context.WithCancel(t.Context())
						}
						clear(p)
						want := data[at*block:][:n]
						got, _, err := c.Read(ctx, h, p[:n], uint64(at*block))
						if err == nil {
							var w client.Written
							if w, err = c.Write(ctx, h, want, uint64(at*block), blockstore.Unstable); err == nil && w.N != n {
								t.Errorf("wrote %d of %d bytes", w.N, n)
							}
							if got != n || !bytes.Equal(p[:n], want) {
								t.Errorf("block %d: %d of %d bytes, or others", at, got, n)
							}
						}
						cancel()
						if err != nil && !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("block %d: %v", at, err)
							return
						}
						// Whose memory it is again: nobody writes to it.
						for i := range p {
							p[i] = 0xee
						}
						for range rnd.IntN(8) {
							runtime.Gosched()
						}
						for i := range p {
							if p[i] != 0xee {
								t.Errorf("memory changed after its call")
								return
							}
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
