package posixfs

import (
	"sync"
	"time"
	"unsafe"

	"github.com/rstored/rstored/blockstore"

	"golang.org/x/sys/unix"
)

const (
	// windowSize is the size of a window in bytes. A window begins at a multiple of it in the file.
	windowSize = 4 << 20
	// windowsTotal bounds the windows of all stores: a process has 65,530 mappings at most
	// (vm.max_map_count), and needs some for itself.
	windowsTotal = 16 << 10
	// mapMin is the shortest range that is lent. Copying a shorter one is as fast.
	mapMin = 64 << 10
	// windowRest is how long a window without users is retained although another one is needed.
	// Mapping and unmapping costs more than copying once.
	windowRest = time.Second
	// writeRest is the default of Options.MapAfter. A change of the data after the checksum of a
	// packet was computed makes the peer drop the packet.
	writeRest = time.Second
)

// MappedMax is the most bytes that the stores of a process can map.
const MappedMax = windowsTotal * windowSize

// MappedDefault is how many bytes stores map unless Files.LimitMapped says otherwise.
const MappedDefault = 4 << 30

// windows are the mapped parts of open objects.
type windows struct {
	files *Files // has the bound of all stores

	mu   sync.Mutex
	max  int
	rest time.Duration // windowRest
	n    int
	byAt map[windowKey]*window
	ends window // sentinel of the LRU list of windows without users; ends.newer is the oldest
}

type windowKey struct {
	o  *object
	at uint64 // offset divided by windowSize
}

// window is a mapped part of an object. A loan has a use of the object, so that the object stays
// open while the window has users.
type window struct {
	key        windowKey
	mem        []byte
	users      int       // windows.mu
	since      time.Time // windows.mu: when the last user left
	newer, old *window   // windows.mu: the LRU list
	sibling    *window   // windows.mu: the next window of the object
}

func (w *windows) init(files *Files) {
	w.files, w.max, w.rest = files, windowsTotal, windowRest
	w.byAt = make(map[windowKey]*window)
	w.ends.newer, w.ends.old = &w.ends, &w.ends
}

func (x *window) unlink() {
	x.newer.old, x.old.newer = x.old, x.newer
	x.newer, x.old = nil, nil
}

// take returns a window with one more user, and maps it if necessary. It returns nil if there is
// no room, or mmap fails.
func (w *windows) take(k windowKey, fd int, now time.Time) *window {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.byAt[k]; x != nil {
		if x.users == 0 {
			x.unlink()
		}
		x.users++
		return x
	}
	if w.n >= w.max && !w.evict(now, w.rest) {
		return nil
	}
	if !w.files.addWindow() {
		if !w.evict(now, w.rest) && !w.files.evictWindow(w, now) || !w.files.addWindow() {
			return nil
		}
	}
	mem, err := unix.Mmap(fd, int64(k.at*windowSize), windowSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		w.files.windows.Add(-1)
		return nil
	}
	x := &window{key: k, mem: mem, users: 1, sibling: k.o.windows}
	k.o.windows = x
	w.byAt[k] = x
	w.n++
	return x
}

// put removes a user.
func (w *windows) put(x *window) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.users--; x.users == 0 {
		x.since = now
		x.old, x.newer = w.ends.old, &w.ends
		x.old.newer, w.ends.old = x, x
	}
}

// evict unmaps the oldest window without users if it has been without them for rest, and reports
// whether it did. mu is held.
func (w *windows) evict(now time.Time, rest time.Duration) bool {
	oldest := w.ends.newer
	if oldest == &w.ends || now.Sub(oldest.since) < rest {
		return false
	}
	w.unmap(oldest)
	return true
}

// unmap unmaps a window that has no users. mu is held.
func (w *windows) unmap(x *window) {
	x.unlink()
	delete(w.byAt, x.key)
	w.n--
	p := &x.key.o.windows
	for *p != x {
		p = &(*p).sibling
	}
	*p = x.sibling
	_ = unix.Munmap(x.mem)
	w.files.windows.Add(-1)
	x.mem = nil
}

// drop unmaps the windows of an object that has no users any more.
func (w *windows) drop(o *object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for o.windows != nil {
		w.unmap(o.windows)
	}
}

// dropIdle unmaps those windows of an object that have no users.
func (w *windows) dropIdle(o *object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for x := o.windows; x != nil; {
		next := x.sibling
		if x.users == 0 {
			w.unmap(x)
		}
		x = next
	}
}

// loan is a part of a window that is lent. It implements blockstore.Window. It has one use of
// the window and one of the object; Release ends both.
type loan struct {
	f  *FS
	w  *window
	b  []byte
	fd int
}

// loans are unused loans, so that Map allocates nothing.
var loans = sync.Pool{New: func() any { return new(loan) }}

var _ blockstore.Mapper = (*FS)(nil)

// Map implements blockstore.Mapper.
func (f *FS) Map(c *blockstore.Cred, h blockstore.Handle, off uint64, n int) (blockstore.Window, bool) {
	if !f.mappable || n < mapMin || off%windowSize+uint64(n) > windowSize {
		return nil, false
	}
	o := f.objects.get(&h)
	if o == nil {
		return nil, false
	}
	if l, eof := f.lend(c, o, off, n); l != nil {
		return l, eof
	}
	f.release(o)
	return nil, false
}

func (f *FS) lend(c *blockstore.Cred, o *object, off uint64, n int) (*loan, bool) {
	var st unix.Stat_t
	if o.typ != blockstore.TypeReg || o.stat(&st) != nil || !f.mayRead(c, o, &st) {
		return nil, false
	}
	size := uint64(st.Size)
	if off >= size || size-off < mapMin {
		return nil, false
	}
	n = int(min(uint64(n), size-off))
	now := time.Now()
	if now.Sub(time.Unix(st.Ctim.Unix())).Abs() < f.writeRest {
		return nil, false
	}
	if !f.noatime && atimeDue(&st, now) {
		return nil, false // ReadAt sets the atime
	}
	// For files of other users mincore says that all pages are in memory, unless the daemon is
	// privileged.
	if !f.seesAll && st.Uid != f.uid {
		return nil, false
	}
	fd, err := o.reader()
	if err != nil {
		return nil, false
	}
	w := f.windows.take(windowKey{o, off / windowSize}, fd, now)
	if w == nil {
		return nil, false
	}
	b := w.mem[off%windowSize:][:n:n]
	if !resident(w.mem, b) {
		f.windows.put(w)
		return nil, false
	}
	f.hasRead(o, fd, off, uint64(n), size, false)
	f.count.mapped.Add(1)
	l := loans.Get().(*loan)
	*l = loan{f: f, w: w, b: b, fd: fd}
	return l, off+uint64(n) == size
}

// atimeDue reports whether a read sets the atime of a file, by the rule of relatime (mount(8)).
func atimeDue(st *unix.Stat_t, now time.Time) bool {
	at := time.Unix(st.Atim.Unix())
	return !at.After(time.Unix(st.Mtim.Unix())) || !at.After(time.Unix(st.Ctim.Unix())) || now.Sub(at) >= 24*time.Hour
}

var pageSize = unix.Getpagesize()

// resident reports whether all pages of b, a part of the mapping mem, are in memory
// (mincore(2)). The answer can be old when the network reads them; then the network waits for
// the disk.
func resident(mem, b []byte) bool {
	var vec [windowSize / 4096]byte
	at := offset(b, mem)
	first := at / pageSize
	pages := (at+len(b)+pageSize-1)/pageSize - first
	_, _, e := unix.RawSyscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[first*pageSize])), uintptr(pages*pageSize),
		uintptr(unsafe.Pointer(&vec)))
	if e != 0 {
		return false
	}
	for _, v := range vec[:pages] {
		if v&1 == 0 {
			return false
		}
	}
	return true
}

// offset returns where b begins in mem. b is a part of mem.
func offset(b, mem []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// Bytes implements blockstore.Window.
func (l *loan) Bytes() []byte { return l.b }

// Copy implements blockstore.Window.
func (l *loan) Copy(dst, src []byte) error {
	off := l.w.key.at*windowSize + uint64(offset(src, l.w.mem))
	n, err := pread(l.fd, dst[:len(src)], off)
	if err != nil {
		return mapErr(err)
	}
	clear(dst[n:])
	l.f.count.mapCopies.Add(1)
	return nil
}

// Release implements blockstore.Window.
func (l *loan) Release() {
	f, o := l.f, l.w.key.o
	f.windows.put(l.w)
	*l = loan{}
	loans.Put(l)
	f.release(o)
}
