package config

import (
	"cmp"
	"errors"
	"fmt"
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
	FlavorSys  = "sys"
	FlavorNone = "none"
)

// Carriers of a rule.
const (
	CarrierRDMA = "rdma"
	CarrierTCP  = "tcp"
)

// FSIDRoot is the fsid of the root of version 4.
const FSIDRoot = "root"

// Name is whom the rule is for, as it is written.
func (c *Client) Name() string {
	if c.Host != "" {
		return c.Host
	}
	return c.CIDR
}

// normalizeName tells prefixes from names; either may stand in either place.
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
	if strings.HasPrefix(name, "gss/") {
		return fmt.Errorf("client %q: RPCSEC_GSS (Kerberos) is not served", name)
	}
	if !hosts.CheckName(name) || numeric(name) {
		return fmt.Errorf("client %q is neither an address, nor a network such as 10.0.0.0/8, nor a host name, a pattern of names such as *.example.org, a @netgroup, or *", name)
	}
	c.CIDR, c.Host = "", name
	return nil
}

// numeric reports whether a name looks like an address that is wrong, or like a pattern of
// addresses, which names are not compared with.
func numeric(name string) bool {
	return strings.Trim(name, "0123456789.*?") == "" && strings.Contains(name, ".")
}

// normalizeRules checks what a client's rule says beside its name.
func (c *Client) normalizeRules() error {
	for _, s := range c.Sec {
		if s != FlavorSys && s != FlavorNone {
			return fmt.Errorf("sec %q is neither %s nor %s: RPCSEC_GSS (Kerberos) is not served", s, FlavorSys, FlavorNone)
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
			return fmt.Errorf("%s %d is no multiple of %d from that to %d", n.key, n.size, minIO, nfs.MaxIO)
		}
	}
	return checkLimit(c.Bandwidth, c.IOPS)
}

// minIO is the smallest size that clients take for READ and WRITE.
const minIO = 1024

// normalizeRules checks what an export says beside its clients.
func (e *Export) normalizeRules() error {
	if e.FSID != "" {
		if _, err := ParseFSID(e.FSID); err != nil {
			return err
		}
	}
	if e.MountPoint != "" && e.MountPoint != "." && !path.IsAbs(e.MountPoint) {
		return fmt.Errorf("mountpoint %q is not absolute", e.MountPoint)
	}
	return checkLimit(e.Bandwidth, e.IOPS)
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
	const suffixes = "KMGT"
	shift := 0
	digits := s
	if i := strings.IndexByte(suffixes, s[len(s)-1]&^0x20); i >= 0 {
		shift, digits = 10*(i+1), s[:len(s)-1]
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || n > 1<<50>>shift {
		return 0, fmt.Errorf("bandwidth %q is not a number of bytes a second such as 500M or 2G", s)
	}
	return n << shift, nil
}

// ParseFSID reads an fsid: a number, "root", or a UUID with any punctuation. The root's is 0,
// which leaves it to the store.
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

// Limit is what bandwidth and iops mean; they were checked.
func limit(bandwidth string, iops uint64) nfs.Limit {
	n, _ := ParseRate(bandwidth)
	return nfs.Limit{Bytes: n, Ops: iops}
}

// Limit is that of all clients together.
func (e *Export) Limit() nfs.Limit { return limit(e.Bandwidth, e.IOPS) }

// NFS are the rule's settings as the server has them, without whom it is for. The rule must
// have been normalized.
func (c *Client) NFS() nfs.ClientRule {
	uid, gid := c.Anon()
	r := nfs.ClientRule{
		RO: c.ReadOnly, AnonUID: uid, AnonGID: gid, Secure: c.Secure, MaxRead: c.RSize, MaxWrite: c.WSize,
		Limit: limit(c.Bandwidth, c.IOPS), ManageGIDs: c.ManageGIDs, NoHide: c.NoHide, NoReadDirPlus: c.NoReadDirPlus,
	}
	switch c.Squash {
	case NoRootSquash:
		r.Squash = nfs.NoRootSquash
	case AllSquash:
		r.Squash = nfs.AllSquash
	}
	for _, s := range c.Sec {
		if s == FlavorSys {
			r.Flavors |= nfs.FlavorSys
		} else {
			r.Flavors |= nfs.FlavorNone
		}
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

// errMeaningless is of options that are accepted and do nothing, which may not be what is meant.
type errMeaningless struct{ why string }

func (e *errMeaningless) Error() string { return e.why }

// ApplyOptions applies options of exports(5), and our own, to a client's rule. Some are
// properties of the whole export.
func (e *Export) ApplyOptions(c *Client, opts []string) error {
	for _, o := range opts {
		var nothing *errMeaningless
		if err := e.apply(c, o); err != nil && !errors.As(err, &nothing) {
			return err
		}
	}
	return nil
}

// apply applies one option.
func (e *Export) apply(c *Client, o string) error {
	key, val, hasVal := strings.Cut(strings.TrimSpace(o), "=")
	row, ok := options[key]
	switch {
	case !ok:
		return fmt.Errorf("export option %q is not understood", o)
	case hasVal && row.value == noValue, !hasVal && row.value == needsValue:
		return fmt.Errorf("export option %q is not understood: %s", o, row.value)
	}
	if err := row.set(e, c, val); err != nil {
		var nothing *errMeaningless
		if errors.As(err, &nothing) {
			return err
		}
		return fmt.Errorf("export option %q: %w", o, err)
	}
	return nil
}

// valued says whether an option has a value.
type valued int

const (
	noValue valued = iota
	needsValue
	mayHaveValue
)

func (v valued) String() string {
	if v == needsValue {
		return "it needs a value, as in option=value"
	}
	return "it has no value"
}

// option is what an option of exports(5) does.
type option struct {
	value valued
	set   func(e *Export, c *Client, val string) error
}

func flag(f func(e *Export, c *Client)) option {
	return option{noValue, func(e *Export, c *Client, _ string) error { f(e, c); return nil }}
}

// nothing is an option that describes what is so anyway.
var nothing = flag(func(*Export, *Client) {})

// meaningless is an option that asks for what there is not and can do without.
func meaningless(why string) option {
	return option{noValue, func(*Export, *Client, string) error { return &errMeaningless{why} }}
}

func refused(v valued, why string) option {
	return option{v, func(*Export, *Client, string) error { return errors.New(why) }}
}

func list(to func(e *Export, c *Client) *[]string, sep string) option {
	return option{needsValue, func(e *Export, c *Client, val string) error {
		*to(e, c) = strings.Split(val, sep)
		return nil
	}}
}

func number[T uint32 | uint64](to func(e *Export, c *Client) *T) option {
	return option{needsValue, func(e *Export, c *Client, val string) error {
		n, err := strconv.ParseUint(val, 10, 32)
		if err != nil {
			return errors.New("not a number")
		}
		*to(e, c) = T(n)
		return nil
	}}
}

func anon(to func(c *Client) **uint32) option {
	return option{needsValue, func(_ *Export, c *Client, val string) error {
		n, err := strconv.ParseInt(val, 10, 64)
		if err != nil || n < -1<<31 || n > 1<<32-1 {
			return errors.New("not a user or group number")
		}
		id := uint32(n) // exports(5) allows -2 for 4294967294
		*to(c) = &id
		return nil
	}}
}

var noLocations = "other servers are not named to clients (fs_locations)"

// options are those of exports(5), then our own. docs/exports.md has the same table.
var options = map[string]option{
	"ro":               flag(func(_ *Export, c *Client) { c.ReadOnly = true }),
	"rw":               flag(func(_ *Export, c *Client) { c.ReadOnly = false }),
	"sync":             flag(func(e *Export, _ *Client) { e.Async = false }),
	"async":            flag(func(e *Export, _ *Client) { e.Async = true }),
	"secure":           flag(func(_ *Export, c *Client) { c.Secure = true }),
	"insecure":         flag(func(_ *Export, c *Client) { c.Secure = false }),
	RootSquash:         flag(func(_ *Export, c *Client) { c.squashRoot(RootSquash) }),
	NoRootSquash:       flag(func(_ *Export, c *Client) { c.squashRoot(NoRootSquash) }),
	AllSquash:          flag(func(_ *Export, c *Client) { c.Squash = AllSquash }),
	"no_all_squash":    flag(func(_ *Export, c *Client) { c.unsquash() }),
	"anonuid":          anon(func(c *Client) **uint32 { return &c.AnonUID }),
	"anongid":          anon(func(c *Client) **uint32 { return &c.AnonGID }),
	"sec":              list(func(_ *Export, c *Client) *[]string { return &c.Sec }, ":"),
	"fsid":             {needsValue, func(e *Export, _ *Client, val string) error { return e.setFSID(val) }},
	"crossmnt":         flag(func(e *Export, _ *Client) { e.CrossMnt = true }),
	"nocrossmnt":       flag(func(e *Export, _ *Client) { e.CrossMnt = false }),
	"nohide":           flag(func(_ *Export, c *Client) { c.NoHide = true }),
	"hide":             flag(func(_ *Export, c *Client) { c.NoHide = false }),
	"nordirplus":       flag(func(_ *Export, c *Client) { c.NoReadDirPlus = true }),
	"mountpoint":       {mayHaveValue, setMountPoint},
	"mp":               {mayHaveValue, setMountPoint},
	"subtree_check":    meaningless("subtree_check does nothing: handles are authenticated, and a directory is found by its way up to the export"),
	"security_label":   meaningless("security_label does nothing: labels are not served"),
	"pnfs":             meaningless("pnfs does nothing: all data goes through this server"),
	"no_acl":           meaningless("no_acl does nothing: version 3 has no ACL protocol here, and the ACLs of version 4 are always served"),
	"refer":            refused(needsValue, noLocations),
	"replicas":         refused(needsValue, noLocations),
	"no_subtree_check": nothing, "wdelay": nothing, "no_wdelay": nothing, "no_pnfs": nothing, "acl": nothing,
	"auth_nlm": nothing, "secure_locks": nothing,
	"no_auth_nlm": meaningless("no_auth_nlm does nothing: a user who may neither read nor write a file cannot lock it"), "insecure_locks": meaningless("insecure_locks does nothing: a user who may neither read nor write a file cannot lock it"),
	"xprtsec": list(func(_ *Export, c *Client) *[]string { return &c.XprtSec }, ":"),

	"host_locks":       flag(func(e *Export, _ *Client) { e.setHostLocks(true) }),
	"no_host_locks":    flag(func(e *Export, _ *Client) { e.setHostLocks(false) }),
	"direct":           flag(func(e *Export, _ *Client) { e.Direct = true }),
	"no_direct":        flag(func(e *Export, _ *Client) { e.Direct = false }),
	"pkey":             {needsValue, func(e *Export, _ *Client, val string) error { e.addPKey(val); return nil }},
	"transport":        list(func(_ *Export, c *Client) *[]string { return &c.Transports }, ":"),
	"rsize":            number(func(_ *Export, c *Client) *uint32 { return &c.RSize }),
	"wsize":            number(func(_ *Export, c *Client) *uint32 { return &c.WSize }),
	"bandwidth":        {needsValue, func(_ *Export, c *Client, val string) error { c.Bandwidth = val; return nil }},
	"iops":             number(func(_ *Export, c *Client) *uint64 { return &c.IOPS }),
	"export_bandwidth": {needsValue, func(e *Export, _ *Client, val string) error { e.Bandwidth = val; return nil }},
	"export_iops":      number(func(e *Export, _ *Client) *uint64 { return &e.IOPS }),
	"manage_gids":      flag(func(_ *Export, c *Client) { c.ManageGIDs = true }),
	"no_manage_gids":   flag(func(_ *Export, c *Client) { c.ManageGIDs = false }),
}

// squashRoot is about root alone: who squashes everybody goes on to, until no_all_squash.
func (c *Client) squashRoot(squash string) {
	if c.Squash != AllSquash {
		c.Squash = squash
	}
}

func (c *Client) unsquash() {
	if c.Squash == AllSquash {
		c.Squash = RootSquash
	}
}

func (e *Export) setHostLocks(on bool) { e.HostLocks = &on }

func (e *Export) addPKey(k string) {
	if !slices.Contains(e.PKeys, k) {
		e.PKeys = append(e.PKeys, k)
	}
}

// setFSID sets one of the two that exports(5) allows, a number or a UUID; the number counts.
func (e *Export) setFSID(val string) error {
	if _, err := ParseFSID(val); err != nil {
		return errors.New("neither a number, nor root, nor a UUID of 32 hexadecimal digits")
	}
	if _, err := strconv.ParseUint(e.FSID, 10, 32); err != nil {
		e.FSID = val
	}
	return nil
}

func setMountPoint(e *Export, _ *Client, val string) error {
	e.MountPoint = val
	if val == "" {
		e.MountPoint = "."
	}
	return nil
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

// String is the rule as exports(5) has it, with all that is not the default.
func (c *Client) String() string {
	opts := []string{"rw", cmp.Or(c.Squash, RootSquash)}
	if c.ReadOnly {
		opts[0] = "ro"
	}
	add := func(on bool, format string, a ...any) {
		if on {
			opts = append(opts, fmt.Sprintf(format, a...))
		}
	}
	if c.AnonUID != nil {
		add(true, "anonuid=%d", *c.AnonUID)
	}
	if c.AnonGID != nil {
		add(true, "anongid=%d", *c.AnonGID)
	}
	add(c.Secure, "secure")
	add(len(c.Sec) > 0, "sec=%s", strings.Join(c.Sec, ":"))
	add(len(c.Transports) > 0, "transport=%s", strings.Join(c.Transports, ":"))
	add(len(c.XprtSec) > 0, "xprtsec=%s", strings.Join(c.XprtSec, ":"))
	add(c.RSize > 0, "rsize=%d", c.RSize)
	add(c.WSize > 0, "wsize=%d", c.WSize)
	add(c.Bandwidth != "", "bandwidth=%s", c.Bandwidth)
	add(c.IOPS > 0, "iops=%d", c.IOPS)
	add(c.ManageGIDs, "manage_gids")
	add(c.NoHide, "nohide")
	add(c.NoReadDirPlus, "nordirplus")
	return c.Name() + "(" + strings.Join(opts, ",") + ")"
}

// Options are the options of the whole export that are not the default, beside ro and async.
func (e *Export) Options() []string {
	var opts []string
	add := func(on bool, format string, a ...any) {
		if on {
			opts = append(opts, fmt.Sprintf(format, a...))
		}
	}
	add(e.HostLocks != nil && !*e.HostLocks, "no_host_locks")
	add(e.Direct, "direct")
	add(e.FSID != "", "fsid=%s", e.FSID)
	add(e.CrossMnt, "crossmnt")
	add(e.MountPoint == ".", "mountpoint")
	add(e.MountPoint != "" && e.MountPoint != ".", "mountpoint=%s", e.MountPoint)
	add(e.Bandwidth != "", "export_bandwidth=%s", e.Bandwidth)
	add(e.IOPS > 0, "export_iops=%d", e.IOPS)
	for _, k := range e.PKeys {
		add(true, "pkey=%s", k)
	}
	return opts
}
