package e2e

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// TestFaultDescriptors lets a daemon have few file descriptors, has idle connections take
// all that there are for connections, and works with far more files than the rest: no
// call fails, further connections are closed with a line in the log, and when some go others
// are let in.
func TestFaultDescriptors(t *testing.T) {
	const limit, files = 256, 300
	d := newDaemon(t)
	d.stop(syscall.SIGTERM)
	d.nofile = limit
	d.start()
	at := net.JoinHostPort(d.addr.String(), "2049")
	carriers := map[string]*client.Client{"rdma": d.client("rdma"), "tcp": d.client("tcp")}
	for name, c := range carriers {
		if _, err := c.Resolve(t.Context(), "/data"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var idle []net.Conn
	t.Cleanup(func() {
		for _, c := range idle {
			c.Close()
		}
	})
	for range limit {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	// The kernel has made all of them; the daemon closes those that it has no room for.
	refused := func() float64 { n, _ := counter(d.stats(), "tcp_refused"); return n }
	for deadline := time.Now().Add(30 * time.Second); refused() < limit-limit/4; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v connections were refused", refused())
		}
	}
	for name, c := range carriers {
		root, err := c.Resolve(t.Context(), "/data")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for pass := range 2 {
			for i := range files {
				file := fmt.Sprint(name, i)
				if pass == 0 {
					o, err := c.Create(t.Context(), root.Handle, file, blockstore.Guarded, &blockstore.SetAttr{},
						[nfs3.VerifierLen]byte{})
					if err != nil {
						t.Fatalf("%s: creating file %d: %v", name, i, err)
					}
					if _, err := c.Write(t.Context(), o.Handle, []byte(file), 0, blockstore.Unstable); err != nil {
						t.Fatalf("%s: writing file %d: %v", name, i, err)
					}
					continue
				}
				if _, err := c.Lookup(t.Context(), root.Handle, file); err != nil {
					t.Fatalf("%s: file %d: %v", name, i, err)
				}
			}
		}
	}
	if log := d.log.String(); strings.Contains(log, "too many open files") || !strings.Contains(log, "file descriptors") {
		t.Errorf("the log says:\n%s", tail(log, 2000))
	}
	for _, c := range idle {
		c.Close()
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, err := d.client("tcp").Resolve(t.Context(), "/data")
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the idle ones are gone: %v", err)
		}
	}
}
