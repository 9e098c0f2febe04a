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

// A synchronous COPY ends after copyTime or copyMax bytes, so that it holds neither a
// worker nor its session's slot for long. Every COPY goes in steps of copyStep bytes;
// one of a single step is always synchronous.
const (
	copyTime = 250 * time.Millisecond
	copyMax  = 1 << 30
	copyStep = 16 << 20
)

// copying is a COPY that was admitted. It does not need its compound.
type copying struct {
	from, to object
	transfer
	// Two exports may have two rules, and two identities.
	reads, writes blockstore.Cred
	verf          [verifierLen]byte
	done          uint64
	pieces        bool // the store cannot copy by itself
}

func (k *compound) copying(t *transfer) *copying {
	c := &copying{from: k.saved, to: k.cur, transfer: *t, verf: k.cur.x.FS.Verifier(), pieces: !k.saved.sameFS(&k.cur)}
	c.reads = *k.who(&k.saved)
	c.reads.Groups = slices.Clone(c.reads.Groups)
	c.writes = *k.who(&k.cur)
	c.writes.Groups = slices.Clone(c.writes.Groups)
	return c
}

// copyFile is COPY (RFC 7862 section 15.2) within this server. A synchronous one is
// answered when it is done, at least in part: the client goes on from there.
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
	for begin := k.s.now(); c.done < min(c.count, copyMax) && k.s.now().Sub(begin) < copyTime; {
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
		encodeStateid(e, o.ID())
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
	}
	c.done += n
	return n, err
}

// piece copies as much as p holds through it.
func (c *copying) piece(p []byte) (uint64, error) {
	n, _, err := c.from.x.FS.ReadAt(&c.reads, c.from.h, p, c.sourceOff+c.done, false)
	if err != nil || n == 0 {
		return 0, err
	}
	n, _, _, err = c.to.x.FS.WriteAt(&c.writes, c.to.h, p[:n], c.dstOff+c.done, blockstore.Unstable)
	return uint64(n), err
}
