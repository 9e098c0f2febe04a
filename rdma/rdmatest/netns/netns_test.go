//go:build linux

package netns

import (
	"net"
	"strings"
	"testing"
)

// TestPair: sockets in one namespace reach the other one. Both differ from the process's namespace.
func TestPair(t *testing.T) {
	a, b := Pair(t, 1400, []string{"192.0.2.1/24", "fd00::1/64"}, []string{"192.0.2.2/24", "fd00::2/64"})
	for _, ip := range []string{"192.0.2.2", "fd00::2"} {
		var l net.Listener
		var err error
		b.Do(func() { l, err = net.Listen("tcp", net.JoinHostPort(ip, "0")) })
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var c net.Conn
		a.Do(func() { c, err = net.Dial("tcp", l.Addr().String()) })
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if out, err := a.Run("ip", "link", "show", Left); err != nil || !strings.Contains(out, "mtu 1400") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := net.InterfaceByName(Left); err == nil {
		t.Error("the link is in the namespace of the process")
	}
}
