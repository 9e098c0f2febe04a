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

// Squash says which callers become anonymous.
type Squash uint8

// Squash modes, as in exports(5).
const (
	// RootSquash makes root anonymous, and the group root.
	RootSquash Squash = iota
	// NoRootSquash believes everybody.
	NoRootSquash
	// AllSquash makes everybody anonymous.
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

// ClientRule says how the clients of a network, or those that a name stands for, may use an
// export.
type ClientRule struct {
	// CIDR are the clients. An IPv4 address in IPv6 form counts as IPv4.
	CIDR netip.Prefix
	// Name are the clients where CIDR is not valid: a host, a pattern of hosts, a
	// @netgroup. The table's Hosts knows them.
	Name string
	// RO keeps these clients from changing anything.
	RO     bool
	Squash Squash
	// AnonUID and AnonGID are who an anonymous caller is; see AnonID.
	AnonUID, AnonGID uint32
	// Secure wants calls over TCP to come from a port below 1024.
	Secure bool
	// Flavors are the authentication flavors that are accepted; 0 means all there are.
	Flavors Flavors
	// Transports are those that the clients may come by; 0 means all.
	Transports Transports
	// Securities are how their connections may be protected; 0 means in any way, and not at all.
	// They are about TCP: to who comes by RDMA, which has none of them, they are InCleartext,
	// unless Transports names RDMA.
	Securities Securities
	// MaxRead and MaxWrite bound the data of one READ or WRITE, in bytes; 0 means MaxIO.
	MaxRead, MaxWrite uint32
	// Limit is for each of the clients.
	Limit Limit
	// ManageGIDs takes the groups of a user from the server's database, if it has the user, instead of
	// those in the call.
	ManageGIDs bool
	// NoHide lets these clients get here by version 3 from the export that this one lies in.
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

// flavorBits has all flavors, the best first. A flavor without a row is never accepted.
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

// List are the flavors, the best first. Those of Kerberos are in it if they are named: an export
// that accepts everything does not say whether the server has a keytab.
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

// String names the flavors, as the option sec does.
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
	ByTCP Transports = 1 << iota // and by UDP, which the programs around NFS have
	ByRDMA
)

func (t Transports) has(c rpc.Transport) bool {
	return t == 0 || t&ByTCP != 0 && c != rpc.TransportRDMA || t&ByRDMA != 0 && c == rpc.TransportRDMA
}

// Securities is a set of what protects connections over TCP.
type Securities uint8

// Securities.
const (
	InCleartext Securities = 1 << iota
	ByTLS                  // and better
	ByMutualTLS
)

// Protects reports whether a caller's connection is as the rule wants it. MOUNT and the lock
// manager do not ask: the Linux kernel's client has no TLS for them.
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

// Hosts knows clients by name. Every call uses it, so it must not wait: see nfs/hosts.
type Hosts interface {
	// Is reports whether a name is one of the host at an address. If known is false, the lookup is not
	// complete yet.
	Is(a netip.Addr, name string) (is, known bool)
	// Want sets the names that are in use from now on.
	Want(names []string)
	// Wait waits until more is known about an address, or done is closed.
	Wait(a netip.Addr, done <-chan struct{})
}

// Groups knows the groups of the server's users. Its method may be called from any goroutine.
type Groups interface {
	// Groups returns the groups of a user; the caller does not change the list. ok is false if the
	// database does not have the user. ready is false if the lookup would have to wait and wait is
	// false.
	Groups(uid uint32, wait bool) (list []uint32, ok, ready bool)
}

// Place is where an export lies in another one.
type Place struct {
	Export uint32            // the other's number
	Dir    blockstore.Handle // a directory of it
	Name   string            // the name in there that leads to the export
}

// Location is a place where the data of an export is besides, or instead of, this server.
type Location struct {
	Path    string   // on those servers, absolute and clean
	Servers []string // names and addresses; at least one
}

// Export is a directory that is served. It is not changed after it was given
// to a Table.
type Export struct {
	// ID is inside the file handles, so it stays with the export for ever.
	ID uint32
	// Path is where the data is on this host; for people only.
	Path string
	// Pseudo is the name under which clients mount it, absolute and clean.
	Pseudo   string
	ReadOnly bool
	// Clients are the rules. One of them applies: that of a single host, else of a network, of a
	// pattern of names, of a netgroup, of everybody. Among several networks the one with the longest
	// prefix applies, or with FirstMatch the first. Among several of another kind the first applies.
	// An empty list admits everybody, with RootSquash to AnonID. The daemon never passes one:
	// config.Export.Rules makes it a rule for the server's own host.
	Clients    []ClientRule
	FirstMatch bool
	// Limit is for all clients together.
	Limit Limit
	// Place is where it lies in another export, if it does: clients of version 4 get here
	// from there, and those of version 3 if the other has CrossMnt, or the rule NoHide.
	Place    *Place
	CrossMnt bool
	// Labels serves the security labels of the store to clients of version 4.2 (RFC 7862 section 9).
	Labels bool
	// Locations are other servers with the same data. Version 4 has them in fs_locations. If Moved is
	// set the data is only there: clients of version 4 get MOVED. Other protocols know no such
	// thing, and serve FS.
	Locations []Location
	Moved     bool
	// Ident tells the file system from others, in the place of what the store says; 0
	// leaves it to that.
	Ident uint64
	// PKeys are the partitions whose members the export is for, by either membership; none
	// means all, and everybody who does not come by RDMA. With any, only they are let in.
	PKeys []uint16
	// HostLocks has locks of clients taken by the store in the host's kernel, if it can.
	HostLocks bool
	// Fenced: the store ends the locks of a server that served before, when it is opened. A lock of
	// the host that is in the way is another one's.
	Fenced bool
	FS     blockstore.FS

	fsid   uint64
	hosts  Hosts
	meter  *meter
	covers bool // other exports lie in this one
}

// FSID identifies the export's filesystem towards clients.
func (x *Export) FSID() uint64 { return x.fsid }

// everyone are the rules of an export without any.
var everyone = []ClientRule{
	{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0), AnonUID: AnonID, AnonGID: AnonID},
	{CIDR: netip.PrefixFrom(netip.IPv6Unspecified(), 0), AnonUID: AnonID, AnonGID: AnonID},
}

// Rule returns the rule for a client and OK, ErrAcces if there is none, or ErrJukebox while the
// client's name is being resolved. The Table has sorted the rules, so the first that matches
// counts.
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

// Admits returns the rule for a caller, ErrAcces if the export is not for this client by this
// transport, or ErrJukebox while the client's name is being resolved. It does not check the flavor
// of the call.
func (x *Export) Admits(p *rpc.Peer) (*ClientRule, Status) {
	r, st := x.AdmitsMount(p)
	if st == OK && !r.Transports.has(p.Transport) {
		return nil, ErrAcces
	}
	return r, st
}

// AdmitsMount is Admits for MNT, which clients that come by RDMA send by TCP all the same.
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

// inPartition reports whether the export is for the partition of a peer.
func (x *Export) inPartition(p *rpc.Peer) bool {
	const partition = 0x7fff
	return len(x.PKeys) == 0 ||
		slices.ContainsFunc(x.PKeys, func(k uint16) bool { return p.PKey != 0 && (k^p.PKey)&partition == 0 })
}

// fromOpenPort reports whether the rule wants a port below 1024, and the peer has another. Such a
// port is no privilege with RDMA: a process that can open the device can send from any port.
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
