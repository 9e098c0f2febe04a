package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// FileData is the beginning of a file that ReadFiles reads.
type FileData struct {
	Handle Handle
	Data   []byte // filled by ReadFiles
}

// readResult bounds the results of PUTFH and READ without the data, in bytes.
const readResult = 40

// ReadFiles fills the Data of several small files, with as many in one round trip as the session
// allows. It returns how many it has filled, in order. A file that is shorter than its Data ends it
// with io.ErrUnexpectedEOF.
//
// ReadFiles needs version 4. Otherwise it makes no call, and its error matches
// errors.ErrUnsupported.
func (c *Client) ReadFiles(ctx context.Context, files []FileData) (n int, err error) {
	p, err := c.procs(ctx)
	if err != nil {
		return 0, err
	}
	four, ok := p.(proc4)
	if !ok {
		return 0, fmt.Errorf("several operations in one call in version 3: %w", errors.ErrUnsupported)
	}
	for n < len(files) && err == nil {
		var k int
		k, err = four.readFiles(ctx, files[n:])
		n += k
	}
	return n, as3(err)
}

// readFiles is ReadFiles of the first of the files, as many as fit into one compound: PUTFH and READ
// for each of them (RFC 8881 section 18.22).
func (p proc4) readFiles(ctx context.Context, files []FileData) (n int, err error) {
	x, err := p.ready(ctx)
	if err != nil {
		return 0, err
	}
	var q compound4
	room := int(x.fore.MaxResponse) - overhead
	short := make([]bool, len(files))
	for i := range files {
		f := &files[i]
		size := xdr.Padded(len(f.Data)) + readResult
		if i > 0 && (room < size || len(q.ops)+3 > int(x.fore.MaxOps)) { // 1 more for SEQUENCE
			break
		}
		room -= size
		q.resMax += size
		q.ops = append(q.ops, putFH(f.Handle), op4{nfs4.OpRead, func(e *xdr.Encoder) {
			nfs4.EncodeStateid(e, state.Anonymous)
			e.Uint64(0)
			e.Uint32(uint32(len(f.Data)))
		}, func(d *xdr.Decoder) {
			d.Bool() // eof
			short[i] = copy(f.Data, d.Opaque(len(f.Data))) < len(f.Data)
		}})
	}
	err = p.do(ctx, &q)
	for n < q.executed/2 {
		if short[n] {
			return n, io.ErrUnexpectedEOF
		}
		n++
	}
	return n, err
}
