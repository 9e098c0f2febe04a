package rdma

import (
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bounds of the sizes of an arena's blocks. Blocks are powers of two.
const (
	// ArenaBlockMin is the size of the smallest block, a page.
	ArenaBlockMin = 4096
	// ArenaBlockMax is the size of the largest block.
	ArenaBlockMax = 64 << 20

	arenaOrders = 15 // from ArenaBlockMin to ArenaBlockMax
)

// Arena is memory for registered regions. It lies outside of the Go heap, so the garbage collector
// neither scans nor counts it. It is bounded, and reused without being cleared. Its pages become
// resident when they are first touched. All methods may be called from any goroutine.
//
// It is a buddy allocator: a free block is merged with its free neighbour of the same size, so
// memory of small blocks serves large ones again.
type Arena struct {
	mem []byte

	mu    sync.Mutex
	free  [arenaOrders]int32 // first free block of each order, by index of its first page, -1 = none
	next  []int32            // lists of free blocks
	prev  []int32
	state []uint8 // of the first page of a block: its order, and whether it is used
	stats ArenaStats
}

// ArenaStats describe the use of an arena, in bytes.
type ArenaStats struct {
	Limit  int // size of the arena
	InUse  int // by blocks that are allocated
	Peak   int // highest InUse
	Blocks int // allocated now
	Failed uint64
}

// Values of Arena.state.
const (
	pageInside = 0xff // not the first page of a block
	blockUsed  = 0x80
	orderMask  = 0x1f
)

// NewArena maps an arena of limit bytes, rounded up to whole pages.
func NewArena(limit int) (*Arena, error) {
	if limit <= 0 || limit > 1<<42 {
		return nil, fmt.Errorf("rdma: an arena cannot have %d bytes", limit)
	}
	pages := (limit + ArenaBlockMin - 1) / ArenaBlockMin
	mem, err := unix.Mmap(-1, 0, pages*ArenaBlockMin, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("rdma: mapping %d bytes for buffers: %w", limit, err)
	}
	a := &Arena{mem: mem, next: make([]int32, pages), prev: make([]int32, pages), state: make([]uint8, pages)}
	a.stats.Limit = len(mem)
	for o := range a.free {
		a.free[o] = -1
	}
	for i := range a.state {
		a.state[i] = pageInside
	}
	for at := 0; at < pages; {
		o := min(bits.Len(uint(pages-at))-1, arenaOrders-1)
		if at > 0 {
			o = min(o, bits.TrailingZeros(uint(at)))
		}
		a.push(int32(at), o)
		at += 1 << o
	}
	return a, nil
}

// Bytes is the whole arena, for registering it as one region.
func (a *Arena) Bytes() []byte { return a.mem }

// Alloc returns n bytes, with the rest of their block as capacity, or nil if the arena has no block
// for them. The bytes are page-aligned. They are zero, or what their last user wrote.
func (a *Arena) Alloc(n int) []byte {
	o := order(n)
	if n <= 0 || o >= arenaOrders {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	from := o
	for from < arenaOrders && a.free[from] < 0 {
		from++
	}
	if from == arenaOrders {
		a.stats.Failed++
		return nil
	}
	p := a.free[from]
	a.remove(p, from)
	for from > o { // split: use the lower half, free the upper
		from--
		a.push(p+1<<from, from)
	}
	a.state[p] = uint8(o) | blockUsed
	size := ArenaBlockMin << o
	a.stats.Blocks++
	a.stats.InUse += size
	a.stats.Peak = max(a.stats.Peak, a.stats.InUse)
	at := int(p) * ArenaBlockMin
	return a.mem[at : at+n : at+size]
}

// Free frees a block of Alloc. b must begin where the block begins; its length does not matter.
// Free panics if b is not an allocated block: two users of the same memory would corrupt data.
func (a *Arena) Free(b []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a.mem)))
	a.mu.Lock()
	defer a.mu.Unlock()
	p := int32(at / ArenaBlockMin)
	if at >= uintptr(len(a.mem)) || at%ArenaBlockMin != 0 || a.state[p] == pageInside || a.state[p]&blockUsed == 0 {
		panic("rdma: Free of memory that is not an allocated block of the arena")
	}
	o := int(a.state[p] & orderMask)
	a.stats.Blocks--
	a.stats.InUse -= ArenaBlockMin << o
	a.state[p] = pageInside
	for o < arenaOrders-1 {
		buddy := p ^ 1<<o
		if int(buddy) >= len(a.state) || a.state[buddy] != uint8(o) {
			break
		}
		a.remove(buddy, o)
		p = min(p, buddy)
		o++
	}
	a.push(p, o)
}

// Discard returns the whole pages of b, a part of an allocated block, to the system until they are
// touched again. Their content is lost.
func (a *Arena) Discard(b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a.mem))))
	if a.mem == nil || at < 0 || at+len(b) > len(a.mem) {
		return
	}
	from := (at + ArenaBlockMin - 1) &^ (ArenaBlockMin - 1)
	if to := (at + len(b)) &^ (ArenaBlockMin - 1); from < to {
		_ = unix.Madvise(a.mem[from:to], unix.MADV_DONTNEED) // only an optimization
	}
}

// Stats describes the use of the arena.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Close unmaps the arena. No work request, region or slice may use its memory any more.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return ErrClosed
	}
	mem := a.mem
	a.mem, a.state = nil, nil
	for o := range a.free {
		a.free[o] = -1
	}
	return unix.Munmap(mem)
}

// order is the order of the smallest block with room for n bytes.
func order(n int) int { return bits.Len(uint(max(n, 1)-1) / ArenaBlockMin) }

func (a *Arena) push(p int32, o int) {
	first := a.free[o]
	a.next[p], a.prev[p] = first, -1
	if first >= 0 {
		a.prev[first] = p
	}
	a.free[o] = p
	a.state[p] = uint8(o)
}

func (a *Arena) remove(p int32, o int) {
	if a.prev[p] >= 0 {
		a.next[a.prev[p]] = a.next[p]
	} else {
		a.free[o] = a.next[p]
	}
	if a.next[p] >= 0 {
		a.prev[a.next[p]] = a.prev[p]
	}
	a.state[p] = pageInside
}

// Within reports whether the bytes of inner lie in outer's memory.
func Within(inner, outer []byte) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(inner))) - uintptr(unsafe.Pointer(unsafe.SliceData(outer)))
	return at <= uintptr(len(outer)) && uintptr(len(inner)) <= uintptr(len(outer))-at
}

// Offset is where inner begins in outer, if Within(inner, outer).
func Offset(inner, outer []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(inner))) - uintptr(unsafe.Pointer(unsafe.SliceData(outer))))
}
