package nfs4

import (
	"errors"
	"math"
	"slices"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// What the parts of a READ_PLUS take beside the data, in bytes:
//
//	DATA  content 4, offset 8, length of the data 4, data padded to 4
//	HOLE  content 4, offset 8, length of the hole 8
const (
	partData = 4 + 8 + 4
	partHole = 4 + 8 + 8
)

// readPlus is READ_PLUS (RFC 7862 section 15.10): a list of parts. Each part is data, or a hole of
// some length. No part goes beyond the requested range. Holes and data can change while the list is
// made; each part was right when it was read. A file with many small holes has a part for each. The
// headers of parts reduce the room for data, and the reply ends when there is no more room. Bytes
// of holes count as bytes read.
//
// The data is not eligible for direct placement, because RFC 8267 does not list it. So it is copied
// into the reply itself. The transport frees the memory of a long reply when it was sent.
func readPlus(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	off, count := d.Uint64(), d.Uint32()
	if st := k.dataOp(id, false); st != nfs.OK {
		return st
	}
	// eof, the number of parts, one part more than data alone needs, and the padding.
	const head = 4 + 4 + partHole + 3
	n := min(int(min(count, k.cur.rule.ReadMax())), max(k.room()-head, 0))
	e := &k.c.Res
	at := len(e.B)
	e.Bool(false)
	e.Uint32(0)
	p := parts{k: k, pos: off, end: off + min(uint64(n), math.MaxUint64-off), left: n + partHole}
	eof, err := p.fill()
	if err != nil {
		return k.ioFailed(nfs.StatusOf(err))
	}
	if eof {
		patch(e, at, 1)
	}
	patch(e, at+4, p.n)
	return nfs.OK
}

// parts is a READ_PLUS being answered: the rest of the range, from pos to end. Each part begins
// where the part before ends, without a gap.
type parts struct {
	k        *compound
	pos, end uint64
	// left is how many bytes more the reply can take: the data that the client wants, and one part.
	// Further parts reduce the data.
	left int
	n    uint32 // parts so far
}

// fill appends parts up to the end of the range, of the file, or of the room. If the store cannot
// find holes, there is one part of data. Each round of the loop either moves pos or ends, even if
// others change the file between Seek and ReadAt.
func (p *parts) fill() (eof bool, err error) {
	k := p.k
	fs, who, h := k.cur.x.FS, k.who(&k.cur), k.cur.h
	if p.pos == p.end {
		_, eof, err = fs.ReadAt(who, h, nil, p.pos, false)
		return eof, err
	}
	x, sparse := fs.(blockstore.Extents)
	for p.pos < p.end {
		data, stop := p.pos, p.end
		if sparse {
			data, err = x.Seek(who, h, p.pos, false)
			switch {
			case errors.Is(err, blockstore.ErrNotSupp):
				data, sparse = p.pos, false
			case errors.Is(err, blockstore.ErrNXIO):
				return p.tail()
			case err != nil:
				return false, err
			}
		}
		if data > p.pos {
			if !p.hole(min(data, p.end)) {
				return false, nil
			}
			continue
		}
		if sparse {
			hole, err := x.Seek(who, h, p.pos, true)
			if err == nil && hole > p.pos {
				stop = min(stop, hole)
			}
		}
		more, eof, err := p.data(stop)
		if err != nil || eof || !more {
			return eof, err
		}
	}
	return false, nil
}

// tail is for a position behind all data: it appends a hole up to the end of the file or of the
// range. At or behind the end of the file the result has no part, and eof.
func (p *parts) tail() (eof bool, err error) {
	a, err := p.k.cur.x.FS.GetAttr(p.k.who(&p.k.cur), p.k.cur.h)
	if err != nil || a.Size <= p.pos {
		return err == nil, err
	}
	return p.hole(min(a.Size, p.end)) && a.Size <= p.end, nil
}

// hole appends the hole that ends at stop, and reports whether there was room.
func (p *parts) hole(stop uint64) bool {
	if p.left < partHole {
		return false
	}
	e := &p.k.c.Res
	e.Uint32(contentHole)
	e.Uint64(p.pos)
	e.Uint64(stop - p.pos)
	p.left -= partHole
	p.n++
	p.pos = stop
	return true
}

// data appends data up to stop, as far as there is room, and reports whether all of it was
// appended. The store reads into the reply directly. The length word is written before ReadAt and
// corrected after it; if nothing was read the part is cut off again.
func (p *parts) data(stop uint64) (all, eof bool, err error) {
	n := min(stop-p.pos, uint64(max(p.left-partData, 0)))
	if n == 0 {
		return false, false, nil
	}
	k, e := p.k, &p.k.c.Res
	at := len(e.B)
	e.Uint32(contentData)
	e.Uint64(p.pos)
	e.Uint32(0)
	from := len(e.B)
	e.B = slices.Grow(e.B, int(n)+3)[:from+int(n)]
	got, eof, err := k.cur.x.FS.ReadAt(k.who(&k.cur), k.cur.h, e.B[from:], p.pos, false)
	if err != nil || got == 0 {
		e.Truncate(at)
		return false, eof, err
	}
	e.B = append(e.B[:from+got], make([]byte, xdr.Pad(got))...)
	patch(e, from-4, uint32(got))
	p.left -= partData + got + xdr.Pad(got)
	p.n++
	p.pos += uint64(got)
	return p.pos == stop, eof, nil
}
