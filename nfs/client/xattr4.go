package client

import (
	"bytes"
	"context"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The client has the extended attributes of users (RFC 8276). Names have no prefix "user.". All
// methods return nfs.ErrNotSupp if the server has no extended attributes, and nfs.ErrNoXattr for an
// attribute that does not exist.

// xattrPage is how many bytes of names the client asks for at once.
const xattrPage = 64 << 10

// GetXattr reads an extended attribute.
func (c *Client) GetXattr(ctx context.Context, h Handle, name string) (value []byte, err error) {
	err = c.xattr(ctx, &compound4{resMax: blockstore.XattrValueMax, ops: []op4{putFH(h), {
		nfs4.OpGetXattr, func(e *xdr.Encoder) { e.String(name) },
		func(d *xdr.Decoder) { value = bytes.Clone(d.Opaque(blockstore.XattrValueMax)) },
	}}})
	return value, err
}

// SetXattr sets an extended attribute. how says whether the attribute may, must or must not exist.
func (c *Client) SetXattr(ctx context.Context, h Handle, name string, value []byte, how blockstore.SetXattrMode) error {
	return c.xattr(ctx, &compound4{cache: true, ops: []op4{putFH(h), {
		nfs4.OpSetXattr, func(e *xdr.Encoder) {
			e.Uint32(uint32(how))
			e.String(name)
			e.Opaque(value)
		},
		func(d *xdr.Decoder) { d.Skip(changeInfoBytes) },
	}}})
}

// RemoveXattr removes an extended attribute.
func (c *Client) RemoveXattr(ctx context.Context, h Handle, name string) error {
	return c.xattr(ctx, &compound4{cache: true, ops: []op4{putFH(h), {
		nfs4.OpRemoveXattr, func(e *xdr.Encoder) { e.String(name) },
		func(d *xdr.Decoder) { d.Skip(changeInfoBytes) },
	}}})
}

// ListXattrs returns the names of the extended attributes of an object.
func (c *Client) ListXattrs(ctx context.Context, h Handle) (names []string, err error) {
	cookie, eof := uint64(0), false
	for !eof {
		last, page := cookie, []string(nil)
		err = c.xattr(ctx, &compound4{resMax: xattrPage, ops: []op4{putFH(h), {
			nfs4.OpListXattrs, func(e *xdr.Encoder) {
				e.Uint64(last)
				e.Uint32(xattrPage)
			},
			func(d *xdr.Decoder) {
				page = page[:0]
				cookie = d.Uint64()
				for n := d.Uint32(); n > 0 && d.Err() == nil; n-- {
					page = append(page, d.String(blockstore.NameMax))
				}
				eof = d.Bool()
			},
		}}})
		if err != nil {
			return nil, err
		}
		if !eof && cookie == last {
			return nil, errResults
		}
		names = append(names, page...)
	}
	return names, nil
}

func (c *Client) xattr(ctx context.Context, q *compound4) error {
	p, err := c.must42(ctx)
	if err != nil {
		return err
	}
	err = p.do(ctx, q)
	if absent(err) {
		return nfs.ErrNotSupp
	}
	return as3(err)
}
