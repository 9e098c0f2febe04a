//go:build rdmacore && linux && cgo

package verbs_test

import (
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rdmatest"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
)

// The two networks of the tests between providers. rdma_rxe has UDP port 4791 of its network
// namespace, so the software device is in another namespace, at the far end of a veth pair.
const (
	farSpace  = "rstored-soft"
	nearLink  = "cross0"
	farLink   = "cross1"
	nearRXE   = "rxe_cross0"
	nearAddrs = "10.97.0.10 10.97.0.30 10.97.0.50 10.97.0.70"
	farAddrs  = "10.97.0.20 10.97.0.40 10.97.0.60 10.97.0.80"
)

func command(t testing.TB, words string) {
	t.Helper()
	w := strings.Fields(words)
	if out, err := exec.Command(w[0], w[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", words, err, out)
	}
}

// wire makes the far namespace, and rxe on the near end.
func wire(t *testing.T) {
	t.Helper()
	command(t, "ip netns add "+farSpace)
	t.Cleanup(func() { command(t, "ip netns del "+farSpace) }) // which removes the veth pair too
	command(t, "ip link add "+nearLink+" type veth peer name "+farLink+" netns "+farSpace)
	for _, a := range strings.Fields(nearAddrs) {
		command(t, "ip addr add "+a+"/24 dev "+nearLink)
	}
	for _, a := range strings.Fields(farAddrs) {
		command(t, "ip -n "+farSpace+" addr add "+a+"/24 dev "+farLink)
	}
	command(t, "ip link set "+nearLink+" up")
	command(t, "ip -n "+farSpace+" link set "+farLink+" up")
	command(t, "ip -n "+farSpace+" link set lo up")
	command(t, "rdma link add "+nearRXE+" type rxe netdev "+nearLink)
	t.Cleanup(func() { command(t, "rdma link delete "+nearRXE) })
}

// openFar opens a software device in the far namespace: its sockets stay there.
func openFar(t testing.TB, cfg roce.Config) rdma.Device {
	t.Helper()
	type result struct {
		d   *roce.Device
		err error
	}
	got := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		f, err := os.Open("/run/netns/" + farSpace)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			_ = f.Close()
		}
		var r result
		if r.err = err; err == nil {
			r.d, r.err = roce.Open(cfg)
		}
		got <- r
	}()
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { _ = r.d.Close() })
	return r.d
}

// TestCrossed runs the suite between the two providers: the devices that a test opens are of one
// provider and of the other in turn.
func TestCrossed(t *testing.T) {
	addrs(t)
	if strings.HasPrefix(os.Getenv("RDMA_TEST_DEVICE"), "siw") {
		t.Skip("iWARP does not speak with RoCE")
	}
	wire(t)
	near, far := strings.Fields(nearAddrs), strings.Fields(farAddrs)
	for i, name := range []string{"kernel first", "software first"} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Uint32
			rdmatest.Run(t, func(t testing.TB) rdma.Device {
				t.Helper()
				k := int(n.Add(1) - 1)
				if (k+i)%2 == 1 {
					return openFar(t, roce.Config{Addr: netip.MustParseAddr(far[k/2%len(far)])})
				}
				d, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(near[k/2%len(near)])})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = d.Close() })
				return d
			})
		})
	}
}
