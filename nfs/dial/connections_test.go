package dial_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestConnections: one client with several connections moves data of many calls at once, in and out
// of memory that is registered once. The server sees as many connections as the client may have.
func TestConnections(t *testing.T) {
	at, tcpAt, l, stop := serve()
	defer stop()
	const most, files, size = 4, 8, 3<<20 + 5
	for _, version := range []client.Version{client.Version3, client.Version42} {
		for _, url := range []string{"nfs+rdma://" + at, "nfs+tcp://" + tcpAt} {
			t.Run(url[:8]+" "+version.String(), func(t *testing.T) {
				ctx := context.Background()
				d := dial.Dialer{Version: version, Connections: most}
				defer func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				}()
				u, err := client.ParseURL(url)
				if err != nil {
					t.Fatal(err)
				}
				c := d.Client(u)
				root, err := c.Resolve(ctx, "/data")
				if err != nil {
					t.Fatal(err)
				}
				m, err := c.Register(make([]byte, files*size))
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				one := func(i int) error {
					data := make([]byte, size)
					_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(data)
					part := m.Bytes()[i*size:][:size]
					name := fmt.Sprint(url[4:8], version, i)
					f, err := c.Create(ctx, root.Handle, name, blockstore.Guarded, nil, [8]byte{})
					if err != nil {
						return err
					}
					if err := c.Upload(ctx, f.Handle, bytes.NewReader(data), 0, size, nil); err != nil {
						return err
					}
					clear(part)
					for n := 0; n < size; {
						k, _, err := c.Read(ctx, f.Handle, part[n:], uint64(n))
						if err != nil || k == 0 {
							return fmt.Errorf("%d bytes at %d: %w", k, n, err)
						}
						n += k
					}
					if !bytes.Equal(part, data) {
						return fmt.Errorf("%s: other data came back", name)
					}
					return c.Remove(ctx, root.Handle, name)
				}
				// A connection is made when a call finds the others in use, which is up to the scheduler.
				for c.Stats().Links < most && !t.Failed() {
					var wg sync.WaitGroup
					for i := range files {
						wg.Go(func() {
							if err := one(i); err != nil {
								t.Error(err)
							}
						})
					}
					wg.Wait()
				}
				if s := c.Stats(); s.Links != most || s.Resent != 0 {
					t.Errorf("%+v", s)
				}
				if n := len(l.Conns()); u.Transport == rpc.TransportRDMA && n != most {
					t.Errorf("the server has %d connections", n)
				}
			})
		}
	}
}
