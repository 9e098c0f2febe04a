package fusefs

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// How long data waits for more data before it is sent, and how long an unstable WRITE waits for a
// COMMIT after its reply.
const (
	sendAfter   = time.Second
	commitAfter = 5 * time.Second
)

// smallChunk is the size in bytes up to which a chunk returns its block to the pool when it is
// sent. Otherwise many small writes at random places would occupy the pool.
const smallChunk = maxTransfer / 4

// inFlight bounds the WRITEs of one file that are in flight.
const inFlight = 32

// chunk is data that was written and is not stable. It moves through these states:
//
//	cur        the chunk that writes are appended to
//	flights    its WRITE is in flight
//	unstable   acknowledged, until a COMMIT
type chunk struct {
	off      uint64
	data     []byte
	pooled   bool   // data is a block of the pool
	number   uint64 // counts the WRITEs of the file in the order of their start
	since    time.Time
	verifier [nfs3.VerifierLen]byte
	deleg    *client.Delegation // delegation for writing under which the data was written; nil: none
	base     baseline
	guarded  bool // deleg is lost: the data is written only if the file is as base says
}

// baseline is what was known of a file before data was written that waits.
type baseline struct {
	attr  nfs3.Attr
	stale bool // this mount has changed the file since attr was read
}

func (c *chunk) end() uint64 { return c.off + uint64(len(c.data)) }

// overlaps reports whether a chunk has bytes of [off, end).
func (c *chunk) overlaps(off, end uint64) bool { return c.off < end && off < c.end() }

// writer holds the data of one file that was written and is not stable on the server.
//
// WRITEs that overlap are never in flight together, so the last one wins. A COMMIT concerns the
// chunks that were unstable when it was sent. If its verifier is not that of a chunk, the server
// has restarted, and the chunk is sent again, in the order of the writes (RFC 1813 section 3.3.21).
//
// Lock order: node.mu, then mu. No call is made with mu held.
type writer struct {
	f *FS
	n *node

	committing chan struct{} // has one element while a COMMIT is in progress

	mu       sync.Mutex
	ctx      context.Context // with the identity of the last caller of write
	cur      *chunk
	flights  []*chunk
	launched uint64 // number of the last chunk of flights
	unstable []*chunk
	waiting  int           // bytes of unstable
	changed  chan struct{} // closed, and made anew, when flights or unstable become shorter
	// rewriting keeps new WRITEs from starting while old ones are repeated.
	rewriting bool

	err  error  // of the last WRITE that failed for good
	errs uint64 // number of such WRITEs
}

// writerOf returns the writer of a file.
func (f *FS) writerOf(n *node) *writer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.w == nil {
		n.w = &writer{f: f, n: n, committing: make(chan struct{}, 1), changed: make(chan struct{})}
	}
	return n.w
}

// flush sends what was written to a file and waits until the server has it, stable or not.
func (n *node) flush(ctx context.Context) error {
	n.mu.Lock()
	w := n.w
	n.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.flush(ctx)
}

// pending reports whether the server does not have all that was written.
func (w *writer) pending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cur != nil || len(w.flights) > 0
}

// clear reports whether all that was written is stable.
func (w *writer) clear() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cur == nil && len(w.flights) == 0 && len(w.unstable) == 0
}

// wake ends the waits of await. mu is held.
func (w *writer) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// await waits for a change. The caller holds mu; await releases it while it waits.
func (w *writer) await(ctx context.Context) error {
	changed := w.changed
	w.mu.Unlock()
	defer w.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// write copies data, and returns how many bytes it has copied. It waits while the pool is empty.
// The WRITEs have the identity of the context identity.
func (w *writer) write(ctx, identity context.Context, data []byte, off uint64) (done int, err error) {
	end := off + uint64(len(data))
	w.n.mu.Lock()
	w.n.localEnd = max(w.n.localEnd, end)
	base := baseline{w.n.attr, w.n.acked >= w.n.seq}
	w.mu.Lock()
	w.n.mu.Unlock()
	defer w.mu.Unlock()
	w.ctx = identity
	for len(data) > 0 {
		c := w.cur
		switch {
		case w.rewriting || w.inTheWay(off, end) || c == nil && len(w.flights) >= inFlight:
			err = w.await(ctx)
		case c == nil:
			err = w.begin(ctx, off, base)
		case off < c.off || off > c.end():
			w.send()
		default:
			at := int(off - c.off)
			n := copy(c.data[at:limit(c)], data)
			c.data = c.data[:max(len(c.data), at+n)]
			data, off, done = data[n:], off+uint64(n), done+n
			if len(c.data) == limit(c) {
				w.send()
			}
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// limit is the length of a chunk that is full. It ends at a multiple of maxTransfer in the file.
func limit(c *chunk) int { return maxTransfer - int(c.off%maxTransfer) }

// inTheWay reports whether a WRITE in flight overlaps the range. mu is held.
func (w *writer) inTheWay(off, end uint64) bool {
	for _, c := range w.flights {
		if c.overlaps(off, end) {
			return true
		}
	}
	return false
}

// begin makes an empty chunk. The caller holds mu; begin releases it while it waits for memory.
func (w *writer) begin(ctx context.Context, off uint64, base baseline) error {
	block := w.f.pool.tryGet(0)
	if block == nil {
		w.f.stats.stalled.Add(1)
		w.mu.Unlock()
		w.f.relieve()
		var err error
		block, err = w.f.pool.get(ctx)
		w.mu.Lock()
		if err != nil {
			return err
		}
	}
	if w.cur != nil { // another write has begun a chunk meanwhile
		w.f.pool.put(block)
		return nil
	}
	w.cur = &chunk{
		off: off, data: block[:0], pooled: true, since: time.Now(), deleg: w.f.writeDelegation(w.n),
		base: base,
	}
	w.f.dirtyMu.Lock()
	w.f.dirty[w] = struct{}{}
	w.f.dirtyMu.Unlock()
	return nil
}

// relieve makes all writers free memory.
func (f *FS) relieve() {
	for _, w := range f.dirtyWriters() {
		f.work.Go(func() { _ = w.commit(f.ctx) })
	}
}

// send starts the WRITE of the current chunk. mu is held.
func (w *writer) send() { w.launch(blockstore.Unstable) }

func (w *writer) launch(how blockstore.Stability) {
	c := w.cur
	w.cur = nil
	if c == nil {
		return
	}
	if how == blockstore.Unstable && len(c.data) <= smallChunk {
		block := c.data
		c.data, c.pooled = bytes.Clone(c.data), false
		w.f.pool.put(block)
	}
	w.launched++
	c.number = w.launched
	w.flights = append(w.flights, c)
	identity := w.ctx
	w.f.work.Go(func() { w.fly(identity, c, how) })
}

// fly writes a chunk to the server.
func (w *writer) fly(ctx context.Context, c *chunk, how blockstore.Stability) {
	stable, err := w.put(ctx, c, how)
	w.n.change()()
	w.n.mu.Lock()
	w.n.acked = w.f.seq.Add(1)
	w.mu.Lock()
	w.n.mu.Unlock()
	defer w.mu.Unlock()
	for i, x := range w.flights {
		if x == c {
			w.flights = append(w.flights[:i], w.flights[i+1:]...)
			break
		}
	}
	switch {
	case err != nil:
		w.failed(c, err)
		w.free(c)
	case stable:
		w.free(c)
	default:
		w.unstable = append(w.unstable, c)
		w.waiting += len(c.data)
		if w.waiting > len(w.f.pool.free)*maxTransfer/2 && len(w.committing) == 0 {
			w.f.work.Go(w.settleLater) // too much memory is occupied
		}
	}
	w.clean()
	w.wake()
}

// put writes one chunk. It sends several WRITEs if the server takes less than all. If their
// verifiers differ, the server has restarted, and put sends the whole chunk again.
func (w *writer) put(ctx context.Context, c *chunk, how blockstore.Stability) (stable bool, err error) {
	if w.f.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.f.cfg.Timeout, errTimeout)
		defer cancel()
	}
	stable, ctx = true, w.n.underLocks(ctx)
	for at := 0; at < len(c.data); {
		under := c.deleg.Under(ctx)
		if c.guarded {
			under, how = client.Unchanged(ctx, c.base.attr.Ctime), blockstore.FileSync
		}
		got, err := w.f.c.Write(under, w.n.handle, c.data[at:], c.off+uint64(at), how)
		if errors.Is(err, client.ErrDelegationLost) && !c.base.stale {
			c.deleg, c.guarded = nil, true
			continue
		}
		if err != nil {
			return false, lostData(err)
		}
		if c.guarded && at+got.N < len(c.data) {
			return false, errLost // the rest would need the ctime of this WRITE as its guard
		}
		c.guarded = false
		w.f.stats.sent.Add(1)
		if at > 0 && !stable && got.Verifier != c.verifier {
			at, stable = 0, true
			continue
		}
		c.verifier = got.Verifier
		stable = stable && got.Committed == blockstore.FileSync
		at += got.N
	}
	return stable, nil
}

// failed records that the data of a chunk is lost. mu is held.
func (w *writer) failed(c *chunk, err error) {
	w.err = err
	w.errs++
	w.f.stats.lostWrites.Add(1)
	w.f.cfg.Log.Error("data could not be written", "handle", w.n.id, "offset", c.off, "bytes", len(c.data), "error", err)
}

// free returns the memory of a chunk. mu is held.
func (w *writer) free(c *chunk) {
	if c.pooled {
		w.f.pool.put(c.data)
	}
	c.data = nil
}

// clean removes the writer from the list of writers with data. mu is held.
func (w *writer) clean() {
	if w.cur == nil && len(w.flights) == 0 && len(w.unstable) == 0 {
		w.f.dirtyMu.Lock()
		delete(w.f.dirty, w)
		w.f.dirtyMu.Unlock()
	}
}

// age sends data that has waited long enough, and commits data that was sent long ago.
func (w *writer) age(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.cur; c != nil && !w.rewriting {
		after := sendAfter
		if c.deleg.Valid() {
			after = sendAfterDelegated
		}
		if now.Sub(c.since) > after {
			w.send()
		}
	}
	if len(w.unstable) > 0 && now.Sub(w.unstable[0].since) > commitAfter && len(w.committing) == 0 {
		w.f.work.Go(w.settleLater)
	}
}

// failure returns the error of WRITEs that have failed since the count was seen, and the new count.
func (w *writer) failure(seen uint64) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.errs == seen {
		return seen, nil
	}
	return w.errs, w.err
}

// identified is a context with the values of another context.
type identified struct {
	context.Context
	values context.Context
}

func (c identified) Value(key any) any { return c.values.Value(key) }

// withIdentity returns ctx with the identity of another context.
func withIdentity(ctx, identity context.Context) context.Context {
	if identity == nil {
		return ctx
	}
	return identified{ctx, identity}
}
