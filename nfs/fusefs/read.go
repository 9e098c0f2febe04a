package fusefs

import (
	"context"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// blockTime bounds how long blocks that were read ahead are used. aheadAfter is how many reads in
// order make a stream. near is how far from the expected offset a read may be to belong to the
// stream: the kernel sends several reads of one stream at once, and they overtake each other.
const (
	blockTime  = 3 * time.Second
	aheadAfter = 2
	near       = 2 * maxTransfer
)

// reader reads one open file, and reads ahead of a sequential stream. The window is the number of
// blocks ahead. It doubles whenever the stream had to wait for a block, so it follows the product
// of bandwidth and latency. Config.ReadAhead bounds it.
type reader struct {
	mu     sync.Mutex
	next   uint64 // where a sequential read begins
	seen   int    // reads in order
	window int
	blocks map[uint64]*block // by number
}

// block is maxTransfer bytes of a file, read ahead. Its memory goes back to the pool when the
// reader has dropped it and refs is 0.
type block struct {
	f     *FS
	mem   []byte
	done  chan struct{} // closed when the READ has ended
	data  uint64        // node.data before the READ
	since time.Time
	n     int // valid after done
	err   error

	mu   sync.Mutex
	refs int // references of the reader, of the READ and of replies
}

func (b *block) ref() {
	b.mu.Lock()
	b.refs++
	b.mu.Unlock()
}

func (b *block) unref() {
	b.mu.Lock()
	b.refs--
	last := b.refs == 0
	b.mu.Unlock()
	if last {
		b.f.pool.put(b.mem)
	}
}

// result is data for /dev/fuse: parts of blocks, or memory that release frees.
type result struct {
	parts   [][]byte
	release func()
}

// Bytes, Size, Done and Slices implement fuse.ReadResult.
func (r *result) Bytes(buf []byte) ([]byte, fuse.Status) {
	if len(r.parts) == 1 {
		return r.parts[0], fuse.OK
	}
	buf = buf[:0]
	for _, p := range r.parts {
		buf = append(buf, p...)
	}
	return buf, fuse.OK
}

func (r *result) Size() (n int) {
	for _, p := range r.parts {
		n += len(p)
	}
	return n
}

func (r *result) Done() {
	if r.release != nil {
		r.release()
	}
}

func (r *result) Slices() ([][]byte, fuse.Status) { return r.parts, fuse.OK }

// Read implements fuse.RawFileSystem.
func (f *FS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h := f.file(in.Fh)
	if h == nil {
		return nil, fuse.EBADF
	}
	o := f.begin(h.ctx, &in.InHeader, opRead, cancel)
	r, err := f.read(o.ctx, h, in, buf)
	if st := o.end(err); st != fuse.OK {
		return nil, st
	}
	f.stats.read.Add(uint64(r.Size()))
	return r, fuse.OK
}

func (f *FS) read(ctx context.Context, h *file, in *fuse.ReadIn, buf []byte) (*result, error) {
	size := min(int(in.Size), len(buf))
	if err := h.n.flush(ctx); err != nil {
		return nil, err
	}
	if in.Flags&openDirect == 0 {
		if parts, blocks := f.stream(ctx, h, in.Offset, size); parts != nil {
			f.stats.hits.Add(1)
			return &result{parts: parts, release: func() {
				for _, b := range blocks {
					b.unref()
				}
			}}, nil
		}
	}
	r := &result{}
	if b := f.pool.tryGet(f.pool.size / 4); b != nil {
		buf = b
		r.release = func() { f.pool.put(b) }
	}
	n, err := f.readFull(ctx, h, buf[:size], in.Offset)
	r.parts = [][]byte{buf[:n]}
	if err != nil || n == 0 {
		r.Done() // go-fuse does not call it for an empty result
		r.release = nil
	}
	return r, err
}

// readFull reads up to the end of p or of the file: the server may return less than a READ asks
// for.
func (f *FS) readFull(ctx context.Context, h *file, p []byte, off uint64) (n int, err error) {
	ctx = h.n.underLocks(ctx)
	for n < len(p) {
		k, eof, err := f.c.Read(ctx, h.n.handle, p[n:], off+uint64(n))
		if err != nil {
			return n, err
		}
		n += k
		if eof || k == 0 {
			break
		}
	}
	return n, nil
}

// stream returns the data of a read from blocks, with a reference to each block, and reads more
// blocks ahead. It returns no parts if the read belongs to no stream, or if the blocks do not have
// the data.
func (f *FS) stream(ctx context.Context, h *file, off uint64, size int) (parts [][]byte, used []*block) {
	first, last := off/maxTransfer, (off+uint64(max(size, 1))-1)/maxTransfer
	r := &h.reader
	r.mu.Lock()
	if off+near < r.next || off > r.next+near {
		r.reset()
	} else {
		r.seen++
	}
	r.next = max(r.next, off+uint64(size))
	if off+near < r.next {
		r.next = off + uint64(size)
	}
	if r.seen < aheadAfter {
		r.mu.Unlock()
		return nil, nil
	}
	r.expire(first, h.n.data.Load(), h.n.unchanged())
	h.n.mu.Lock()
	known := h.n.attr.Size
	h.n.mu.Unlock()
	for i := first; i <= last+uint64(r.window); i++ {
		if r.blocks[i] == nil && (i <= last || i*maxTransfer < known) && !f.startBlock(h, i) {
			break
		}
	}
	for i := first; i <= last; i++ {
		if b := r.blocks[i]; b != nil {
			b.ref()
			used = append(used, b)
		}
	}
	r.mu.Unlock()
	fail := func() ([][]byte, []*block) {
		for _, b := range used {
			b.unref()
		}
		return nil, nil
	}
	if len(used) <= int(last-first) {
		return fail()
	}
	for i, b := range used {
		select {
		case <-b.done:
		default:
			r.grow(f.cfg.ReadAhead / maxTransfer)
			select {
			case <-b.done:
			case <-ctx.Done():
				return fail()
			}
		}
		base := (first + uint64(i)) * maxTransfer
		from := int(max(off, base) - base)
		to := int(min(off+uint64(size)-base, maxTransfer))
		if b.err != nil || to > b.n && base+uint64(b.n) < known {
			return fail() // the file has become longer
		}
		if from < min(to, b.n) {
			parts = append(parts, b.mem[from:min(to, b.n)])
		}
		if b.n < to {
			break
		}
	}
	if parts == nil {
		return fail()
	}
	return parts, used
}

// grow widens the window after a wait.
func (r *reader) grow(most int) {
	r.mu.Lock()
	r.window = min(max(2*r.window, 1), most)
	r.mu.Unlock()
}

// reset forgets the stream. mu is held.
func (r *reader) reset() {
	for i, b := range r.blocks {
		delete(r.blocks, i)
		b.unref()
	}
	r.seen, r.window, r.next = 0, 0, 0
}

// expire drops the blocks that the stream has passed, and the blocks that may be stale. It retains
// one block behind the stream for reads that were overtaken. Blocks do not become stale with time
// if nobody else has changed the file (unchanged). mu is held.
func (r *reader) expire(first, data uint64, unchanged bool) {
	now := time.Now()
	for i, b := range r.blocks {
		if i+1 < first || b.data != data || !unchanged && now.Sub(b.since) > blockTime {
			delete(r.blocks, i)
			b.unref()
		}
	}
}

// startBlock starts to read a block. It reports false if too little memory is free: writes and
// other reads need some. reader.mu is held.
func (f *FS) startBlock(h *file, i uint64) bool {
	mem := f.pool.tryGet(f.pool.size / 2)
	if mem == nil {
		return false
	}
	b := &block{f: f, mem: mem, done: make(chan struct{}), data: h.n.data.Load(), since: time.Now(), refs: 2}
	if h.reader.blocks == nil {
		h.reader.blocks = make(map[uint64]*block)
	}
	h.reader.blocks[i] = b
	f.stats.ahead.Add(1)
	f.work.Go(func() {
		b.n, b.err = f.readFull(h.ctx, h, mem, i*maxTransfer)
		close(b.done)
		b.unref()
	})
	return true
}

// close drops all blocks.
func (r *reader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset()
}
