//go:build linux

package netns

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Space is a network namespace, and a thread in it.
type Space struct {
	file *os.File
	work chan func()
}

// New makes a namespace whose loopback interface is up. It skips the test where that is not
// allowed.
func New(t testing.TB) *Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("network namespaces are set up by ip(8), of iproute2, which is not here")
	}
	s := &Space{work: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.file, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
		if err == nil {
			for fn := range s.work {
				fn()
			}
		}
	}()
	if err := <-made; err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	t.Cleanup(func() {
		close(s.work)
		s.file.Close()
	})
	s.IP(t, "link set lo up")
	return s
}

// Do runs fn in the namespace. Sockets that it opens stay there. fn must not end the test.
func (s *Space) Do(fn func()) {
	done := make(chan struct{})
	s.work <- func() {
		defer close(done)
		fn()
	}
	<-done
}

// Run runs a command in the namespace and returns what it printed.
func (s *Space) Run(name string, args ...string) (out string, err error) {
	s.Do(func() {
		b, e := exec.Command(name, args...).CombinedOutput()
		if out = string(b); e != nil {
			err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), e, out)
		}
	})
	return out, err
}

// IP runs ip(8) in the namespace.
func (s *Space) IP(t testing.TB, words string) {
	t.Helper()
	if _, err := s.Run("ip", strings.Fields(words)...); err != nil {
		t.Fatal(err)
	}
}

// Join makes a link between the interface near of s and the interface far of the other namespace,
// and brings both up. It skips the test where the kernel has no veth.
func (s *Space) Join(t testing.TB, near string, other *Space, far string, mtu int) {
	t.Helper()
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), other.file.Fd())
	m := fmt.Sprint(mtu)
	_, err := s.Run("ip", "link", "add", "name", near, "mtu", m, "type", "veth", "peer", "name", far, "mtu", m, "netns",
		path)
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "Unknown device type"), strings.Contains(err.Error(), "not supported"):
		t.Skipf("the kernel has no virtual Ethernet: %v", err)
	default:
		t.Fatal(err)
	}
	s.IP(t, "link set "+near+" up")
	other.IP(t, "link set "+far+" up")
}

// The interfaces of a Pair.
const (
	Left  = "veth-left"
	Right = "veth-right"
)

// Pair makes two namespaces with a link between them, whose ends have the addresses a and b.
func Pair(t testing.TB, mtu int, a, b []string) (left, right *Space) {
	t.Helper()
	left, right = New(t), New(t)
	left.Join(t, Left, right, Right, mtu)
	for _, addr := range a {
		left.Addr(t, addr, Left)
	}
	for _, addr := range b {
		right.Addr(t, addr, Right)
	}
	return left, right
}

// Addr gives an interface an address with its prefix length, which can be used at once.
func (s *Space) Addr(t testing.TB, addr, dev string) {
	t.Helper()
	words := "addr add " + addr + " dev " + dev
	if strings.Contains(addr, ":") {
		words += " nodad"
	}
	s.IP(t, words)
}
