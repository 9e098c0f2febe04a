//go:build rdmacore && linux && cgo

package verbs_test

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rdmatest"
	"github.com/rstored/rstored/rdma/verbs"
)

// TestMain raises the limit of locked memory: siw counts the memory that the tests register, also
// for root.
func TestMain(m *testing.M) {
	inf := syscall.Rlimit{Cur: ^uint64(0), Max: ^uint64(0)}
	_ = syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &inf)
	os.Exit(m.Run())
}

// addrs returns addresses of RDMA devices that reach each other, from RDMA_TEST_ADDRS. The cases of
// the guests set it, because the kernel of this machine may have no such devices.
func addrs(t testing.TB) (out []netip.Addr) {
	t.Helper()
	text := os.Getenv("RDMA_TEST_ADDRS")
	if text == "" {
		t.Skip("RDMA_TEST_ADDRS names no addresses of RDMA devices: the guests' cases do")
	}
	for _, s := range strings.Split(text, ",") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			t.Fatalf("RDMA_TEST_ADDRS: %v", err)
		}
		out = append(out, a)
	}
	return out
}

// provider opens devices on the addresses in turn.
func provider(cfg verbs.Config, at []netip.Addr) rdmatest.Provider {
	var next atomic.Uint32
	return func(t testing.TB) rdma.Device {
		t.Helper()
		c := cfg
		c.Addr = at[int(next.Add(1)-1)%len(at)]
		d, err := verbs.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() }) // fails if the test has closed it
		return d
	}
}

// TestConformance runs the suite for providers.
func TestConformance(t *testing.T) {
	at := addrs(t)
	for _, c := range []struct {
		name string
		cfg  verbs.Config
	}{
		{"a loop", verbs.Config{}},
		{"4 loops", verbs.Config{Loops: 4}},
		{"a loop that polls", verbs.Config{BusyPoll: true}},
	} {
		t.Run(c.name, func(t *testing.T) { rdmatest.Run(t, provider(c.cfg, at)) })
	}
}

// TestManyQueues: a queue can be made at every offset at which the kernel maps it. libsiw fails at
// one offset (occupy).
func TestManyQueues(t *testing.T) {
	at := addrs(t)
	d := provider(verbs.Config{}, at)(t)
	l := d.Loops()[0]
	done := make(chan struct{})
	l.Submit(func() {
		defer close(done)
		for i := range 100 {
			c, err := d.CreateCQ(l, rdma.CQOptions{Depth: 1})
			if err != nil {
				t.Errorf("queue %d: %v", i, err)
				return
			}
			defer c.Close()
		}
	})
	<-done
}

// TestByName: a device that is opened by its name has the address by which others reach it.
func TestByName(t *testing.T) {
	at := addrs(t)
	first, err := verbs.Open(verbs.Config{Addr: at[0]})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	d, err := verbs.Open(verbs.Config{Device: first.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Addr() != at[0] {
		t.Errorf("%s is open on %v, want %v", d.Name(), d.Addr(), at[0])
	}
	for _, name := range []string{"", "nosuch0", "../../net/eth0"} {
		if d, err := verbs.Open(verbs.Config{Device: name}); err == nil {
			t.Errorf("%q was opened: %s", name, d.Name())
		}
	}
	if _, err := verbs.Open(verbs.Config{Device: "nosuch0"}); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("a device that there is not: %v", err)
	}
}
