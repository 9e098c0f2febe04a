// Package nfs is what the versions of NFS share: which directories are
// exported and to whom, file handles, whose identity a call runs with, and the
// statuses.
package nfs

import (
	"net/netip"
	"slices"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// AnonID is the usual user and group for those who are nobody here.
const AnonID = 65534

// Squash says whose claims about their identity are not believed.
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

// ClientRule says how the clients of a network may use an export.
type ClientRule struct {
	// CIDR are the clients. An IPv4 address in IPv6 form counts as IPv4.
	CIDR netip.Prefix
	// RO keeps these clients from changing anything.
	RO     bool
	Squash Squash
	// AnonUID and AnonGID are who an anonymous caller is; see AnonID.
	AnonUID, AnonGID uint32
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
	// Clients are the rules; the longest matching prefix counts, and no other.
	// None at all means everybody with RootSquash to AnonID; to serve nobody,
	// do not export.
	Clients []ClientRule
	// PKeys are the partitions whose members the export is for, by either membership; none
	// means all, and everybody who does not come by RDMA. With any, only they are let in.
	PKeys []uint16
	// Async notes that the store claims writes to be stable when they are not.
	// It is the store that does so; here it is for people only.
	Async bool
	// HostLocks has locks of clients taken by the store in the host's kernel, if it can.
	HostLocks bool
	FS        blockstore.FS

	fsid uint64
}

// FSID identifies the export's filesystem towards clients.
func (x *Export) FSID() uint64 { return x.fsid }

// everyone are the rules of an export without any.
var everyone = []ClientRule{
	{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0), AnonUID: AnonID, AnonGID: AnonID},
	{CIDR: netip.PrefixFrom(netip.IPv6Unspecified(), 0), AnonUID: AnonID, AnonGID: AnonID},
}

// Rule is the rule for a client, or nil if the export is not for it. The
// Table has sorted the rules, the longest prefix first.
func (x *Export) Rule(client netip.Addr) *ClientRule {
	client = client.Unmap().WithZone("")
	for i := range x.Clients {
		if x.Clients[i].CIDR.Contains(client) {
			return &x.Clients[i]
		}
	}
	return nil
}

// Admits is the rule for a caller, or nil if the export is not for him.
func (x *Export) Admits(p *rpc.Peer) *ClientRule {
	const partition = 0x7fff
	if len(x.PKeys) > 0 && !slices.ContainsFunc(x.PKeys, func(k uint16) bool { return p.PKey != 0 && (k^p.PKey)&partition == 0 }) {
		return nil
	}
	return x.Rule(p.Addr.Addr())
}

// Identity sets out to whom a call runs as. Out keeps the memory of its groups;
// nothing of it aliases c.
func (r *ClientRule) Identity(c *rpc.Cred, out *blockstore.Cred) {
	out.Groups = out.Groups[:0]
	if c.Flavor != rpc.AuthSys || r.Squash == AllSquash {
		out.UID, out.GID = r.AnonUID, r.AnonGID
		return
	}
	out.UID, out.GID = c.UID, c.GID
	out.Groups = append(out.Groups, c.Groups...)
	if r.Squash == NoRootSquash {
		return
	}
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
