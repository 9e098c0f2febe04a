package config

import "net/netip"

// ParseNetworks reads a list of prefixes, addresses and "*" for everyone.
func ParseNetworks(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		c := Client{CIDR: s}
		if s != Everyone {
			p, err := parsePrefix(s)
			if err != nil {
				return nil, err
			}
			c.CIDR = p.String()
		}
		out = append(out, c.Prefixes()...)
	}
	return out, nil
}
