package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rstored/rstored/rdma/provider"
)

// Listen is an address to serve on. An unspecified address (or none) means
// every address of the host.
type Listen struct {
	Addr netip.Addr // invalid: every address, or Device's
	Port uint16
	// For RDMA only: the provider of the device, empty for the setting rdma_provider; and the name
	// of a kernel device in place of an address.
	Provider provider.Kind
	Device   string
}

// schemeMark is between a provider and an address.
const schemeMark = "://"

// ParseRDMAListen reads the forms of ParseListen with PROVIDER:// before them, and
// PROVIDER://DEVICE:PORT.
func ParseRDMAListen(s string) (Listen, error) {
	kind, rest, ok := strings.Cut(s, schemeMark)
	if !ok {
		kind, rest = "", s
	}
	var k provider.Kind
	if ok {
		var err error
		if k, err = provider.Parse(kind); err != nil || kind == "" {
			return Listen{}, fmt.Errorf("%q: unknown RDMA provider %q: use auto, soft or verbs", s, kind)
		}
	}
	host, port, err := net.SplitHostPort(rest)
	if ok && err == nil && deviceName(host) {
		l, err := ParseListen(net.JoinHostPort("", port))
		if err != nil {
			return l, fmt.Errorf("%q: %w", s, err)
		}
		if k == provider.Soft {
			return l, fmt.Errorf("%q: the provider soft cannot use a device of the kernel such as %s: name an address",
				s, host)
		}
		l.Device, l.Provider = host, provider.Verbs
		return l, nil
	}
	l, err := ParseListen(rest)
	if err != nil && ok {
		err = fmt.Errorf("%q: %w", s, err)
	}
	l.Provider = k
	return l, err
}

// deviceName reports whether s can be the kernel's name of an RDMA device, rather than an address:
// those begin with letters, such as mlx5_0.
func deviceName(s string) bool {
	if s == "" || len(s) >= deviceNameMax || !letter(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !letter(c) && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	_, err := netip.ParseAddr(s)
	return err != nil
}

// deviceNameMax is IB_DEVICE_NAME_MAX.
const deviceNameMax = 64

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// ParseListen reads ADDR:PORT, [ADDR]:PORT or :PORT. It resolves no names, because the addresses of
// a server should not depend on a name service.
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
	if a = a.Unmap(); a != netip.IPv6Unspecified() {
		l.Addr = a
	}
	return l, nil
}

// Any reports whether the listener is for every address of the host, or with the address 0.0.0.0
// for every IPv4 address.
func (l Listen) Any() bool {
	return (!l.Addr.IsValid() || l.Addr.IsUnspecified()) && l.Device == ""
}

// Has reports whether an address of the host is one of the listener's, as far as addresses go.
func (l Listen) Has(a netip.Addr) bool {
	a = a.Unmap()
	return l.Addr == a || l.Any() && (!l.Addr.IsValid() || a.Is4())
}

func (l Listen) String() string {
	s := fmt.Sprintf("%s:%d", l.Device, l.Port)
	if l.Addr.IsValid() {
		s = netip.AddrPortFrom(l.Addr, l.Port).String()
	}
	if l.Provider != "" {
		s = l.Provider.String() + schemeMark + s
	}
	return s
}

// MovingAddresses returns the addresses in RDMAListen and TCPListen, each once. Where nodes share
// the state directory, these move from node to node. Wildcards and names of devices are left out.
func (c *Config) MovingAddresses() (list []netip.Addr) {
	add := func(l Listen, err error) {
		if err == nil && !l.Any() && l.Addr.IsValid() && !slices.Contains(list, l.Addr) {
			list = append(list, l.Addr)
		}
	}
	for _, s := range c.RDMAListen {
		add(ParseRDMAListen(s))
	}
	for _, s := range c.TCPListen {
		add(ParseListen(s))
	}
	return list
}
