package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// parsePartner reads an entry of copy_partners: an address or prefix, or an address with a port. The
// port is 0 if there is none.
func parsePartner(s string) (netip.Prefix, uint16, error) {
	if at, err := netip.ParseAddrPort(s); err == nil && at.Port() != 0 && at.Addr().Zone() == "" {
		a := at.Addr().Unmap()
		return netip.PrefixFrom(a, a.BitLen()), at.Port(), nil
	}
	p, err := parsePrefix(s)
	if err != nil {
		return p, 0, fmt.Errorf("%q is not an address, a prefix such as 10.0.0.0/24, or ADDR:PORT", s)
	}
	return p, 0, nil
}

// CopyPartner reports whether a server at an address takes part in copies between servers.
func (c *Config) CopyPartner(a netip.Addr) bool {
	a = a.Unmap()
	return slices.ContainsFunc(c.CopyPartners, func(s string) bool {
		p, _, err := parsePartner(s)
		return err == nil && p.Contains(a)
	})
}

// CopySource reports whether this server may connect to an address to copy from there. Without a
// port in the entry it may use the ports of NFS, so that nobody can let it look for other services.
func (c *Config) CopySource(at netip.AddrPort) bool {
	a := at.Addr().Unmap()
	return slices.ContainsFunc(c.CopyPartners, func(s string) bool {
		p, port, err := parsePartner(s)
		return err == nil && p.Contains(a) && (at.Port() == port ||
			port == 0 && (at.Port() == TCPPort || at.Port() == RDMAPort))
	})
}

func (c *Config) validateCopyPartners() error {
	for _, s := range c.CopyPartners {
		if _, _, err := parsePartner(s); err != nil {
			return fmt.Errorf("copy_partners: %w", err)
		}
	}
	return nil
}
