package endpoint

import (
	"context"
	"sync"

	"github.com/rstored/rstored/rdma"
)

// op is a list of send requests that a goroutine waits for. It belongs to the loop from submit to
// finish, and to the goroutine before and after.
type op struct {
	c    *Conn
	wrs  []rdma.SendWR
	post func() // the method submit, made once: each use would allocate
	done chan struct{}
	wc   rdma.WC
	err  error
	fail bool
}

var ops = sync.Pool{New: func() any {
	o := &op{done: make(chan struct{}, 1)}
	o.post = o.submit
	return o
}}

// submit posts the requests. On the loop.
func (o *op) submit() {
	c := o.c
	id := c.next
	c.next++
	for i := range o.wrs {
		o.wrs[i].ID = id << 1
	}
	last := &o.wrs[len(o.wrs)-1]
	last.ID |= 1
	last.Flags |= rdma.Signaled
	if err := c.conn.QP().PostSend(o.wrs); err != nil {
		o.err = err
		o.finish()
		return
	}
	c.ops[id] = o
}

func (o *op) finish() { o.done <- struct{}{} }

// Do posts requests as one list and waits until the last has completed. The
// completion is that of the last, or of the first that failed.
func (c *Conn) Do(ctx context.Context, wrs ...rdma.SendWR) (rdma.WC, error) {
	if len(wrs) == 0 {
		return rdma.WC{}, nil
	}
	o := ops.Get().(*op)
	o.c, o.err, o.fail, o.wc = c, nil, false, rdma.WC{}
	o.wrs = append(o.wrs[:0], wrs...)
	if !c.loop.Submit(o.post) {
		return rdma.WC{}, rdma.ErrClosed
	}
	var late error
	select {
	case <-o.done:
	case <-ctx.Done():
		late = ctx.Err()
		c.Disconnect()
		<-o.done
	}
	wc, err := o.wc, o.err
	clear(o.wrs)
	ops.Put(o)
	switch {
	case late != nil && (err != nil || wc.Status != rdma.Success):
		return wc, late
	case err != nil:
		return wc, err
	case wc.Status != rdma.Success:
		return wc, &Error{Op: wc.Op, Status: wc.Status}
	}
	return wc, nil
}

// transfer does one request with n bytes of a region.
func (c *Conn) transfer(ctx context.Context, w rdma.SendWR, m rdma.MR, off, n int, remote Remote) error {
	if m != nil && n != 0 {
		w.SGL = []rdma.SGE{{Buf: m.Bytes()[off : off+n], LKey: m.LKey()}}
	}
	w.RemoteAddr, w.RKey = remote.Addr, remote.RKey
	_, err := c.Do(ctx, w)
	return err
}

// Send sends n bytes of a region as one message.
func (c *Conn) Send(ctx context.Context, m rdma.MR, off, n int) error {
	return c.transfer(ctx, rdma.SendWR{Op: rdma.OpSend}, m, off, n, Remote{})
}

// Write writes n bytes of a region into memory of the peer.
func (c *Conn) Write(ctx context.Context, m rdma.MR, off, n int, to Remote) error {
	return c.transfer(ctx, rdma.SendWR{Op: rdma.OpWrite}, m, off, n, to)
}

// Read reads memory of the peer into n bytes of a region.
func (c *Conn) Read(ctx context.Context, m rdma.MR, off, n int, from Remote) error {
	return c.transfer(ctx, rdma.SendWR{Op: rdma.OpRead}, m, off, n, from)
}

// CompareSwap replaces 8 bytes of the peer's memory by swap if they are compare. It puts the old
// value into 8 bytes of a region, in the byte order of this host.
func (c *Conn) CompareSwap(ctx context.Context, m rdma.MR, off int, at Remote, compare, swap uint64) error {
	return c.transfer(ctx, rdma.SendWR{Op: rdma.OpCompareSwap, Compare: compare, SwapAdd: swap}, m, off, 8, at)
}

// FetchAdd adds to 8 bytes of the peer's memory. It puts the old value into 8 bytes of a region.
func (c *Conn) FetchAdd(ctx context.Context, m rdma.MR, off int, at Remote, add uint64) error {
	return c.transfer(ctx, rdma.SendWR{Op: rdma.OpFetchAdd, SwapAdd: add}, m, off, 8, at)
}
