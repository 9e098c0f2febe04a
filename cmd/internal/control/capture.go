package control

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
)

// CaptureSpec selects the packets of a capture. The zero value selects all packets of all devices
// in user space, whole, until the client closes the connection.
type CaptureSpec struct {
	Device  string     // address; empty for all devices in user space
	Peer    netip.Addr // to and from this host only, if valid
	QPN     uint32     // of this queue pair of the server only, in both directions; 0 for all
	Packets int        // ends after so many; 0 without end
	Snap    int        // bytes kept of each packet, from the IP header on; 0 for all
}

func (c *CaptureSpec) values() url.Values {
	v := url.Values{"device": {c.Device}}
	if c.Peer.IsValid() {
		v.Set("peer", c.Peer.String())
	}
	for k, n := range map[string]int{"qpn": int(c.QPN), "packets": c.Packets, "snap": c.Snap} {
		if n != 0 {
			v.Set(k, strconv.Itoa(n))
		}
	}
	return v
}

func parseCapture(form func(string) string) (c CaptureSpec, err error) {
	c.Device = form("device")
	if s := form("peer"); s != "" {
		if c.Peer, err = netip.ParseAddr(s); err != nil {
			return c, fmt.Errorf("peer: %w", err)
		}
	}
	number := func(name string, bits int) int {
		s := form(name)
		if s == "" || err != nil {
			return 0
		}
		n, e := strconv.ParseUint(s, 0, bits)
		if e != nil {
			err = fmt.Errorf("%s: %w", name, e)
		}
		return int(n)
	}
	c.QPN, c.Packets, c.Snap = uint32(number("qpn", 24)), number("packets", 31), number("snap", 31)
	return c, err
}
