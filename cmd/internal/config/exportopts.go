package config

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/hosts"
)

// Flavors of a rule.
const (
	FlavorSys   = "sys"
	FlavorNone  = "none"
	FlavorKrb5  = "krb5"  // Kerberos: who calls is verified
	FlavorKrb5i = "krb5i" // and arguments and results have checksums
	FlavorKrb5p = "krb5p" // and are encrypted
)

var flavors = map[string]nfs.Flavors{
	FlavorSys: nfs.FlavorSys, FlavorNone: nfs.FlavorNone, FlavorKrb5: nfs.FlavorKrb5, FlavorKrb5i: nfs.FlavorKrb5i,
	FlavorKrb5p: nfs.FlavorKrb5p,
}

// Transports of a rule.
const (
	CarrierRDMA = "rdma"
	CarrierTCP  = "tcp"
)

// FSIDRoot is the fsid of the root of version 4.
const FSIDRoot = "root"

// Name is the client of the rule, as it is written.
func (c *Client) Name() string {
	if c.Host != "" {
		return c.Host
	}
	return c.CIDR
}

// normalizeName distinguishes prefixes from names. Both keys accept both.
func (c *Client) normalizeName() error {
	if c.CIDR != "" && c.Host != "" {
		return fmt.Errorf("a rule is for cidr %q or for host %q, not for both", c.CIDR, c.Host)
	}
	name := c.CIDR + c.Host
	if name == "" {
		return fmt.Errorf("the rule names no client: give cidr or host, %q for everybody", Everyone)
	}
	if name == Everyone {
		c.CIDR, c.Host = Everyone, ""
		return nil
	}
	if p, err := parsePrefix(name); err == nil {
		c.CIDR, c.Host = p.String(), ""
		return nil
	}
	if flavor, ok := strings.CutPrefix(name, "gss/"); ok {
		return fmt.Errorf("client %q: name the clients, and give them the option sec=%s for Kerberos", name,
			flavor)
	}
	if !hosts.CheckName(name) || numeric(name) {
		return fmt.Errorf("client %q is neither an address, nor a network such as 10.0.0.0/8, nor a host name, "+
			"a pattern of names such as *.example.org, a @netgroup, or *", name)
	}
	c.CIDR, c.Host = "", name
	return nil
}

// numeric reports whether a name looks like a wrong address, or like a pattern of addresses.
// Patterns match names only.
func numeric(name string) bool {
	return strings.Trim(name, "0123456789.*?") == "" && strings.Contains(name, ".")
}

// normalizeRules checks the rule of a client except its name.
func (c *Client) normalizeRules() error {
	for _, s := range c.Sec {
		if flavors[s] == 0 {
			return fmt.Errorf("sec %q is not one of %s", s, strings.Join(slices.Sorted(maps.Keys(flavors)), ", "))
		}
	}
	for _, t := range c.Transports {
		if t != CarrierRDMA && t != CarrierTCP {
			return fmt.Errorf("transport %q is neither %s nor %s", t, CarrierRDMA, CarrierTCP)
		}
	}
	var err error
	if c.XprtSec, err = normalizeXprtSec(c.XprtSec); err != nil {
		return err
	}
	for _, n := range []struct {
		key  string
		size uint32
	}{{"rsize", c.RSize}, {"wsize", c.WSize}} {
		if n.size != 0 && (n.size < minIO || n.size > nfs.MaxIO || n.size%minIO != 0) {
			return fmt.Errorf("%s %d is not a multiple of %d in the range from that to %d", n.key, n.size, minIO, nfs.MaxIO)
		}
	}
	return checkLimit(c.Bandwidth, c.IOPS)
}

// minIO is the smallest size of READ and WRITE that clients accept.
const minIO = 1024

// normalizeRules checks the settings of an export except its clients.
func (e *Export) normalizeRules() error {
	if e.FSID != "" {
		if _, err := ParseFSID(e.FSID); err != nil {
			return err
		}
	}
	if e.MountPoint != "" && e.MountPoint != "." && !path.IsAbs(e.MountPoint) {
		return fmt.Errorf("mountpoint %q is not absolute", e.MountPoint)
	}
	if e.Quota != "" {
		if _, ok := parseBytes(e.Quota); !ok {
			return fmt.Errorf("quota %q is not a number of bytes such as 500M or 2T", e.Quota)
		}
		if e.Type != TypePosix {
			return fmt.Errorf("quota: only an export of the type %s has one", TypePosix)
		}
	}
	return checkLimit(e.Bandwidth, e.IOPS)
}

// QuotaBytes is Quota in bytes; 0 without one. The export must have been normalized.
func (e *Export) QuotaBytes() uint64 {
	n, _ := parseBytes(e.Quota)
	return n
}

func checkLimit(bandwidth string, iops uint64) error {
	if iops > math.MaxUint32 {
		return fmt.Errorf("iops %d is too much", iops)
	}
	if bandwidth == "" {
		return nil
	}
	_, err := ParseRate(bandwidth)
	return err
}

// ParseRate reads a number of bytes a second, with K, M, G, T for powers of 1024; empty is 0.
func ParseRate(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	n, ok := parseBytes(s)
	if !ok {
		return 0, fmt.Errorf("bandwidth %q is not a number of bytes a second such as 500M or 2G", s)
	}
	return n, nil
}

// parseBytes reads a number of bytes such as 500M, from 1 to 1 PiB.
func parseBytes(s string) (n uint64, ok bool) {
	const suffixes = "KMGT"
	shift := 0
	digits := s
	if s != "" {
		if i := strings.IndexByte(suffixes, s[len(s)-1]&^0x20); i >= 0 {
			shift, digits = 10*(i+1), s[:len(s)-1]
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || n > 1<<50>>shift {
		return 0, false
	}
	return n << shift, true
}

// ParseFSID reads an fsid: a number, "root", or a UUID with any punctuation. It returns 0 for the
// root, which leaves the number to the store.
func ParseFSID(s string) (uint64, error) {
	if s == FSIDRoot {
		return 0, nil
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return n, nil
	}
	const digits = 32
	var hex []byte
	for _, c := range []byte(s) {
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
			hex = append(hex, c)
		case c < '!' || c > '~' || 'g' <= c|0x20 && c|0x20 <= 'z':
			return 0, fmt.Errorf("fsid %q is neither a number, nor root, nor a UUID of %d hexadecimal digits", s, digits)
		}
	}
	if len(hex) != digits {
		return 0, fmt.Errorf("fsid %q is neither a number, nor root, nor a UUID of %d hexadecimal digits", s, digits)
	}
	hi, _ := strconv.ParseUint(string(hex[:digits/2]), 16, 64)
	lo, _ := strconv.ParseUint(string(hex[digits/2:]), 16, 64)
	return max(hi^lo, 1), nil
}

// Root reports whether the export is the root of version 4.
func (e *Export) Root() bool {
	n, err := ParseFSID(e.FSID)
	return e.FSID != "" && err == nil && n == 0
}

// limit converts bandwidth and iops, which were checked before.
func limit(bandwidth string, iops uint64) nfs.Limit {
	n, _ := ParseRate(bandwidth)
	return nfs.Limit{Bytes: n, Ops: iops}
}

// Limit is the limit of all clients together.
func (e *Export) Limit() nfs.Limit { return limit(e.Bandwidth, e.IOPS) }

// NFS converts the rule for the server, without its client. The rule must have been normalized.
func (c *Client) NFS() nfs.ClientRule {
	uid, gid := c.Anon()
	r := nfs.ClientRule{
		RO: c.ReadOnly, AnonUID: uid, AnonGID: gid, Secure: c.Secure, MaxRead: c.RSize, MaxWrite: c.WSize,
		Limit: limit(c.Bandwidth, c.IOPS), ManageGIDs: c.ManageGIDs, NoHide: c.NoHide, NoReadDirPlus: c.NoReadDirPlus,
		InsecureLocks: c.InsecureLocks,
	}
	switch c.Squash {
	case NoRootSquash:
		r.Squash = nfs.NoRootSquash
	case AllSquash:
		r.Squash = nfs.AllSquash
	}
	for _, s := range c.Sec {
		r.Flavors |= flavors[s]
	}
	for _, t := range c.Transports {
		if t == CarrierRDMA {
			r.Transports |= nfs.ByRDMA
		} else {
			r.Transports |= nfs.ByTCP
		}
	}
	for _, s := range c.XprtSec {
		switch s {
		case XprtNone:
			r.Securities |= nfs.InCleartext
		case XprtTLS:
			r.Securities |= nfs.ByTLS
		case XprtMutual:
			r.Securities |= nfs.ByMutualTLS
		}
	}
	return r
}

// parseMask reads an address with a mask in dotted decimals, as 10.0.0.0/255.0.0.0.
func parseMask(s string) (p netip.Prefix, ok bool) {
	addr, mask, found := strings.Cut(s, "/")
	a, err := netip.ParseAddr(addr)
	m, maskErr := netip.ParseAddr(mask)
	if !found || err != nil || maskErr != nil || !a.Is4() || !m.Is4() {
		return p, false
	}
	b := m.As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	const size = 32
	ones := 0
	for ; ones < size && n>>(size-1-ones)&1 == 1; ones++ {
	}
	if ones < size && n<<ones != 0 {
		return p, false
	}
	return netip.PrefixFrom(a, ones).Masked(), true
}
