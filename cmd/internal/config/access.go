package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// loopback are the networks of the server's own host.
var loopback = []string{"127.0.0.0/8", "::1/128"}

// ownHost returns rules that give the server's own host the rights of rule.
func ownHost(rule Client) []Client {
	list := make([]Client, len(loopback))
	for i, cidr := range loopback {
		list[i] = rule
		list[i].CIDR, list[i].Host = cidr, ""
	}
	return list
}

// Rules returns the rules in force. An export that names no clients is for the server's own host
// alone, with root squashed. "*" names everybody.
func (e *Export) Rules() []Client {
	if len(e.Clients) > 0 {
		return e.Clients
	}
	return ownHost(Client{Squash: RootSquash})
}

// Exposure lists, for the administrator, what the export allows to every host that can reach the
// server. Rules for partitions, and for clients with certificates, do not count. The export must
// have been normalized.
func (e *Export) Exposure() (list []string) {
	if len(e.PKeys) > 0 {
		return nil
	}
	rules := e.Rules()
	all := func(is func(c *Client) bool) bool {
		var nets []netip.Prefix
		for i := range rules {
			c := &rules[i]
			if !is(c) || slices.Equal(c.XprtSec, []string{XprtMutual}) {
				continue
			}
			if c.Host != "" && strings.Trim(c.Host, "*?.") == "" {
				return true // a pattern that every name matches
			}
			nets = append(nets, c.Prefixes()...)
		}
		return slices.ContainsFunc(everywhere, func(p netip.Prefix) bool { return covers(nets, p) })
	}
	if !e.ReadOnly && all(func(c *Client) bool { return !c.ReadOnly }) {
		list = append(list, fmt.Sprintf("export %s: every host that can reach this server may write here; "+
			"name its clients in the place of everybody", e.Pseudo))
	}
	if all(func(c *Client) bool { return c.Squash == NoRootSquash }) {
		list = append(list, fmt.Sprintf("export %s: root of every host that can reach this server is root here "+
			"(no_root_squash); name the clients that need it", e.Pseudo))
	}
	return list
}

// Advice lists probable mistakes in a configuration that was validated, and the Exposure of its
// exports.
func (c *Config) Advice() []string {
	list := slices.Clone(c.Warnings)
	if w := c.ControlTLS.Warning(); w != "" {
		list = append(list, w)
	}
	for i := range c.Exports {
		list = append(list, c.Exports[i].Exposure()...)
	}
	return list
}

// covers reports whether prefixes together have every address of p.
func covers(list []netip.Prefix, p netip.Prefix) bool {
	var within []netip.Prefix
	for _, q := range list {
		switch {
		case !q.Overlaps(p):
		case q.Bits() <= p.Bits():
			return true
		default:
			within = append(within, q)
		}
	}
	if len(within) == 0 {
		return false
	}
	// Only a half that has one of them can be covered, so the depth is that of the longest prefix.
	low, high := halves(p)
	return covers(within, low) && covers(within, high)
}

func halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits() + 1
	b := p.Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	top, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(p.Addr(), bits), netip.PrefixFrom(top, bits)
}

// Confines reports whether the export is stricter than over, the export around it: it refuses a
// client of over, or allows it less. The exports must have been normalized.
func (e *Export) Confines(over *Export) bool {
	mine := e.Rules()
	for _, o := range over.Rules() {
		if !slices.ContainsFunc(mine, func(c Client) bool {
			writes := !c.ReadOnly && !e.ReadOnly || o.ReadOnly || over.ReadOnly
			squash := c.Squash == o.Squash || c.Squash == NoRootSquash || o.Squash == AllSquash
			return writes && squash && c.contains(&o)
		}) {
			return true
		}
	}
	return len(e.PKeys) > 0 && !slices.Equal(e.PKeys, over.PKeys)
}

// contains reports whether every client of another rule is a client of this one. Between names it
// can only tell that two are equal.
func (c *Client) contains(o *Client) bool {
	if c.Name() == o.Name() {
		return true
	}
	nets := o.Prefixes()
	return len(nets) > 0 && !slices.ContainsFunc(nets, func(p netip.Prefix) bool { return !covers(c.Prefixes(), p) })
}
