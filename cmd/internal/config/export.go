package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Export types.
const (
	TypePosix  = "posix"  // a directory of the host
	TypeMemory = "memory" // lost at the end of the process
	TypeCeph   = "ceph"   // a directory of a CephFS, by libcephfs
)

// Squash modes, as in exports(5).
const (
	RootSquash   = "root_squash"
	NoRootSquash = "no_root_squash"
	AllSquash    = "all_squash"
)

// NobodyID is the uid and gid of squashed callers without anonuid and anongid.
const NobodyID = 65534

// Export is one exported tree. The json form is that of the control API.
type Export struct {
	// Path is the directory on the host; for memory exports a label; for CephFS the name of the
	// filesystem and a directory of it, FSNAME/dir.
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
	// FSID tells the file system to clients in the place of what the store says: a number, a
	// UUID, or "root" (as 0), which makes the export the root of version 4.
	FSID string `mapstructure:"fsid" yaml:"fsid,omitempty" json:"fsid,omitempty"`
	// CrossMnt exports what is mounted below Path, too, by the same rules.
	CrossMnt bool `mapstructure:"crossmnt" yaml:"crossmnt,omitempty" json:"crossmnt,omitempty"`
	// MountPoint is a directory that something must be mounted at, or the export is not
	// served; "." stands for Path.
	MountPoint string `mapstructure:"mountpoint" yaml:"mountpoint,omitempty" json:"mountpoint,omitempty"`
	// SecurityLabel serves the security labels of files to clients of version 4.2, and lets clients
	// set them.
	SecurityLabel bool `mapstructure:"security_label" yaml:"security_label,omitempty" json:"security_label,omitempty"`
	// Refer says where the data is instead of here, Replicas where copies of it are: see
	// ParseLocations.
	Refer    string `mapstructure:"refer" yaml:"refer,omitempty" json:"refer,omitempty"`
	Replicas string `mapstructure:"replicas" yaml:"replicas,omitempty" json:"replicas,omitempty"`
	// Bandwidth, in bytes a second as 100M, and IOPS bound what all clients do together;
	// empty and 0 mean no bound.
	Bandwidth string `mapstructure:"bandwidth" yaml:"bandwidth,omitempty" json:"bandwidth,omitempty"`
	IOPS      uint64 `mapstructure:"iops" yaml:"iops,omitempty" json:"iops,omitempty"`
	// Quota bounds what the files of the export take, in bytes as 100G, by a quota of the directory's
	// project; empty leaves the quotas of the file system as they are.
	Quota string `mapstructure:"quota" yaml:"quota,omitempty" json:"quota,omitempty"`
	// FirstMatch has the first network count that a client is in, as exports(5) has it, and
	// not the one with the longest prefix.
	FirstMatch bool `mapstructure:"first_match" yaml:"first_match,omitempty" json:"first_match,omitempty"`
	// Clients are the rules; see nfs.Export for which one counts, and Rules for an export
	// without any.
	Clients []Client `mapstructure:"clients" yaml:"clients,omitempty" json:"clients"`
	// Source is the line of an export table that it comes from; empty for others.
	Source string `mapstructure:"-" yaml:"-" json:"source,omitempty"`
}

// Client is the rule for one prefix of client addresses, or for a name of clients.
type Client struct {
	// CIDR is a prefix, a single address, or "*" for everyone. Host is a host name, a pattern
	// of such, or a @netgroup, with CIDR empty.
	CIDR     string `mapstructure:"cidr" yaml:"cidr,omitempty" json:"cidr,omitempty"`
	Host     string `mapstructure:"host" yaml:"host,omitempty" json:"host,omitempty"`
	ReadOnly bool   `mapstructure:"read_only" yaml:"read_only" json:"read_only"`
	Squash   string `mapstructure:"squash" yaml:"squash" json:"squash"`
	// AnonUID and AnonGID are who squashed callers become; nil is NobodyID.
	AnonUID *uint32 `mapstructure:"anonuid" yaml:"anonuid,omitempty" json:"anonuid,omitempty"`
	AnonGID *uint32 `mapstructure:"anongid" yaml:"anongid,omitempty" json:"anongid,omitempty"`
	// Secure wants TCP from a port below 1024.
	Secure bool `mapstructure:"secure" yaml:"secure,omitempty" json:"secure,omitempty"`
	// Sec are the flavors, FlavorSys and so on; without any, all.
	Sec []string `mapstructure:"sec" yaml:"sec,omitempty" json:"sec,omitempty"`
	// Transports are "rdma" and "tcp"; without any both.
	Transports []string `mapstructure:"transports" yaml:"transports,omitempty" json:"transports,omitempty"`
	// XprtSec is what the client's connections must have over TCP: XprtNone, XprtTLS, XprtMutual;
	// without any what Config.TLS says. By RDMA a client must have XprtNone here, or
	// Transports must name RDMA.
	XprtSec []string `mapstructure:"xprtsec" yaml:"xprtsec,omitempty" json:"xprtsec,omitempty"`
	// RSize and WSize bound one READ and one WRITE, in bytes; 0 means 1 MiB.
	RSize uint32 `mapstructure:"rsize" yaml:"rsize,omitempty" json:"rsize,omitempty"`
	WSize uint32 `mapstructure:"wsize" yaml:"wsize,omitempty" json:"wsize,omitempty"`
	// Bandwidth and IOPS are as Export's, for each client.
	Bandwidth string `mapstructure:"bandwidth" yaml:"bandwidth,omitempty" json:"bandwidth,omitempty"`
	IOPS      uint64 `mapstructure:"iops" yaml:"iops,omitempty" json:"iops,omitempty"`
	// ManageGIDs takes the groups of users from the server's database.
	ManageGIDs bool `mapstructure:"manage_gids" yaml:"manage_gids,omitempty" json:"manage_gids,omitempty"`
	// InsecureLocks lets the lock manager of version 3 serve calls of all flavors and of all users.
	InsecureLocks bool `mapstructure:"insecure_locks" yaml:"insecure_locks,omitempty" json:"insecure_locks,omitempty"`
	// NoHide lets version 3 in from the export around.
	NoHide bool `mapstructure:"nohide" yaml:"nohide,omitempty" json:"nohide,omitempty"`
	// NoReadDirPlus refuses READDIRPLUS.
	NoReadDirPlus bool `mapstructure:"nordirplus" yaml:"nordirplus,omitempty" json:"nordirplus,omitempty"`
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
	case TypeCeph:
		if strings.Trim(e.Path, "/") == "" {
			return fmt.Errorf("a CephFS export needs the name of the filesystem: %s:NAME/directory", TypeCeph)
		}
		e.Path = strings.TrimPrefix(e.Path, "/")
	default:
		return fmt.Errorf("type %q is none of %s, %s and %s", e.Type, TypePosix, TypeMemory, TypeCeph)
	}
	e.Path = path.Clean(e.Path)
	if strings.IndexByte(e.Path, 0) >= 0 || strings.IndexByte(e.Pseudo, 0) >= 0 {
		return fmt.Errorf("a path contains a NUL byte")
	}
	if e.Pseudo == "" && e.Root() {
		e.Pseudo = "/"
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
	if _, _, err := e.Locations(); err != nil {
		return err
	}
	if err := e.normalizeRules(); err != nil {
		return err
	}
	seen := make(map[netip.Prefix]bool)
	names := make(map[string]bool)
	for i := range e.Clients {
		c := &e.Clients[i]
		if err := c.normalize(); err != nil {
			return fmt.Errorf("clients[%d]: %w", i, err)
		}
		if c.Host != "" && names[c.Host] {
			return fmt.Errorf("clients[%d]: %s is listed twice", i, c.Host)
		}
		names[c.Host] = true
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
	if err := c.normalizeName(); err != nil {
		return err
	}
	if err := c.normalizeRules(); err != nil {
		return err
	}
	switch c.Squash {
	case "":
		c.Squash = RootSquash
	case RootSquash, NoRootSquash, AllSquash:
	default:
		return fmt.Errorf("squash %q is not one of %s, %s, %s", c.Squash, RootSquash, NoRootSquash, AllSquash)
	}
	return nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if p, ok := parseMask(s); ok {
		return p, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("client %q is neither an address, nor a prefix such as 10.0.0.0/8, nor *", s)
	}
	return p.Masked(), nil
}

// everywhere has every address of each family.
var everywhere = []netip.Prefix{
	netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

// Prefixes is the rule's CIDR as prefixes: one, or for everyone one of each
// address family, or none if it has a name. The rule must have been normalized.
func (c *Client) Prefixes() []netip.Prefix {
	if c.Host != "" {
		return nil
	}
	if c.CIDR == Everyone {
		return slices.Clone(everywhere)
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
// as in exports(5): fields are separated by blanks, and a blank in a path is written \040.
// "memory:NAME" as PATH makes a memory export, "ceph:FSNAME/dir" one of CephFS. Options after PATH
// hold for the clients that follow, and for the server's own host if none does.
func ParseExport(s string) (Export, error) { return parseExport(s, RootSquash) }

// parseExport reads the one-line form. squash is that of the own host where no client is named
// and no option says it.
func parseExport(s, squash string) (Export, error) {
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
	e.Path, e.Pseudo = Unescape(e.Path), Unescape(e.Pseudo)
	for _, t := range []string{TypeMemory, TypeCeph} {
		if label, ok := strings.CutPrefix(e.Path, t+":"); ok {
			e.Type, e.Path = t, label
		}
	}
	var base Client
	if err := e.ApplyOptions(&base, opts); err != nil {
		return e, err
	}
	if len(fields) == 1 && (len(opts) > 0 || squash != RootSquash) {
		base.Squash = cmp.Or(base.Squash, squash)
		e.Clients = ownHost(base)
	}
	for _, f := range fields[1:] {
		cidr, opts, err := splitOptions(f)
		if err != nil {
			return e, err
		}
		if cidr == "" {
			return e, fmt.Errorf("%s names no client: is there a blank too many before it? Everybody is *%s", f, f)
		}
		c := base
		c.CIDR, c.Host = "", cidr
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

// Unescape turns \ooo into the byte it names, as exports(5) and mountinfo of proc(5) have it.
func Unescape(s string) string {
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
