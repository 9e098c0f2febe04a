package client

import (
	"context"
	"slices"
)

// DirReader reads a directory page by page, from any place on. Its methods are called from one
// goroutine at a time.
type DirReader struct {
	c   *Client
	dir Handle
	at  dirAt
}

// DirReader returns a reader that is at the start of a directory. It makes no call.
func (c *Client) DirReader(dir Handle) *DirReader { return &DirReader{c: c, dir: dir} }

// Next returns the next entries, "." and ".." left out, and nothing at the end of the directory.
func (r *DirReader) Next(ctx context.Context) ([]Entry, error) {
	p, err := r.c.procs(ctx)
	if err != nil {
		return nil, err
	}
	for !r.at.eof {
		page, err := nextPage(ctx, p, r.dir, &r.at)
		if err != nil || len(page) > 0 {
			return page, err
		}
	}
	return nil, nil
}

// Seek continues behind the entry with a cookie; 0 is the start. The server can refuse a cookie
// that it did not return to this reader (nfs.ErrBadCookie).
func (r *DirReader) Seek(cookie uint64) {
	r.at.cookie, r.at.eof = cookie, false
	if cookie == 0 {
		r.at = dirAt{}
	}
}

// nextPage reads a page of a directory, without "." and "..", and advances at.
func nextPage(ctx context.Context, p procs, dir Handle, at *dirAt) ([]Entry, error) {
	last := at.cookie
	page, err := p.readDir(ctx, dir, at)
	if err != nil {
		return nil, err
	}
	if !at.eof && at.cookie == last {
		return nil, errResults // a page without entries that is not the end
	}
	return slices.DeleteFunc(page, func(e Entry) bool { return e.Name == "." || e.Name == ".." }), nil
}
