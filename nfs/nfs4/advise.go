package nfs4

import (
	"errors"
	"math"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// Hints of IO_ADVISE (RFC 7862 section 15.5.2) that the server follows.
const (
	adviseWillNeed    = 4
	adviseWillNeedOpp = 5 // WILLNEED_OPPORTUNISTIC
	adviseDontNeed    = 6
)

// ioAdvise is IO_ADVISE (RFC 7862 section 15.5): stateid, offset, count, hints. The result has the
// hints that the server follows: the store reads data that the client will need, or drops data that
// it does not need, but not both. The server ignores all other hints. They are about one open, but
// the stores have no opens, so they would change how the file is read for all clients. The stateid
// is checked as for READ.
func ioAdvise(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	off, n := d.Uint64(), d.Uint64()
	hints, _ := DecodeBitmap(d)
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case k.cur.node != nil:
		return nfs.ErrIsDir
	case n > math.MaxUint64-off:
		return nfs.ErrInval
	}
	if st := k.ioState(id, false); st != nfs.OK {
		return k.ioFailed(st)
	}
	if st := k.regular(); st != nfs.OK {
		return st
	}
	x, ok := k.cur.x.FS.(blockstore.Advises)
	need, drop := hints.and(BitmapOf(adviseWillNeed, adviseWillNeedOpp)), hints.and(BitmapOf(adviseDontNeed))
	var err error
	switch {
	case !ok:
	case !need.empty():
		hints = need
		ok, err = x.WillNeed(k.who(&k.cur), k.cur.h, off, n)
	default:
		if hints = drop; !drop.empty() {
			ok, err = x.DontNeed(k.who(&k.cur), k.cur.h, off, n)
		}
	}
	switch {
	case err != nil && !errors.Is(err, blockstore.ErrNotSupp):
		return k.ioFailed(nfs.StatusOf(err))
	case !ok:
		hints = Bitmap{}
	}
	hints.Encode(&k.c.Res)
	return nfs.OK
}
