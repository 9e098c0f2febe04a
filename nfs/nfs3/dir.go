package nfs3

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Sizes of directory listings, in bytes of XDR.
const (
	// entryFixed is an entry3 without its name: "value follows", fileid, the
	// name's length, cookie.
	entryFixed = 4 + 8 + 4 + 8
	// listEnd is "no value follows" and eof.
	listEnd = 4 + 4
)

// entryLen is the size of an entry3.
func entryLen(name string) int { return entryFixed + len(name) + xdr.Pad(len(name)) }

// readDir is READDIR (RFC 1813 section 3.3.16).
func readDir(o *op) rpc.Status {
	d := &o.c.Args
	fh := DecodeHandle(d)
	cookie, verf := d.Uint64(), DecodeVerifier(d)
	count := d.Uint32()
	return o.list(fh, cookie, verf, false, count, count)
}

// readDirPlus is READDIRPLUS (section 3.3.17).
func readDirPlus(o *op) rpc.Status {
	d := &o.c.Args
	fh := DecodeHandle(d)
	cookie, verf := d.Uint64(), DecodeVerifier(d)
	dirCount, maxCount := d.Uint32(), d.Uint32()
	return o.list(fh, cookie, verf, true, dirCount, maxCount)
}

// list answers READDIR and READDIRPLUS. A client chooses both bounds, and MaxIO bounds them again,
// because the reply is built in memory:
//
//	maxCount   bytes of READDIR3resok or READDIRPLUS3resok
//	dirCount   bytes of the entries without attributes and handles; there is always room for one
//	           entry (section 3.3.17)
//
// An entry that does not fit is cut off again. The verifier is the store's. If the store no longer
// knows the listing of a cookie, the status is BAD_COOKIE.
func (o *op) list(fh []byte, cookie uint64, verf [VerifierLen]byte, plus bool, dirCount, maxCount uint32) rpc.Status {
	dir, st := o.resolve(fh)
	if st == nfs.OK && plus && o.rule.NoReadDirPlus {
		st = nfs.ErrNotSupp
	}
	if st != nfs.OK {
		return o.failPost(st, &dir)
	}
	limit := int(min(maxCount, nfs.MaxIO)) - listEnd
	names := int(min(dirCount, nfs.MaxIO))
	e := &o.c.Res
	base := len(e.B)

	// The attributes are read before the listing. If the directory changes in between, the client sees
	// an old mtime and lists the directory again.
	a, err := o.x.FS.GetAttr(&o.cred, dir)
	if err != nil {
		return o.failPost(nfs.StatusOf(err), &dir)
	}
	o.attr = a
	e.Uint32(uint32(nfs.OK))
	start := len(e.B)
	o.putPostOp(&o.attr)
	verfAt := len(e.B)
	e.Uint64(0) // the verifier, known at the end

	entries, full := 0, false
	newVerf, eof, err := o.x.FS.ReadDir(&o.cred, dir, cookie, verf, plus, func(ent *blockstore.DirEntry) bool {
		size := entryLen(ent.Name)
		if plus && entries > 0 && size > names {
			full = true
			return false
		}
		names -= size
		at := len(e.B)
		e.Bool(true)
		e.Uint64(ent.FileID)
		e.String(ent.Name)
		e.Uint64(ent.Cookie)
		if plus {
			if ent.Handle != nil && o.child(&dir, ent.Name) != nil {
				ent.Attr, ent.Handle = nil, nil // another export: the client looks it up
			}
			o.putPostOp(ent.Attr)
			e.Bool(ent.Handle != nil)
			if ent.Handle != nil {
				var b [nfs.HandleMax]byte
				EncodeHandle(e, o.s.Codec.AppendNoted(b[:0], o.x.ID, ent.Handle, ent.Note))
			}
		}
		if len(e.B)-start > limit {
			e.Truncate(at)
			full = true
			return false
		}
		entries++
		return true
	})
	switch {
	case err != nil:
		st = nfs.StatusOf(err)
	case entries == 0 && full, len(e.B)-start > limit:
		st = nfs.ErrTooSmall
	}
	if st != nfs.OK {
		e.Truncate(base)
		return o.failPost(st, &dir)
	}
	copy(e.B[verfAt:], newVerf[:])
	e.Bool(false)
	e.Bool(eof && !full)
	o.s.Counters.Status(nfs.OK)
	return rpc.Done
}
