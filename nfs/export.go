package nfs

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// AnonID is the usual user and group of anonymous callers.
const AnonID = 65534

// Squash says which callers are mapped to the anonymous user.
type Squash uint8

// Squash modes, as in exports(5).
const (
	// RootSquash maps user 0 and group 0.
	RootSquash Squash = iota
	// NoRootSquash maps nobody.
	NoRootSquash
	// AllSquash maps everybody.
	AllSquash
)

func (s Squash) String() string {
	switch s {
	case RootSquash:
		return "root_squash"
	case NoRootSquash:
		return "no_root_squash"
	case AllSquash:
		return "all_squash"
	}
	return "unknown"
}

// ClientRule says which clients may use an export, and how.
type ClientRule struct {
	// CIDR is the network of the clients. An IPv4 address in IPv6 form counts as IPv4.
	CIDR netip.Prefix
	// Name selects the clients if CIDR is not valid: a host, a pattern of hosts, or a @netgroup. The
	// table's Hosts resolves it.
	Name string
	// RO forbids these clients every change.
	RO     bool
	Squash Squash
	// AnonUID and AnonGID are the anonymous user and group; see AnonID.
	AnonUID, AnonGID uint32
	// Secure requires that calls over TCP and UDP come from a port below 1024.
	Secure bool
	// Flavors are the authentication flavors that are accepted; 0 means all.
	Flavors Flavors
	// Transports are the transports that are accepted; 0 means all.
	Transports Transports
	// Securities are the protections of a connection that are accepted; 0 means every one, cleartext
	// included. They are meant for TCP. A connection over RDMA has none of them and counts as
	// InCleartext, unless Transports names RDMA.
	Securities Securities
	// MaxRead and MaxWrite bound the data of one READ or WRITE, in bytes; 0 means MaxIO.
	MaxRead, MaxWrite uint32
	// Limit applies to each client by itself.
	Limit Limit
	// ManageGIDs takes the groups of a user from the server's database instead of from the call. A
	// user that the database does not have keeps the groups of the call.
	ManageGIDs bool
	// NoHide lets clients of version 3 enter this export from the export that it lies in.
	NoHide bool
	// NoReadDirPlus refuses READDIRPLUS.
	NoReadDirPlus bool
	// InsecureLocks lets the lock manager of version 3 serve calls of all flavors and of all users.
	// The Linux client has no locks of version 3 with Kerberos: lockd calls by AUTH_SYS.
	InsecureLocks bool
}

// Flavors is a set of authentication flavors.
type Flavors uint8

// Flavors.
const (
	FlavorSys Flavors = 1 << iota
	FlavorNone
	FlavorKrb5
	FlavorKrb5i
	FlavorKrb5p
)

// FlavorsGSS are the flavors of Kerberos.
const FlavorsGSS = FlavorKrb5 | FlavorKrb5i | FlavorKrb5p

// flavorBits has all flavors, the preferred ones first. A flavor without a row is never accepted.
var flavorBits = [...]struct {
	flavor rpc.AuthFlavor
	bit    Flavors
}{
	{rpc.AuthKrb5p, FlavorKrb5p},
	{rpc.AuthKrb5i, FlavorKrb5i},
	{rpc.AuthKrb5, FlavorKrb5},
	{rpc.AuthSys, FlavorSys},
	{rpc.AuthNone, FlavorNone},
}

// Has reports whether a flavor is accepted.
func (f Flavors) Has(a rpc.AuthFlavor) bool {
	for i := range flavorBits {
		if flavorBits[i].flavor == a {
			return f == 0 || f&flavorBits[i].bit != 0
		}
	}
	return false
}

// List returns the flavors, the preferred ones first. Flavors of Kerberos are in it only if the
// rule names them: a rule that accepts everything does not say whether the server has a keytab.
func (f Flavors) List() []rpc.AuthFlavor {
	if f == 0 {
		f = FlavorSys | FlavorNone
	}
	out := make([]rpc.AuthFlavor, 0, len(flavorBits))
	for _, x := range flavorBits {
		if f&x.bit != 0 {
			out = append(out, x.flavor)
		}
	}
	return out
}

// String names the flavors in the form of the option sec.
func (f Flavors) String() string {
	var names []string
	for _, a := range f.List() {
		names = append(names, a.String())
	}
	return strings.Join(names, ":")
}

// Transports is a set of transports.
type Transports uint8

// Transports.
const (
	ByTCP Transports = 1 << iota // and by UDP, which only the programs around NFS use
	ByRDMA
)

func (t Transports) has(c rpc.Transport) bool {
	return t == 0 || t&ByTCP != 0 && c != rpc.TransportRDMA || t&ByRDMA != 0 && c == rpc.TransportRDMA
}

// Securities is a set of protections of connections over TCP.
type Securities uint8

// Securities.
const (
	InCleartext Securities = 1 << iota
	ByTLS                  // at least
	ByMutualTLS
)

// Protects reports whether the caller's connection has a protection that the rule accepts. MOUNT
// and the lock manager do not call it, because the Linux client has no TLS for them.
func (r *ClientRule) Protects(p *rpc.Peer) bool {
	s := r.Securities
	switch {
	case s == 0:
		return true
	case p.Security == rpc.MutualTLS:
		return s&(ByTLS|ByMutualTLS) != 0
	case p.Security == rpc.TLS:
		return s&ByTLS != 0
	case p.Transport == rpc.TransportRDMA && r.Transports&ByRDMA != 0:
		return true
	}
	return s&InCleartext != 0
}

// ReadMax is the most data of one READ, in bytes.
func (r *ClientRule) ReadMax() uint32 { return ioMax(r.MaxRead) }

// WriteMax is the most data of one WRITE, in bytes.
func (r *ClientRule) WriteMax() uint32 { return ioMax(r.MaxWrite) }

func ioMax(n uint32) uint32 {
	if n == 0 {
		return MaxIO
	}
	return min(n, MaxIO)
}

// Hosts resolves the names in rules. Every call uses it, so its methods must not wait, except Wait.
// Package nfs/hosts implements it.
type Hosts interface {
	// Is reports whether the host at an address has a name. If known is false, the lookup is not
	// complete yet.
	Is(a netip.Addr, name string) (is, known bool)
	// Want sets the names that rules use from now on.
	Want(names []string)
	// Wait waits until the lookups about an address are complete, or done is closed.
	Wait(a netip.Addr, done <-chan struct{})
}

// Groups is the server's database of groups. Its method may be called from any goroutine.
type Groups interface {
	// Groups returns the groups of a user; the caller does not change the list. ok is false if the
	// database does not have the user. ready is false if the lookup would have to wait and wait is
	// false.
	Groups(uid uint32, wait bool) (list []uint32, ok, ready bool)
}

// Place is where an export lies inside another one.
type Place struct {
	Export uint32            // number of the outer export
	Dir    blockstore.Handle // a directory of the outer export
	Name   string            // the name in Dir that leads to the inner export
}

// Location is a set of other servers that have the data of an export.
type Location struct {
	Path    string   // on those servers, absolute and clean
	Servers []string // names and addresses; at least one
}

// Export is a directory that is served. It must not be changed after it was given to a Table.
type Export struct {
	// ID is a part of file handles, so it must never change or be used for another export.
	ID uint32
	// Path is the directory on this host. It is for display only.
	Path string
	// Pseudo is the name under which clients mount it, absolute and clean.
	Pseudo   string
	ReadOnly bool
	// Clients are the rules, of which one applies to a client. The kinds of rules take precedence in
	// this order: a single host, a network, a pattern of names, a netgroup, everybody. Among several
	// networks the one with the longest prefix applies, or with FirstMatch the first one. Among
	// several rules of another kind the first one applies. An empty list admits everybody, with
	// RootSquash to AnonID. The daemon never passes an empty list: config.Export.Rules replaces it by
	// a rule for the server's own host.
	Clients    []ClientRule
	FirstMatch bool
	// Limit applies to all clients together.
	Limit Limit
	// Place is where the export lies inside another one; nil: it lies in none. Clients of version 4
	// enter it from there. Clients of version 3 do so if the outer export has CrossMnt, or their rule
	// here has NoHide.
	Place    *Place
	CrossMnt bool
	// Labels serves the security labels of the store to clients of version 4.2 (RFC 7862 section 9).
	Labels bool
	// Locations are other servers with the same data, for the attribute fs_locations of version 4. If
	// Moved is set, only they have the data: clients of version 4 get MOVED. The other protocols have
	// no such status, and serve FS.
	Locations []Location
	Moved     bool
	// Ident identifies the file system (fsid). 0 leaves the choice to the store.
	Ident uint64
	// PKeys are the partitions that may use the export, by either membership. Without PKeys, all
	// partitions and all other transports may. With PKeys, only connections over RDMA in one of the
	// partitions may.
	PKeys []uint16
	// HostLocks makes the store take the clients' locks in the host's kernel, too, if it can.
	HostLocks bool
	// Fenced says that the store, when it opens, ends the locks of the server that served before. A
	// lock of the host that is in the way is then the lock of somebody else.
	Fenced bool
	FS     blockstore.FS

	fsid   uint64
	hosts  Hosts
	meter  *meter
	covers bool // other exports lie in this one
}

// FSID identifies the export's file system to clients.
func (x *Export) FSID() uint64 { return x.fsid }

// everyone has the rules of an export with an empty list.
var everyone = []ClientRule{
	{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0), AnonUID: AnonID, AnonGID: AnonID},
	{CIDR: netip.PrefixFrom(netip.IPv6Unspecified(), 0), AnonUID: AnonID, AnonGID: AnonID},
}

// Rule returns the rule for a client and OK. It returns ErrAcces if there is no rule, and
// ErrJukebox while the client's name is being resolved. The Table has sorted the rules, so the
// first one that matches applies.
func (x *Export) Rule(client netip.Addr) (*ClientRule, Status) {
	client = client.Unmap().WithZone("")
	for i := range x.Clients {
		r := &x.Clients[i]
		if r.CIDR.IsValid() {
			if r.CIDR.Contains(client) {
				return r, OK
			}
			continue
		}
		switch is, known := x.hosts.Is(client, r.Name); {
		case !known:
			return nil, ErrJukebox
		case is:
			return r, OK
		}
	}
	return nil, ErrAcces
}

// Admits returns the rule for a caller and OK. It returns ErrAcces if no rule admits the client by
// this transport, and ErrJukebox while the client's name is being resolved. It does not check the
// flavor of the call.
func (x *Export) Admits(p *rpc.Peer) (*ClientRule, Status) {
	r, st := x.AdmitsMount(p)
	if st == OK && !r.Transports.has(p.Transport) {
		return nil, ErrAcces
	}
	return r, st
}

// AdmitsMount is Admits without the check of the transport: clients of an export for RDMA alone
// still send MNT over TCP.
func (x *Export) AdmitsMount(p *rpc.Peer) (*ClientRule, Status) {
	if !x.inPartition(p) {
		return nil, ErrAcces
	}
	r, st := x.Rule(p.Addr.Addr())
	if st != OK {
		return nil, st
	}
	if r.fromOpenPort(p) {
		return nil, ErrAcces
	}
	return r, OK
}

// inPartition reports whether the peer is in a partition that may use the export.
func (x *Export) inPartition(p *rpc.Peer) bool {
	const partition = 0x7fff
	return len(x.PKeys) == 0 ||
		slices.ContainsFunc(x.PKeys, func(k uint16) bool { return p.PKey != 0 && (k^p.PKey)&partition == 0 })
}

// fromOpenPort reports whether the rule requires a port below 1024 and the peer has another one.
// Over RDMA the port is not checked: a process that can open the device can send from any port.
func (r *ClientRule) fromOpenPort(p *rpc.Peer) bool {
	const reserved = 1024
	return r.Secure && p.Transport != rpc.TransportRDMA && p.Addr.Port() >= reserved
}

// noID is the ID -1. A caller with this UID or GID is mapped to the anonymous user.
const noID = 1<<32 - 1

// Identity sets out to the identity that a call runs as. out retains the memory of its groups;
// nothing of it aliases c. If the groups must be looked up and wait is false, Identity returns
// false and leaves out undefined. If g is nil, the groups of the call are used.
func (r *ClientRule) Identity(c *rpc.Cred, g Groups, wait bool, out *blockstore.Cred) (ready bool) {
	out.Groups = out.Groups[:0]
	if c.Flavor != rpc.AuthSys && !c.Flavor.GSS() || c.Unmapped || r.Squash == AllSquash {
		out.UID, out.GID = r.AnonUID, r.AnonGID
		return true
	}
	groups := c.Groups
	if r.ManageGIDs && g != nil {
		list, ok, ready := g.Groups(c.UID, wait)
		if !ready {
			return false
		}
		if ok {
			groups = list
		}
	}
	out.UID, out.GID = c.UID, c.GID
	out.Groups = append(out.Groups, groups...)
	if r.Squash != NoRootSquash {
		if out.UID == 0 {
			out.UID = r.AnonUID
		}
		if out.GID == 0 {
			out.GID = r.AnonGID
		}
		for i, g := range out.Groups {
			if g == 0 {
				out.Groups[i] = r.AnonGID
			}
		}
	}
	if out.UID == noID {
		out.UID = r.AnonUID
	}
	if out.GID == noID {
		out.GID = r.AnonGID
	}
	return true
}
