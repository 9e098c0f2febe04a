package rpc

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
)

// drcKey is what a call and its retransmissions have in common.
type drcKey struct {
	xid uint32
	sum [sha256.Size]byte // over all the rest, see key
}

// hasher computes drcKeys without allocating.
type hasher struct {
	h    hash.Hash
	head []byte
	sum  []byte
}

var hashers = sync.Pool{New: func() any { return &hasher{h: sha256.New()} }}

// key is the key of a call whose arguments have not been read. It leaves out the stamp of an
// AUTH_SYS credential (RFC 5531 appendix A): it may be the time, and older Linux clients encode
// it anew for a retransmission. SHA-256 is used because a client chooses its arguments: with a
// weak hash it could make two calls with one key, and get the cached reply of the other one. The
// lengths of names and groups are hashed too, so that two fields cannot be mistaken for other
// two.
func (c *Call) key() drcKey {
	x := hashers.Get().(*hasher)
	defer hashers.Put(x)
	be := binary.BigEndian
	b := x.head[:0]
	if c.Peer.Addr.IsValid() {
		a := c.Peer.Addr.Addr().As16()
		b = append(b, a[:]...)
	}
	b = append(b, byte(c.Peer.Security), byte(len(c.Peer.Name)), byte(len(c.Peer.Name)>>8))
	b = append(b, c.Peer.Name...)
	for _, w := range [...]uint32{c.Prog, c.Vers, c.Proc, uint32(c.Cred.Flavor)} {
		b = be.AppendUint32(b, w)
	}
	if c.Cred.Flavor == AuthSys {
		for _, w := range [...]uint32{c.Cred.UID, c.Cred.GID, uint32(len(c.Cred.Groups)), uint32(len(c.Cred.Machine))} {
			b = be.AppendUint32(b, w)
		}
		for _, g := range c.Cred.Groups {
			b = be.AppendUint32(b, g)
		}
		b = append(b, c.Cred.Machine...)
	}
	if c.Cred.Flavor.GSS() { // not the context: a retransmission may come by another one
		b = append(be.AppendUint32(b, uint32(len(c.Cred.Principal))), c.Cred.Principal...)
	}
	x.head = b
	x.h.Reset()
	_, _ = x.h.Write(b)
	args := c.Args
	_ = args.WriteRest(x.h)
	x.sum = x.h.Sum(x.sum[:0])
	k := drcKey{xid: c.XID}
	copy(k.sum[:], x.sum)
	return k
}
