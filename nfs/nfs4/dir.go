package nfs4

import (
	"encoding/binary"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Cookies 0 to 2 mean something else to clients: the start, and "." and "..", which
// are not listed. An entry of a store that has one of them gets another.
const (
	cookieReserved = 2
	cookieMoved    = 1<<63 - 4
)

func toWire(cookie uint64) uint64 {
	if cookie <= cookieReserved {
		return cookieMoved + cookie
	}
	return cookie
}

func fromWire(cookie uint64) uint64 {
	if cookie >= cookieMoved && cookie <= cookieMoved+cookieReserved {
		return cookie - cookieMoved
	}
	return cookie
}

// listEnd is what ends a dirlist4: "no entry follows" and eof.
const listEnd = 4 + 4

// listing is a READDIR being answered.
type listing struct {
	k       *compound
	dir     object
	want    Bitmap
	start   int // of READDIR4resok in the reply
	limit   int // of READDIR4resok, less its end
	entries int
	full    bool
	fault   nfs.Status // of an entry, if rdattr_error was not asked for
}

// readDir is READDIR (RFC 8881 section 18.23, RFC 7530 section 16.24). maxcount bounds
// READDIR4resok, and so does what the session's reply has room for. dircount is a hint that is not
// needed. The cookie verifier is the store's, which refuses a cookie that no longer fits.
//
// A cookie that no listing has returned, as a hostile client may send it, is only a position for
// the store.
func readDir(k *compound) nfs.Status {
	d := &k.c.Args
	cookie := d.Uint64()
	verf := decodeVerifier(d)
	d.Uint32()
	maxCount := d.Uint32()
	want, _ := DecodeBitmap(d)
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case !want.and(writeOnly).empty():
		return nfs.ErrInval
	case cookie == 1 || cookie == cookieReserved:
		return nfs.ErrBadCookie
	}
	e := &k.c.Res
	l := listing{
		k: k, dir: k.cur, want: want.and(k.supported(k.cur.x)), start: len(e.B),
		limit: min(int(min(maxCount, nfs.MaxIO)), k.room()) - listEnd,
	}
	e.Uint64(0) // the verifier
	var eof bool
	if k.cur.node != nil {
		eof = l.pseudo(cookie)
	} else {
		var err error
		if verf, eof, err = l.store(fromWire(cookie), verf); err != nil {
			if st := k.within(&k.cur, err); st != nfs.ErrInval {
				return st
			}
			return k.within(&k.cur, blockstore.ErrNotDir)
		}
		copy(e.B[l.start:], verf[:])
	}
	switch {
	case l.fault != nfs.OK:
		return l.fault
	case l.entries == 0 && l.full, len(e.B)-l.start > l.limit:
		return nfs.ErrTooSmall
	}
	e.Bool(false)
	e.Bool(eof && !l.full)
	return nfs.OK
}

// put appends an entry4, if there is room. what fills in who it is.
func (l *listing) put(name string, cookie uint64, what func() (*subject, nfs.Status)) bool {
	e := &l.k.c.Res
	s, st := what()
	if st == nfs.ErrNoEnt || st == nfs.ErrStale {
		return true // it has gone meanwhile
	}
	if st == nfs.ErrJukebox || st != nfs.OK && !l.want.Has(AttrRdattrError) {
		l.fault = st
		return false
	}
	at := len(e.B)
	e.Bool(true)
	e.Uint64(cookie)
	e.String(name)
	s.fault = st
	encodeAttrs(e, l.want, s)
	if len(e.B)-l.start > l.limit {
		e.Truncate(at)
		l.full = true
		return false
	}
	l.entries++
	return true
}

// pseudo lists a directory of the pseudo file system: cookies count from 3.
func (l *listing) pseudo(cookie uint64) (eof bool) {
	client := &l.k.c.Peer
	for i, c := range l.dir.node.children {
		at := uint64(i) + cookieReserved + 1
		if at <= cookie || !c.visible(client) {
			continue
		}
		ok := l.put(c.name, at, func() (*subject, nfs.Status) { return l.mounted(c) })
		if !ok {
			return false
		}
	}
	return true
}

// mounted is what is seen at a node: the root of its export.
func (l *listing) mounted(c *node) (*subject, nfs.Status) {
	o, st := l.k.at(c)
	if st != nfs.OK {
		return l.k.newSubject(&o), st
	}
	return l.k.subject(&o, l.want)
}

// cheap are the attributes that are known of an entry without looking at it.
var cheap = BitmapOf(AttrRdattrError, AttrFileID, AttrMountedOn, AttrFSID, AttrSupported, AttrLeaseTime)

// store lists a directory of an export.
func (l *listing) store(cookie uint64, verf [VerifierLen]byte) ([VerifierLen]byte, bool, error) {
	k, x := l.k, l.dir.x
	plus := !l.want.without(cheap).empty()
	over := l.k.s.pseudo().byExport[x.ID]
	if over != nil && (len(over.children) == 0 || k.mountpoint(&l.dir) == nil) {
		over = nil
	}
	return x.FS.ReadDir(k.who(&l.dir), l.dir.h, cookie, verf, plus, func(ent *blockstore.DirEntry) bool {
		if ent.Name == "." || ent.Name == ".." {
			return true
		}
		return l.put(ent.Name, toWire(ent.Cookie), func() (*subject, nfs.Status) {
			if c := k.s.below(&l.dir, ent.Name); c != nil && c.visible(&k.c.Peer) {
				return l.mounted(c)
			}
			if over != nil {
				if c := over.child(ent.Name); c != nil && c.export != nil && c.visible(&k.c.Peer) {
					return l.mounted(c)
				}
			}
			return l.entry(ent, plus)
		})
	})
}

// entry is what a store says of an entry.
func (l *listing) entry(ent *blockstore.DirEntry, plus bool) (*subject, nfs.Status) {
	s := l.k.newSubject(&object{x: l.dir.x, rule: l.dir.rule})
	if !plus {
		s.attr.FileID = ent.FileID
		return s, nfs.OK
	}
	if ent.Attr == nil || ent.Handle == nil {
		return s, nfs.ErrAcces
	}
	s.h = *ent.Handle
	want := l.want
	want.clear(AttrMountedOn) // it is not the root
	return s, l.k.of(s, ent.Attr, want)
}

// patch writes a word into what is encoded.
func patch(e *xdr.Encoder, at int, v uint32) { binary.BigEndian.PutUint32(e.B[at:], v) }
