package config

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// Export types.
const (
	TypePosix  = "posix"  // a directory of the host
	TypeMemory = "memory" // lost at the end of the process
)

// Squash modes, as in exports(5).
const (
	RootSquash   = "root_squash"
	NoRootSquash = "no_root_squash"
	AllSquash    = "all_squash"
)

// NobodyID is the uid and gid of squashed callers where nothing else is said.
const NobodyID = 65534

// Export is one exported tree. The json form is that of the control API.
type Export struct {
	// Path is the directory on the host; for memory exports a label.
	Path string `mapstructure:"path" yaml:"path" json:"path"`
	// Pseudo is where clients find it, by default "/" and Path's base name.
	Pseudo string `mapstructure:"pseudo" yaml:"pseudo" json:"pseudo"`
	Type   string `mapstructure:"type" yaml:"type" json:"type"`
	// ReadOnly refuses changes to every client.
	ReadOnly bool `mapstructure:"read_only" yaml:"read_only" json:"read_only"`
	// Async acknowledges stable writes before they are on disk, as exports(5)
	// "async" does. It risks data and is never the default.
	Async bool `mapstructure:"async" yaml:"async" json:"async"`
	// Direct has long reads and writes go past the page cache (option direct).
	Direct bool `mapstructure:"direct" yaml:"direct,omitempty" json:"direct,omitempty"`
	// HostLocks has the locks of clients taken on the host as well, so that its programs
	// see them, and clients those of the programs; nil means true.
	HostLocks *bool `mapstructure:"host_locks" yaml:"host_locks,omitempty" json:"host_locks,omitempty"`
	// PKeys are the partitions that the export is for (option pkey=); none means all, and
	// clients over TCP.
	PKeys []string `mapstructure:"pkeys" yaml:"pkeys,omitempty" json:"pkeys,omitempty"`
	// Clients are the rules, the most specific prefix first to match. Without
	// any, every client is allowed with the defaults.
	Clients []Client `mapstructure:"clients" yaml:"clients,omitempty" json:"clients"`
}

// Client is the rule for one prefix of client addresses.
type Client struct {
	// CIDR is a prefix, a single address, or "*" for everyone.
	CIDR     string `mapstructure:"cidr" yaml:"cidr" json:"cidr"`
	ReadOnly bool   `mapstructure:"read_only" yaml:"read_only" json:"read_only"`
	Squash   string `mapstructure:"squash" yaml:"squash" json:"squash"`
	// AnonUID and AnonGID are who squashed callers become; nil is NobodyID.
	AnonUID *uint32 `mapstructure:"anonuid" yaml:"anonuid,omitempty" json:"anonuid,omitempty"`
	AnonGID *uint32 `mapstructure:"anongid" yaml:"anongid,omitempty" json:"anongid,omitempty"`
}

// Everyone is the client rule that matches any address.
const Everyone = "*"

// Normalize fills in what was left out and checks the rest.
func (e *Export) Normalize() error {
	if e.Type == "" {
		e.Type = TypePosix
	}
	switch e.Type {
	case TypePosix:
		if e.Path == "" {
			return fmt.Errorf("an export needs a path")
		}
		if !path.IsAbs(e.Path) {
			return fmt.Errorf("path %q is not absolute", e.Path)
		}
	case TypeMemory:
		if e.Path == "" {
			e.Path = e.Pseudo
		}
		if e.Path == "" {
			return fmt.Errorf("a memory export needs a name as its path, or a pseudo path")
		}
	default:
		return fmt.Errorf("type %q is neither %s nor %s", e.Type, TypePosix, TypeMemory)
	}
	e.Path = path.Clean(e.Path)
	if strings.IndexByte(e.Path, 0) >= 0 || strings.IndexByte(e.Pseudo, 0) >= 0 {
		return fmt.Errorf("a path contains a NUL byte")
	}
	if e.Pseudo == "" {
		e.Pseudo = path.Join("/", path.Base(e.Path))
	}
	if !path.IsAbs(e.Pseudo) {
		return fmt.Errorf("pseudo path %q does not begin with /", e.Pseudo)
	}
	e.Pseudo = path.Clean(e.Pseudo)
	if len(e.Pseudo) > maxPseudo {
		return fmt.Errorf("pseudo path is %d bytes long, but MOUNT allows %d", len(e.Pseudo), maxPseudo)
	}
	if err := normalizePKeys(e.PKeys); err != nil {
		return err
	}
	seen := make(map[netip.Prefix]bool)
	for i := range e.Clients {
		c := &e.Clients[i]
		if err := c.normalize(); err != nil {
			return fmt.Errorf("clients[%d]: %w", i, err)
		}
		for _, p := range c.Prefixes() {
			if seen[p] {
				return fmt.Errorf("clients[%d]: %s is listed twice", i, c.CIDR)
			}
			seen[p] = true
		}
	}
	return nil
}

// maxPseudo is MNTPATHLEN of RFC 1813 section 5.1.2.
const maxPseudo = 1024

func (c *Client) normalize() error {
	if c.CIDR == "" {
		c.CIDR = Everyone
	}
	if c.CIDR != Everyone {
		p, err := parsePrefix(c.CIDR)
		if err != nil {
			return err
		}
		c.CIDR = p.String()
	}
	switch c.Squash {
	case "":
		c.Squash = RootSquash
	case RootSquash, NoRootSquash, AllSquash:
	default:
		return fmt.Errorf("squash %q is none of %s, %s, %s", c.Squash, RootSquash, NoRootSquash, AllSquash)
	}
	return nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("client %q is neither an address, nor a prefix such as 10.0.0.0/8, nor *", s)
	}
	return p.Masked(), nil
}

// Prefixes is the rule's CIDR as prefixes: one, or for everyone one of each
// address family. The rule must have been normalized.
func (c *Client) Prefixes() []netip.Prefix {
	if c.CIDR == Everyone {
		return []netip.Prefix{
			netip.PrefixFrom(netip.IPv4Unspecified(), 0),
			netip.PrefixFrom(netip.IPv6Unspecified(), 0),
		}
	}
	p, err := parsePrefix(c.CIDR)
	if err != nil {
		return nil
	}
	return []netip.Prefix{p}
}

// Anon is who squashed callers of the rule become.
func (c *Client) Anon() (uid, gid uint32) {
	uid, gid = NobodyID, NobodyID
	if c.AnonUID != nil {
		uid = *c.AnonUID
	}
	if c.AnonGID != nil {
		gid = *c.AnonGID
	}
	return uid, gid
}

// ParseExport reads the one-line form of the flags and of rstorectl:
//
//	PATH[=PSEUDO][(OPTION,...)] [CLIENT[(OPTION,...)]]...
//
// as in exports(5): fields are separated by blanks, and a blank in a path is
// written \040. "memory:NAME" as PATH makes a memory export. Options after PATH
// hold for the clients that follow, and for everyone if none does.
func ParseExport(s string) (Export, error) {
	var e Export
	fields := strings.Fields(s)
	if len(fields) == 0 {
		return e, fmt.Errorf("empty export")
	}
	name, opts, err := splitOptions(fields[0])
	if err != nil {
		return e, err
	}
	e.Path, e.Pseudo, _ = strings.Cut(name, "=")
	e.Path, e.Pseudo = unescape(e.Path), unescape(e.Pseudo)
	if label, ok := strings.CutPrefix(e.Path, TypeMemory+":"); ok {
		e.Type, e.Path = TypeMemory, label
	}
	base := Client{CIDR: Everyone}
	if err := e.ApplyOptions(&base, opts); err != nil {
		return e, err
	}
	if len(fields) == 1 && len(opts) > 0 {
		e.Clients = append(e.Clients, base)
	}
	for _, f := range fields[1:] {
		cidr, opts, err := splitOptions(f)
		if err != nil {
			return e, err
		}
		c := base
		c.CIDR = cidr
		if err := e.ApplyOptions(&c, opts); err != nil {
			return e, err
		}
		e.Clients = append(e.Clients, c)
	}
	return e, e.Normalize()
}

// splitOptions cuts "word(a,b)" into "word" and its options.
func splitOptions(f string) (word string, opts []string, err error) {
	word, rest, found := strings.Cut(f, "(")
	if !found {
		return word, nil, nil
	}
	list, ok := strings.CutSuffix(rest, ")")
	if !ok || strings.ContainsAny(list, "()") {
		return "", nil, fmt.Errorf("%q: brackets do not match", f)
	}
	if list == "" {
		return word, nil, nil
	}
	return word, strings.Split(list, ","), nil
}

// ApplyOptions applies exports(5) options to a client's rule; sync and async
// are properties of the whole export.
func (e *Export) ApplyOptions(c *Client, opts []string) error {
	for _, o := range opts {
		key, val, hasVal := strings.Cut(strings.TrimSpace(o), "=")
		if hasVal != (key == "anonuid" || key == "anongid" || key == "pkey") {
			return fmt.Errorf("export option %q is not understood", o)
		}
		switch key {
		case "ro":
			c.ReadOnly = true
		case "rw":
			c.ReadOnly = false
		case "sync":
			e.Async = false
		case "async":
			e.Async = true
		case "direct", "no_direct":
			e.Direct = key == "direct"
		case "host_locks", "no_host_locks":
			on := key == "host_locks"
			e.HostLocks = &on
		case RootSquash, NoRootSquash, AllSquash:
			c.Squash = key
		case "no_all_squash":
			if c.Squash == AllSquash {
				c.Squash = RootSquash
			}
		case "anonuid", "anongid":
			n, err := strconv.ParseInt(val, 10, 64)
			if err != nil || n < -1<<31 || n > 1<<32-1 {
				return fmt.Errorf("export option %q: not a user or group number", o)
			}
			id := uint32(n) // exports(5) allows -2 for 4294967294
			if key == "anonuid" {
				c.AnonUID = &id
			} else {
				c.AnonGID = &id
			}
		case "pkey":
			e.PKeys = append(e.PKeys, val)
		case "secure", "insecure", "subtree_check", "no_subtree_check", "wdelay", "no_wdelay":
			// Accepted from habit: source ports prove nothing, handles carry a
			// MAC instead of a path, and writes are not delayed.
		default:
			return fmt.Errorf("export option %q is not understood", o)
		}
	}
	return nil
}

// unescape turns \ooo into the byte it names, as exports(5) does.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
