package nfs4

import (
	"hash/crc32"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// digestMax is how many bytes of a request its digest covers. That is all of them, except for a
// WRITE with more data. If the transport has moved data out of the stream (over RDMA the data of a
// Read chunk), the digest covers only the length of that data. digestChunk bounds one CRC; it has
// no influence on which requests are told apart.
const (
	digestMax   = 64 << 10
	digestChunk = 1 << 10
)

var digestTable = crc32.MakeTable(crc32.Castagnoli)

// digest is a hash of a request, by which SEQUENCE tells a retry from another request with the same
// sequence number, a false retry (RFC 8881 section 2.10.6.1.3.1). It covers the length, the bytes
// and the caller: another user who repeats a request must not get its cached reply. The bytes go in
// as CRCs of chunks, the rest by FNV-1a over words. It guards against mistakes of clients. A client
// that makes collisions gets its own reply.
//
// The result is never 0: that is the digest of a slot that no request has used.
func digest(args xdr.Decoder, c *rpc.Cred) uint64 {
	const prime = 1099511628211
	sum := uint64(14695981039346656037)
	mix := func(w uint32) { sum = (sum ^ uint64(w)) * prime }
	mix(uint32(args.Remaining()))
	// The result must not depend on where the message is split into segments: a retry may be split
	// elsewhere.
	for range digestMax / digestChunk {
		crc, n := uint32(0), 0
		for n < digestChunk {
			b := args.Next(digestChunk - n)
			if len(b) == 0 {
				break
			}
			crc, n = crc32.Update(crc, digestTable, b), n+len(b)
		}
		if mix(crc); n < digestChunk {
			break
		}
	}
	mix(uint32(c.Flavor))
	mix(c.UID)
	mix(c.GID)
	if c.Flavor.GSS() { // all principals that are no users of the host have UID and GID 0
		for i := range len(c.Principal) {
			mix(uint32(c.Principal[i]))
		}
	}
	return max(sum, 1)
}

// alwaysCached is the longest reply, in bytes, that is cached although sa_cachethis is false (RFC
// 8881 section 2.10.6.1.3). So hardly any retry gets RETRY_UNCACHED_REP. After this error the Linux
// client sends the operations again with the next sequence number, and a change would be made
// twice. So replies to changes are cached whatever the client asked for.
const alwaysCached = 512

// finish ends the use of the slot, and gives it the reply to cache, or none. It must run before the
// transport sends the reply. The client may use the slot again at once, and would get
// SEQ_MISORDERED if the slot were still in use.
//
//	sa_cachethis                          cached; tooBig has bounded it by ca_maxresponsesize_cached
//	with bulk data (READ, READ_PLUS)      not cached
//	longer than ca_maxresponsesize_cached not cached
//	a changing operation has begun        cached
//	at most alwaysCached bytes            cached
//	all others                            not cached
//
// The client chooses ca_maxresponsesize_cached up to cachedMax, for each of its slots.
// CREATE_SESSION charges that memory to the client. The slot copies the reply, in this form:
//
//	length of the encoded part, number of bulk items
//	per item: offset in the encoded part, length
//	the encoded part
//	the data of the items
//
// Bulk data is registered memory that the transport frees with the reply. A retry may come over
// another transport, so the cache has the data itself.
func (k *compound) finish() {
	base := k.base
	e := &k.c.Res
	k.executing = false
	n := e.Len() - base
	if !k.cacheThis && (len(e.Refs) > 0 || n > alwaysCached && !k.changes || e.Len() > int(k.use.Session.Fore.MaxCached)) {
		k.use.Finish(nil)
		return
	}
	kept := xdr.Encoder{B: k.cacheBuf[:0]}
	kept.Uint32(uint32(len(e.B) - base))
	kept.Uint32(uint32(len(e.Refs)))
	for _, r := range e.Refs {
		kept.Uint32(uint32(r.At - base))
		kept.Uint32(uint32(len(r.Data)))
	}
	kept.B = append(kept.B, e.B[base:]...)
	for _, r := range e.Refs {
		kept.B = append(kept.B, r.Data...)
	}
	k.use.Finish(kept.B)
	if cap(kept.B) <= cachedMax {
		k.cacheBuf = kept.B
	}
}

// replay makes a cached reply the reply of this call. kept is this call's copy, so the slot may be
// used again while the transport sends. Bulk results point into kept, so nothing may change kept
// afterwards. replay replaces everything behind base. The client gets the cached result of
// SEQUENCE, with the flags of that time (RFC 8881 section 2.10.6.2). finish wrote kept, so its
// lengths need no check.
func (k *compound) replay(kept []byte) {
	e := &k.c.Res
	d := xdr.NewDecoder(kept)
	n, refs := int(d.Uint32()), int(d.Uint32())
	at := make([][2]int, refs)
	for i := range at {
		at[i] = [2]int{int(d.Uint32()), int(d.Uint32())}
	}
	rest := kept[d.Offset():]
	base := k.base
	e.Truncate(base)
	e.B = append(e.B, rest[:n]...)
	rest = rest[n:]
	for _, r := range at {
		e.Refs = append(e.Refs, xdr.Ref{At: base + r[0], Data: rest[:r[1]:r[1]]})
		rest = rest[r[1]:]
	}
	k.replayed = true
	k.s.replays.Add(1)
}
