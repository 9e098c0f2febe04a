package nfs4

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// writeSameMax is the most that one WRITE_SAME writes, in bytes. A hole can have any size.
const writeSameMax = 16 << 20

// resWriteSame is write_response4: callback ID (array of 0), count, committed, verifier.
const resWriteSame = 4 + 8 + 4 + VerifierLen

// dataBlocks is an app_data_block4 (RFC 7862 section 8.2): count blocks of size bytes from offset
// on. Each block has the pattern at patternAt, and its own number at numAt. Numbers count up from
// num. All other bytes are zero.
type dataBlocks struct {
	offset, size, count uint64
	numAt               uint64 // math.MaxUint64: the blocks have no numbers
	num                 uint32
	patternAt           uint64
	pattern             []byte
}

// decodeDataBlocks reads the blocks. The pattern aliases the arguments of the call.
func decodeDataBlocks(d *xdr.Decoder) dataBlocks {
	return dataBlocks{
		offset: d.Uint64(), size: d.Uint64(), count: d.Uint64(), numAt: d.Uint64(), num: d.Uint32(), patternAt: d.Uint64(),
		pattern: d.Opaque(nfs.MaxIO),
	}
}

// total returns the bytes of all blocks. It checks the numbers, which come from the client.
func (b *dataBlocks) total() (uint64, nfs.Status) {
	n, pattern := b.size, uint64(len(b.pattern))
	switch {
	case b.size == 0 && b.count > 0:
		return 0, nfs.ErrInval
	case pattern > 0 && (pattern > n || b.patternAt > n-pattern):
		return 0, nfs.ErrInval
	case b.numAt != math.MaxUint64 && (n < 4 || b.numAt > n-4):
		return 0, nfs.ErrInval
	}
	high, n := bits.Mul64(b.size, b.count)
	if high != 0 || n > math.MaxInt64 || b.offset > math.MaxInt64-n {
		return 0, nfs.ErrFBig
	}
	return n, nfs.OK
}

// zero reports whether all bytes of all blocks are zero.
func (b *dataBlocks) zero() bool {
	for _, c := range b.pattern {
		if c != 0 {
			return false
		}
	}
	return b.numAt == math.MaxUint64
}

// fill writes the blocks into p. at is the offset of p from the beginning of the first block, in
// bytes.
func (b *dataBlocks) fill(p []byte, at uint64) {
	clear(p)
	put := func(block, off uint64, data []byte) {
		begin := block*b.size + off // of data
		switch {
		case begin >= at && begin-at < uint64(len(p)):
			copy(p[begin-at:], data)
		case begin < at && at-begin < uint64(len(data)):
			copy(p, data[at-begin:])
		}
	}
	var num [4]byte
	for i := at / b.size; i*b.size < at+uint64(len(p)); i++ {
		put(i, b.patternAt, b.pattern)
		if b.numAt != math.MaxUint64 {
			binary.BigEndian.PutUint32(num[:], b.num+uint32(i))
			put(i, b.numAt, num[:])
		}
	}
}

// writeSame is WRITE_SAME (RFC 7862 section 15.12): stateid, stable, app_data_block4; the result is
// a write_response4. Blocks of zeros become a hole where the store has holes. Of other data the
// server writes at most 16 MiB, in whole blocks if one block fits. The count says how much was
// written, and the client sends the rest. The operation is synchronous: it returns no stateid for
// OFFLOAD_STATUS.
func writeSame(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	how := blockstore.Stability(d.Uint32())
	b := decodeDataBlocks(d)
	if how > blockstore.FileSync {
		return nfs.ErrBadXDR
	}
	if st := k.dataOp(id, true); st != nfs.OK {
		return st
	}
	n, st := b.total()
	if st != nfs.OK {
		return k.ioFailed(st)
	}
	v := k.cur.x.FS.Verifier()
	done, err := k.fillBlocks(&b, n)
	committed := blockstore.Unstable
	if err == nil && how > blockstore.Unstable {
		_, err = k.cur.x.FS.Commit(k.who(&k.cur), k.cur.h, 0, 0)
		committed = blockstore.FileSync
	}
	if err != nil {
		return k.ioFailed(nfs.StatusOf(err))
	}
	e := &k.c.Res
	e.Uint32(0)
	e.Uint64(done)
	e.Uint32(uint32(committed))
	e.Fixed(v[:])
	return nfs.OK
}

// fillBlocks makes the hole or writes the blocks, n bytes in all. If an error follows data that was
// written, fillBlocks does not report the error: the client meets it when it sends the rest.
func (k *compound) fillBlocks(b *dataBlocks, n uint64) (done uint64, err error) {
	fs, who := k.cur.x.FS, k.who(&k.cur)
	if n == 0 {
		_, err := fs.GetAttr(who, k.cur.h)
		return 0, err
	}
	if _, ok := fs.(blockstore.Extents); ok && b.zero() {
		c := copying{to: k.cur, writes: *who, transfer: transfer{dstOff: b.offset}}
		if err := c.hole(n, true); !errors.Is(err, blockstore.ErrNotSupp) {
			return n, err
		}
	}
	if n > writeSameMax {
		n = max(writeSameMax/b.size, 1) * b.size
	}
	n = min(n, writeSameMax)
	p := make([]byte, min(n, nfs.MaxIO, uint64(k.cur.rule.WriteMax())))
	for done < n {
		p = p[:min(uint64(len(p)), n-done)]
		b.fill(p, done)
		m, _, _, err := fs.WriteAt(who, k.cur.h, p, b.offset+done, blockstore.Unstable)
		if done += uint64(m); err != nil || m == 0 {
			if done > 0 {
				err = nil
			}
			return done, err
		}
	}
	return done, nil
}
