package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// usage is the daemon's resident memory in bytes and its processor time.
func (d *daemon) usage() (resident int64, cpu time.Duration) {
	d.t.Helper()
	proc := "/proc/" + strconv.Itoa(d.cmd.Process.Pid)
	statm, err := os.ReadFile(proc + "/statm")
	if err != nil {
		d.t.Fatal(err)
	}
	stat, err := os.ReadFile(proc + "/stat")
	if err != nil {
		d.t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	// Behind the name in parentheses; the 12th and 13th field then, in ticks.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, x := range f[11:13] {
		ticks, err := strconv.ParseInt(x, 10, 64)
		if err != nil {
			d.t.Fatal(err)
		}
		const perSecond = 100 // USER_HZ, the same on every Linux
		cpu += time.Duration(ticks) * time.Second / perSecond
	}
	return pages * int64(os.Getpagesize()), cpu
}

// TestThousandConnections: a thousand connections over real sockets, of clients on
// loopback addresses of their own; idle, and then all at work at once. What the daemon
// used is in the log of go test -v.
func TestThousandConnections(t *testing.T) {
	const hosts, each = 8, 125
	d := newDaemon(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 16<<10/16)
	if err := os.WriteFile(filepath.Join(d.export, "f"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	one := d.client("rdma")
	root, err := one.Resolve(t.Context(), "/data")
	if err != nil {
		t.Fatal(err)
	}
	f, err := one.Lookup(t.Context(), root.Handle, "f")
	if err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	var conns []*rpcrdma.Client
	memory, _ := d.usage()
	begin := time.Now()
	atOnce(t, hosts, func(int) error {
		dev, err := roce.Open(roce.Config{})
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = dev.Close() })
		for range each {
			c, err := rpcrdma.Dial(t.Context(), dev, netip.AddrPortFrom(d.addr, 20049), rpcrdma.ClientConfig{Credits: 8})
			if err != nil {
				return err
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
		return nil
	})
	if t.Failed() {
		return
	}
	took := time.Since(begin)
	m, c0 := d.usage()
	const idle = 2 * time.Second
	time.Sleep(idle) // to see what idle connections cost; nothing waits for it
	_, c1 := d.usage()
	t.Logf("%d connections in %v, %.0f a second; %d KiB each when idle, %.1f us of processor time a second each",
		len(conns), took.Round(time.Millisecond), float64(len(conns))/took.Seconds(), (m-memory)/1024/int64(len(conns)),
		float64((c1-c0).Microseconds())/idle.Seconds()/float64(len(conns)))
	if n, _ := counter(d.stats(), "QPs"); n != hosts*each+1 {
		t.Errorf("the daemon has %v queue pairs", n)
	}

	begin = time.Now()
	const rounds = 10
	atOnce(t, len(conns), func(i int) error {
		c := client.New(client.Config{
			Peer: fmt.Sprint("connection ", i), Cred: &rpc.Cred{Flavor: rpc.AuthSys},
			Dial: func(context.Context) (rpc.Client, error) { return conns[i], nil },
		})
		defer func() { _ = c.Close() }()
		got := make([]byte, len(content))
		for range rounds {
			clear(got)
			if n, _, err := c.Read(t.Context(), f.Handle, got, 0); err != nil || n != len(got) || !bytes.Equal(got, content) {
				return fmt.Errorf("connection %d read %d bytes, or others: %w", i, n, err)
			}
		}
		return nil
	})
	m, _ = d.usage()
	t.Logf("then %d READs of %d KiB in %v; %d KiB each", rounds*len(conns), len(content)>>10,
		time.Since(begin).Round(time.Millisecond), (m-memory)/1024/int64(len(conns)))

	// All of them left at the end of their work, but for the first.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		n, _ := counter(d.stats(), "QPs")
		if n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the daemon still has %v queue pairs", n)
		}
	}
	d.stop(syscall.SIGTERM)
}

// atOnce runs f for 0 to n-1 at the same time.
func atOnce(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := f(i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
