package tcp

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// clientWriteTimeout ends connections whose server does not take calls.
const clientWriteTimeout = time.Minute

// Bounds of what one system call writes. A call that exceeds batchBytes is written alone, so the
// reply to a call that is short never waits for the writing of a long one behind it.
const (
	batchCalls = 32
	batchBytes = 128 << 10
)

// The stages of writing a call. A call changes to queued and to writing under outbox.mu.
//
//	0 --send--> queued --take--> writing --> written
//	              |
//	              | unsend, also after a reply that the server had no call for
//	              v
//	              0
const (
	queued = iota + 1
	writing
	written
)

// outbox has the calls that are to be written. The caller that finds no writer becomes the writer:
// it writes its own call and those that others have queued meanwhile, with one system call for all
// of them.
type outbox struct {
	mu       sync.Mutex
	finished sync.Cond // a batch was written; its lock is mu
	queue    []*pending
	active   bool // there is a writer

	// The writer's own.
	batch []*pending
	parts [][]byte    // of the records of batch
	left  net.Buffers // what is left of them
	due   deadline
}

// send queues a call, and writes it unless another caller does. The memory of the call is used
// until its stage is written, or until unsend returns. A slow server delays all calls, and fails
// the connection after clientWriteTimeout.
func (c *Client) send(p *pending) {
	o := &c.out
	p.mark = rpc.RecordMark(p.call.Len())
	p.stage.Store(queued)
	o.mu.Lock()
	o.queue = append(o.queue, p)
	lead := !o.active
	o.active = true
	o.mu.Unlock()
	if lead {
		c.write(p)
	}
}

// write writes what is queued. own is the call of the caller, nil if it has none: once its reply
// has arrived, another goroutine writes the rest.
func (c *Client) write(own *pending) {
	o := &c.out
	if own == nil || !own.alone {
		// Callers that can run now add their calls first. Otherwise each reply that wakes a caller would
		// cost a system call for the next call.
		runtime.Gosched()
	}
	for o.take() {
		c.writeBatch()
		if own != nil && len(own.done) > 0 {
			go c.write(nil)
			return
		}
	}
}

// take ends the batch that was written, and moves calls from the queue to the next one. It reports
// false, and there is no writer any more, if there are none. The writer calls it.
func (o *outbox) take() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished.Broadcast()
	n, size := 0, 0
	for ; n < min(len(o.queue), batchCalls); n++ {
		p := o.queue[n]
		if size += p.call.Len(); n > 0 && size > batchBytes {
			break
		}
		p.stage.Store(writing)
	}
	o.batch = append(o.batch[:0], o.queue[:n]...)
	o.queue = slices.Delete(o.queue, 0, n)
	o.active = n > 0
	return o.active
}

// writeBatch writes the calls of batch. The writer calls it.
func (c *Client) writeBatch() {
	o := &c.out
	o.parts = o.parts[:0]
	for _, p := range o.batch {
		o.parts = appendMessage(append(o.parts, p.mark[:]), &p.call)
	}
	o.left = o.parts
	// The deadline is not that of a call: half a record would end the connection for all calls.
	o.due.extend(c.conn, clientWriteTimeout)
	_, err := writeParts(c.conn, &o.left)
	clear(o.parts)
	for i, p := range o.batch {
		p.stage.Store(written)
		o.batch[i] = nil
	}
	if err != nil {
		c.unsendable(err)
	}
}

// unsend returns when nothing uses the memory of a call any more.
func (c *Client) unsend(p *pending) {
	if p.stage.Load() == written {
		return
	}
	o := &c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.queue, p); i >= 0 {
		o.queue = slices.Delete(o.queue, i, i+1)
		p.stage.Store(0)
	}
	for p.stage.Load() == writing {
		o.finished.Wait()
	}
}

// drainTimeout bounds the reading of replies after a failed write. The server has closed the
// connection, so the replies are in the socket already.
const drainTimeout = 5 * time.Second

// unsendable ends a connection after a failed write. It first reads the replies that have arrived:
// our host has acknowledged them, so the server may have removed them from its reply cache, and
// sending these calls again would execute them twice.
func (c *Client) unsendable(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		c.fail(err)
		return
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(drainTimeout))
}

// deadline is the write deadline of a connection. Setting it costs a timer, so it is not set for
// each write.
type deadline struct{ set time.Time }

// deadlinePart is the part of a timeout by which it may be too short.
const deadlinePart = 10

// extend sees to it that a write that begins now fails after timeout, or at most a tenth of it
// earlier.
func (d *deadline) extend(c net.Conn, timeout time.Duration) {
	now := time.Now()
	if d.set.IsZero() || now.Sub(d.set) >= timeout/deadlinePart {
		d.set = now
		_ = c.SetWriteDeadline(now.Add(timeout))
	}
}
