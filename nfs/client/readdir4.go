package client

import (
	"context"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// readDir is READDIR (section 18.23).
func (p proc4) readDir(ctx context.Context, dir Handle, at *dirAt) (page []Entry, err error) {
	x, err := p.ready(ctx)
	if err != nil {
		return nil, err
	}
	size := min(uint32(dirReply), x.fore.MaxResponse-overhead)
	var next dirAt
	err = p.do(ctx, &compound4{resMax: int(size), ops: []op4{putFH(dir), {nfs4.OpReadDir, func(e *xdr.Encoder) {
		e.Uint64(at.cookie)
		e.Fixed(at.verifier[:])
		e.Uint32(size / 4)
		e.Uint32(size)
		ofEntry.Encode(e)
	}, func(d *xdr.Decoder) {
		page, next = decodePage(d, page[:0])
	}}}})
	if err != nil {
		return nil, as3(err)
	}
	*at = next
	return page, nil
}

// decodePage reads a READDIR4resok. If the server cannot read the attributes of an entry, the entry
// has rdattr_error, and the result has no handle and no attributes for it.
func decodePage(d *xdr.Decoder, page []Entry) ([]Entry, dirAt) {
	at := dirAt{verifier: nfs3.DecodeVerifier(d)}
	for d.Bool() && d.Err() == nil {
		at.cookie = d.Uint64()
		e := Entry{Cookie: at.cookie, Name: d.String(nfs3.NameLimit)}
		var a attrs4
		a.decode(d)
		if a.fault == nfs.OK && d.Err() == nil {
			e.Handle, e.FileID = a.fh, a.attr.FileID
			e.Attr = &a.attr
		}
		page = append(page, e)
	}
	at.eof = d.Bool()
	return page, at
}
