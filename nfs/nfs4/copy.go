package nfs4

import (
	"errors"
	"slices"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// serversMax bounds the source servers of a COPY.
const serversMax = 64

// A synchronous COPY ends after copyTime or copyMax bytes, so that it occupies neither a worker nor
// its session's slot for long. A short copy is legal: the client asks for the rest. Every COPY goes
// in steps of copyStep bytes; a COPY of one step is always synchronous.
const (
	copyTime = 250 * time.Millisecond
	copyMax  = 1 << 30
	copyStep = 16 << 20
)

// copying is a COPY that was admitted. It refers to nothing of its compound, which may end before
// it.
type copying struct {
	from, to object
	transfer
	// Two exports may have two rules, and two identities.
	reads, writes blockstore.Cred
	verf          [VerifierLen]byte
	done          uint64
	pieces        bool // the store cannot copy by itself
	filled        bool // the target's store cannot make holes
}

func (k *compound) copying(t *transfer) *copying {
	c := &copying{from: k.saved, to: k.cur, transfer: *t, verf: k.cur.x.FS.Verifier(), pieces: !k.saved.sameFS(&k.cur)}
	c.reads = *k.who(&k.saved)
	c.reads.Groups = slices.Clone(c.reads.Groups)
	c.writes = *k.who(&k.cur)
	c.writes.Groups = slices.Clone(c.writes.Groups)
	return c
}

// copyFile is COPY (RFC 7862 section 15.2) within this server. A synchronous one is answered when
// at least a part is copied, and the client continues from there. Ranges that overlap in one file
// are INVAL. A count of 0 means up to the end of the source.
func copyFile(k *compound) nfs.Status {
	d := &k.c.Args
	t := k.decodeTransfer()
	d.Bool() // consecutive
	synchronous := d.Bool()
	servers := d.Uint32()
	switch {
	case k.bad(), servers > serversMax:
		return nfs.ErrBadXDR
	case servers > 0:
		return nfs.ErrNotSupp // from another server
	}
	size, st := k.admitTransfer(&t)
	if st != nfs.OK {
		return st
	}
	if t.count == 0 {
		t.count = size - t.sourceOff
	}
	if err := blockstore.CheckRange(t.dstOff, max(t.count, 1)); err != nil {
		return nfs.StatusOf(err)
	}
	if k.saved.sameFS(&k.cur) && k.saved.h == k.cur.h && blockstore.Overlap(t.sourceOff, t.dstOff, t.count) {
		return nfs.ErrInval
	}
	c := k.copying(&t)
	if !synchronous && t.count > copyStep {
		if o, st := k.offload(c); st != nfs.OK {
			return st
		} else if o != nil {
			k.encodeCopied(c, o)
			return nfs.OK
		}
	}
	var buf []byte
	for begin := k.s.cfg.Now(); c.done < min(c.count, copyMax) && k.s.cfg.Now().Sub(begin) < copyTime; {
		n, err := c.step(&buf)
		if err != nil && c.done == 0 {
			return nfs.StatusOf(err)
		}
		if err != nil || n == 0 {
			break
		}
	}
	k.encodeCopied(c, nil)
	return nfs.OK
}

// encodeCopied appends a COPY4resok.
func (k *compound) encodeCopied(c *copying, o *offload) {
	e := &k.c.Res
	if o != nil {
		e.Uint32(1)
		EncodeStateid(e, o.ID())
		e.Uint64(0)
	} else {
		e.Uint32(0)
		e.Uint64(c.done)
	}
	e.Uint32(uint32(blockstore.Unstable))
	e.Fixed(c.verf[:])
	e.Bool(true)     // consecutive
	e.Bool(o == nil) // synchronous
}

// step copies some more, by the store if it can, or through *buf, which it makes if
// there is none. It returns how much, which is 0 at the end of the source only.
func (c *copying) step(buf *[]byte) (n uint64, err error) {
	left := c.count - c.done
	x, ok := c.to.x.FS.(blockstore.Extents)
	if ok && !c.pieces {
		n, err = x.Copy(&c.writes, c.from.h, c.sourceOff+c.done, c.to.h, c.dstOff+c.done, min(left, copyStep))
	}
	if !ok || errors.Is(err, blockstore.ErrNotSupp) || errors.Is(err, blockstore.ErrXDev) {
		c.pieces = true
	}
	if c.pieces {
		if *buf == nil {
			*buf = make([]byte, min(left, nfs.MaxIO))
		}
		n, err = c.piece((*buf)[:min(left, uint64(len(*buf)))])
		if errors.Is(err, blockstore.ErrNotSupp) && !c.filled {
			c.filled = true
			n, err = c.piece((*buf)[:min(left, uint64(len(*buf)))])
		}
	}
	c.done += n
	return n, err
}

// piece copies the hole that is next, if there is one, and then as much data as p holds through it.
func (c *copying) piece(p []byte) (uint64, error) {
	skipped, data, err := c.extent()
	if err == nil && skipped > 0 {
		err = c.hole(skipped, data == 0)
	}
	if err != nil {
		return 0, err
	}
	if data == 0 {
		return skipped, nil
	}
	p = p[:min(uint64(len(p)), data)]
	at := c.done + skipped
	n, _, err := c.from.x.FS.ReadAt(&c.reads, c.from.h, p, c.sourceOff+at, false)
	if err != nil || n == 0 {
		return 0, err
	}
	n, _, _, err = c.to.x.FS.WriteAt(&c.writes, c.to.h, p[:n], c.dstOff+at, blockstore.Unstable)
	if err != nil {
		return 0, err
	}
	return skipped + uint64(n), nil
}

// extent is what is next in the source: a hole of so many bytes, and the data behind it, neither of
// which goes beyond what is to be copied. No data means that the hole is the rest. Where either
// store knows no holes, all is data.
func (c *copying) extent() (hole, data uint64, err error) {
	begin, left := c.sourceOff+c.done, c.count-c.done
	x, ok := c.from.x.FS.(blockstore.Extents)
	if _, to := c.to.x.FS.(blockstore.Extents); !ok || !to || c.filled {
		return 0, left, nil
	}
	next, err := x.Seek(&c.reads, c.from.h, begin, false)
	switch {
	case errors.Is(err, blockstore.ErrNXIO): // a hole up to the end, or behind it
		a, err := c.from.x.FS.GetAttr(&c.reads, c.from.h)
		if err != nil || a.Size <= begin {
			return 0, 0, err
		}
		return min(a.Size-begin, left), 0, nil
	case errors.Is(err, blockstore.ErrNotSupp):
		return 0, left, nil
	case err != nil:
		return 0, 0, err
	case next-begin >= left:
		return left, 0, nil
	}
	end, err := x.Seek(&c.reads, c.from.h, next, true)
	if err != nil {
		return 0, 0, err // it was cut off meanwhile
	}
	return next - begin, min(end-next, left-(next-begin)), nil
}

// hole makes the next n bytes a hole in the target. Behind its end they are one already, and the
// target grows by the data that follows, if the hole is not the last thing that is copied.
func (c *copying) hole(n uint64, last bool) error {
	fs, begin := c.to.x.FS, c.dstOff+c.done
	a, err := fs.GetAttr(&c.writes, c.to.h)
	if err != nil {
		return err
	}
	if begin < a.Size {
		if err := fs.(blockstore.Extents).Deallocate(&c.writes, c.to.h, begin, min(n, a.Size-begin)); err != nil {
			return err
		}
	}
	if end := begin + n; last && end > a.Size {
		_, err = fs.SetAttr(&c.writes, c.to.h, &blockstore.SetAttr{Size: &end}, nil)
	}
	return err
}
