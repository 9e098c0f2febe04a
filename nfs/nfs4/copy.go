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
// its session's slot for long. The client sends another COPY for the rest. Every COPY goes in steps
// of copyStep bytes, and a COPY of one step is always synchronous. After OFFLOAD_CANCEL, Pause or
// Close, a copy continues for at most the rest of its step.
const (
	copyTime = 250 * time.Millisecond
	copyMax  = 1 << 30
	copyStep = 16 << 20
)

// copying is a COPY that was admitted. It can outlive its compound and refers to nothing of it. Its
// group lists are copies, because the compound reuses its own for the next call.
type copying struct {
	from, to object
	transfer
	// Identities of the caller: the exports of source and target may map the caller to different
	// users.
	reads, writes blockstore.Cred
	verf          [VerifierLen]byte // of the target's store, before the first byte was written
	done          uint64            // bytes from the begin of both ranges, holes included
	// pieces: the store cannot copy, so data is read and written. filled: the target's store cannot
	// make holes, so zeros are written. Once true, both stay true.
	pieces bool
	filled bool
	// remote is the source, if another server has it; from and reads are zero then.
	remote *CopySource
}

// copying returns the copy from the saved file to the current one. The caller has checked both.
func (k *compound) copying(t *transfer) *copying {
	c := &copying{from: k.saved, to: k.cur, transfer: *t, verf: k.cur.x.FS.Verifier()}
	c.reads = *k.who(&k.saved)
	c.reads.Groups = slices.Clone(c.reads.Groups)
	c.writes = *k.who(&k.cur)
	c.writes.Groups = slices.Clone(c.writes.Groups)
	return c
}

// copyFile is COPY (RFC 7862 section 15.2), within this server or from another one. Its arguments:
//
//	source and target stateid
//	source offset, target offset, count     count 0: up to the end of the source
//	consecutive, synchronous                bool
//	source servers<>                        see copyRemote, unless empty
//
// A synchronous copy may be answered when a part is copied, and the client continues behind that
// part. The server always copies in order (consecutively), whatever the client wants. So the bytes
// that the result counts are always the first ones of the range.
//
//	INVAL     the source range ends behind the source; two ranges of one file overlap
//	FBIG      the target range ends beyond the largest offset
//	ISDIR, SYMLINK, WRONG_TYPE, OPENMODE, BAD_STATEID, LOCKED, GRACE, DELAY, ROFS   admitTransfer
//
// An error after some bytes were copied is not reported. The result counts these bytes, and the
// client's next COPY meets the same error at its beginning.
func copyFile(k *compound) nfs.Status {
	d := &k.c.Args
	t := k.decodeTransfer()
	d.Bool() // ca_consecutive
	synchronous := d.Bool()
	servers := d.Uint32()
	if servers > serversMax {
		return nfs.ErrBadXDR
	}
	at, byRDMA := k.sourceServer(servers)
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case servers > 0:
		return k.copyRemote(&t, at, byRDMA, synchronous)
	case k.saved.foreign != nil:
		return nfs.ErrStale
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

// encodeCopied appends a COPY4resok:
//
//	write_response4     callback_id<1>   the stateid of an asynchronous copy
//	                    count            bytes copied; 0 if asynchronous
//	                    committed        UNSTABLE: the client sends COMMIT
//	                    verifier         compared with that of COMMIT
//	copy_requirements4  consecutive, synchronous
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

// step copies at most copyStep bytes: by the store if the store can, else one piece through *buf.
// The caller owns *buf and passes it to each step; step allocates it if it is nil. The result is
// the number of bytes. It is 0 only at the end of the source, which another client can truncate
// meanwhile.
//
// If the store returns ErrNotSupp or ErrXDev, that is no error: from then on step reads and writes
// pieces.
func (c *copying) step(buf *[]byte) (n uint64, err error) {
	left := c.count - c.done
	if !c.pieces {
		n, err = c.byStore(min(left, copyStep))
		c.pieces = errors.Is(err, blockstore.ErrNotSupp) || errors.Is(err, blockstore.ErrXDev)
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

// byStore copies at most n bytes by the store of the target. The source may be in another export of
// the same file system.
func (c *copying) byStore(n uint64) (uint64, error) {
	from, to := c.sourceOff+c.done, c.dstOff+c.done
	if c.from.sameFS(&c.to) {
		if x, ok := c.to.x.FS.(blockstore.Extents); ok {
			return x.Copy(&c.writes, c.from.h, from, c.to.h, to, n)
		}
	} else if x, ok := c.to.x.FS.(blockstore.Siblings); ok {
		return x.CopyFrom(&c.writes, c.from.x.FS, &c.reads, c.from.h, from, c.to.h, to, n)
	}
	return 0, blockstore.ErrNotSupp
}

// piece copies the next hole, if there is one, and the data behind it through p, at most len(p)
// bytes of data. It returns the bytes of both. The data is written UNSTABLE. A short write ends the
// piece; the next piece begins behind it. If the write fails after the hole was made, the hole is
// not counted, and the retry makes it again.
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

// extent returns what comes next in the source, in bytes: a hole, and the data behind the hole.
// Both end at the end of the range at the latest:
//
//	0, n    data
//	m, n    a hole, and data behind it
//	m, 0    a hole up to the end of the range or of the source
//	0, 0    the end of the source
//
// If one of the two stores has no holes, everything is data.
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
		return 0, 0, err // another client has truncated the source meanwhile
	}
	return next - begin, min(end-next, left-(next-begin)), nil
}

// hole makes the next n bytes a hole in the target. Behind the end of the target they are a hole
// already, and the target grows when the data behind the hole is written. If no data follows
// (last), SetAttr of the size makes the target grow, unless another client has made it larger
// meanwhile. The caller makes a hole before it copies the data behind it.
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
		_, err = fs.SetAttr(&c.writes, c.to.h, &blockstore.SetAttr{Size: &end, Grow: true}, nil)
	}
	return err
}
