package nfs4

import (
	"encoding/binary"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The cookies 0 to 2 are reserved (RFC 8881 section 18.23.3): 0 is the start, and the Linux client
// makes up the entries "." and ".." itself. If a store gives an entry one of these cookies, the
// wire has another:
//
//	store                wire
//	0, 1, 2              2^63-4, 2^63-3, 2^63-2
//	all others           the same
//
// The moved cookies stay below 2^63, because telldir(3) on the client returns a cookie as a signed
// off_t. No store may use the three values itself.
const (
	cookieReserved = 2
	cookieMoved    = 1<<63 - 4
)

// toWire returns the cookie that the client gets for a cookie of the store.
func toWire(cookie uint64) uint64 {
	if cookie <= cookieReserved {
		return cookieMoved + cookie
	}
	return cookie
}

// fromWire is the inverse of toWire. It lets 0 pass, which is the start for the store too.
func fromWire(cookie uint64) uint64 {
	if cookie >= cookieMoved && cookie <= cookieMoved+cookieReserved {
		return cookie - cookieMoved
	}
	return cookie
}

// listEnd is the size of the end of a dirlist4 in bytes: the booleans "no entry follows" and eof.
// The limit of a listing leaves room for it, so that an end always fits.
const listEnd = 4 + 4

// listing is a READDIR being answered. It exists for one call of readDir and is used by one
// goroutine.
type listing struct {
	k       *compound
	dir     object
	want    Bitmap     // of the attributes that the client wants and the export has
	start   int        // offset of READDIR4resok in the reply, in bytes
	limit   int        // bytes that READDIR4resok may have without its end; negative if maxcount is below 8
	entries int        // in the reply so far
	full    bool       // an entry did not fit, so eof is false
	fault   nfs.Status // status of an entry that makes the whole READDIR fail
}

// readDir is READDIR (RFC 8881 section 18.23, RFC 7530 section 16.24). READDIR4resok is bounded by
// maxcount and by the room in the session's reply. dircount is a hint that the server does not use.
// The cookie verifier is the store's: the store refuses a cookie whose verifier no longer fits.
//
//	arguments  uint64 cookie | 8 bytes cookieverf | uint32 dircount | uint32 maxcount | bitmap4
//	result     8 bytes cookieverf
//	           { true | uint64 cookie | component4 name | fattr4 } ...
//	           false | bool eof
//
//	a write-only attribute is wanted                    INVAL (section 5.5)
//	cookie 1 or 2                                       BAD_COOKIE
//	the first entry is longer than maxcount or the room TOOSMALL
//	an entry fails, and rdattr_error is not wanted      the status of the entry
//	no directory                                        NOTDIR, or SYMLINK
//
// A hostile client may send a cookie that no listing has returned. To the store it is only a
// position. maxcount is bounded by MaxIO (1 MiB).
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
	e.Uint64(0) // the verifier; it stays 0 for the pseudo file system
	var eof bool
	if k.cur.node != nil {
		eof = l.pseudo(cookie)
	} else {
		var err error
		if verf, eof, err = l.store(fromWire(cookie), verf); err != nil {
			if st := k.within(&k.cur, err); st != nfs.ErrInval {
				return st
			}
			// The arguments are valid here. So an INVAL of the store is taken to mean that the object is no
			// directory.
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

// put appends an entry4 if there is room, and reports whether the listing goes on. what returns the
// subject of the entry, which is the compound's only one. So put encodes it before it calls what
// again.
//
//	status of what           rdattr_error wanted     not wanted
//	NOENT, STALE             the entry is left out: another caller has removed it meanwhile
//	DELAY                    READDIR fails: the client or a worker begins again
//	any other                entry with rdattr_error READDIR fails
//
// DELAY must not become an rdattr_error: it can mean that the whole compound has to begin again on
// a worker (compound.again).
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
	// The length of an entry is known only when it is encoded. An entry that is too long is cut off
	// again.
	at := len(e.B)
	e.Bool(true)
	e.Uint64(cookie)
	e.String(name)
	if st != nfs.OK {
		s.fault = st
	}
	encodeAttrs(e, l.want, s)
	if len(e.B)-l.start > l.limit {
		e.Truncate(at)
		l.full = true
		return false
	}
	l.entries++
	return true
}

// pseudo lists a directory of the pseudo file system. The cookie of a child is its index plus 3. If
// the export list changes between two calls the index changes too: the client can miss a name or
// get one twice. The change attribute of the directory changes then, so that the client lists
// again.
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

// mounted returns the subject of a node: the root of its export, with the fsid of the export. A
// client learns from fsid that the entry is a mount point (RFC 8881 section 7.7).
func (l *listing) mounted(c *node) (*subject, nfs.Status) {
	o, st := l.k.at(c)
	if st != nfs.OK {
		return l.k.newSubject(&o), st
	}
	return l.k.subject(&o, l.want)
}

// cheap are the attributes of an entry that need no call of the store for the entry. If a READDIR
// wants only these, the store need not return Attr and Handle (plus), which saves a stat(2) for
// each entry.
var cheap = BitmapOf(AttrRdattrError, AttrFileID, AttrMountedOn, AttrFSID, AttrSupported, AttrLeaseTime)

// store lists a directory of an export. Its callback runs inside of the store's ReadDir, and may
// itself call stores: mounted does so for the root of a covering export. An entry is valid until
// the callback returns.
//
// An entry that an export covers stands for the root of that export. Names of the pseudo file
// system that the directory itself does not have are not listed. A client reaches them by LOOKUP,
// see walk.
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

// entry returns the subject of an entry of the store. Without plus it has only the file number. An
// entry without attributes is ACCESS. Either the caller may list the directory but not search it,
// or a file system of the host that no export has is mounted on the entry.
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

// patch overwrites four bytes at offset at, for a length or a status that is known only afterwards.
func patch(e *xdr.Encoder, at int, v uint32) { binary.BigEndian.PutUint32(e.B[at:], v) }
