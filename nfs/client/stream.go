package client

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// fetched is one READ of a stream, of up to TransferMax bytes.
type fetched struct {
	buf  *[]byte
	n    int
	eof  bool
	err  error
	done chan struct{}
}

// Stream writes a file from off to its end into w, in order, with Depth READs ahead of the writer.
// It returns the number of bytes written. It ends where the server reports the end of the file. If
// the file grows meanwhile, Stream writes the new data too.
func (c *Client) Stream(ctx context.Context, h Handle, w io.Writer, off uint64) (total int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// One READ first: most files are not longer.
	ahead := []*fetched{c.fetch(ctx, h, off)}
	next := off + TransferMax
	open := false
	defer func() {
		cancel()
		for _, f := range ahead {
			f.release()
		}
	}()
	for len(ahead) > 0 {
		f := ahead[0]
		<-f.done
		if f.err != nil {
			return total, f.err
		}
		if !f.eof && !open {
			open = true
			release, e := c.acquire(ctx, h, ShareRead, 0)
			if e != nil {
				return total, e
			}
			defer func() { err = errors.Join(err, release()) }()
		}
		if !f.eof {
			for len(ahead) <= c.cfg.Depth {
				ahead = append(ahead, c.fetch(ctx, h, next))
				next += TransferMax
			}
		}
		n, err := w.Write((*f.buf)[:f.n])
		total += int64(n)
		if err != nil {
			return total, err
		}
		if f.eof {
			return total, nil
		}
		ahead = ahead[1:]
		f.release()
	}
	return total, nil
}

// fetch reads one full piece, or up to the end of the file.
func (c *Client) fetch(ctx context.Context, h Handle, off uint64) *fetched {
	f := &fetched{buf: buffers.Get().(*[]byte), done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for f.n < len(*f.buf) && !f.eof && f.err == nil {
			var n int
			n, f.eof, f.err = c.Read(ctx, h, (*f.buf)[f.n:], off+uint64(f.n))
			f.n += n
			if n == 0 && !f.eof && f.err == nil {
				f.err = fmt.Errorf("%w: a READ gave nothing before the end of the file", errResults)
			}
		}
	}()
	return f
}

// release waits for the READ, and then returns its buffer to the pool.
func (f *fetched) release() {
	<-f.done
	buffers.Put(f.buf)
}
