package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Listen is an address to serve on. An unspecified address (or none) means
// every address of the host.
type Listen struct {
	Addr netip.Addr // invalid: every address
	Port uint16
}

// ParseListen reads ADDR:PORT, [ADDR]:PORT or :PORT. Names are not resolved:
// which address a server listens on should not depend on a name service.
func ParseListen(s string) (Listen, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return Listen{}, fmt.Errorf("%q is not ADDR:PORT", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Listen{}, fmt.Errorf("%q: %q is not a port from 1 to 65535", s, port)
	}
	l := Listen{Port: uint16(n)}
	if host == "" || host == "*" {
		return l, nil
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return Listen{}, fmt.Errorf("%q: %q is not an IP address", s, host)
	}
	if a = a.Unmap(); !a.IsUnspecified() {
		l.Addr = a
	}
	return l, nil
}

// Any reports whether the listener is for every address of the host.
func (l Listen) Any() bool { return !l.Addr.IsValid() }

func (l Listen) String() string {
	if l.Any() {
		return fmt.Sprintf(":%d", l.Port)
	}
	return netip.AddrPortFrom(l.Addr, l.Port).String()
}
