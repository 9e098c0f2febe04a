package posixfs

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

const (
	direntBuf = 32 << 10
	// streamsMax bounds the directory listings kept open between requests.
	streamsMax = 64
	// zeroCookie stands for an offset of 0, which NFS keeps for the start.
	zeroCookie = 1 << 63
)

// Layout of a struct linux_dirent64.
const (
	direntIno  = 0
	direntOff  = 8
	direntLen  = 16
	direntType = 18
	direntName = 19
)

// dirent is one record of getdents64; name aliases the buffer, where a NUL follows it.
type dirent struct {
	ino  uint64
	off  uint64 // the position after this entry
	typ  uint8
	name []byte
}

// parseDirent reads the record at the start of b and returns its size.
func parseDirent(b []byte) (d dirent, size int, ok bool) {
	if len(b) <= direntName {
		return d, 0, false
	}
	size = int(binary.NativeEndian.Uint16(b[direntLen:]))
	if size <= direntName || size > len(b) {
		return d, 0, false
	}
	d.ino = binary.NativeEndian.Uint64(b[direntIno:])
	d.off = binary.NativeEndian.Uint64(b[direntOff:])
	d.typ = b[direntType]
	d.name = b[direntName:size]
	i := bytes.IndexByte(d.name, 0)
	if i < 0 {
		return d, 0, false
	}
	d.name = d.name[:i]
	if d.off == 0 {
		d.off = zeroCookie
	}
	return d, size, true
}

// stream is an open listing between two requests of one client: what was read
// and not yet sent. Without it each request would open, seek, and read again
// what the last one had left over.
type stream struct {
	fd   int
	pos  uint64 // cookie of the entry before rest
	rest []byte
	buf  []byte
	// batch are the first entries of rest.
	batch []listed
}

type streamKey struct {
	h   blockstore.Handle
	pos uint64
}

type streams struct {
	mu    sync.Mutex
	open  map[streamKey]*stream
	order []streamKey // oldest first
}

func (s *streams) init() { s.open = make(map[streamKey]*stream) }

// take returns the stream of h at cookie, which is then the caller's.
func (s *streams) take(h blockstore.Handle, cookie uint64) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := streamKey{h, cookie}
	st := s.open[k]
	if st != nil {
		s.remove(k)
	}
	return st
}

func (s *streams) remove(k streamKey) {
	delete(s.open, k)
	for i, o := range s.order {
		if o == k {
			s.order = append(s.order[:i], s.order[i+1:]...)
			break
		}
	}
}

// give keeps a stream for the next request.
func (s *streams) give(h blockstore.Handle, st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := streamKey{h, st.pos}
	if old := s.open[k]; old != nil {
		unix.Close(old.fd)
		s.remove(k)
	}
	if len(s.order) >= streamsMax {
		oldest := s.order[0]
		unix.Close(s.open[oldest].fd)
		s.remove(oldest)
	}
	s.open[k] = st
	s.order = append(s.order, k)
}

func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.open {
		unix.Close(st.fd)
	}
	s.open, s.order = make(map[streamKey]*stream), nil
}

// openStream opens a listing at a cookie. Cookies are the filesystem's own
// offsets, good over changes of the directory and restarts.
func openStream(d *object, cookie uint64) (*stream, error) {
	fd, err := again(func() (int, error) {
		// Not by ".", which would need search permission of the daemon.
		return unix.Open(procPath(d.path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, mapErr(err)
	}
	if cookie != 0 {
		off := cookie
		if off == zeroCookie {
			off = 0
		}
		if _, err := unix.Seek(fd, int64(off), unix.SEEK_SET); err != nil {
			unix.Close(fd)
			if err == unix.EINVAL {
				return nil, blockstore.ErrBadCookie
			}
			return nil, mapErr(err)
		}
	}
	return &stream{fd: fd, pos: cookie, buf: make([]byte, direntBuf)}, nil
}

// fill reads more of the directory where nothing is left; more is false at its end.
func (s *stream) fill() (more bool, err error) {
	if len(s.rest) > 0 {
		return true, nil
	}
	n, err := again(func() (int, error) { return unix.Getdents(s.fd, s.buf) })
	if err != nil {
		return false, mapErr(err)
	}
	s.rest = s.buf[:n]
	return n > 0, nil
}

// ReadDir lists in the filesystem's order. The verifier is always zero, because
// its cookies do not expire. With plus, an entry that cannot be looked at (a
// mount point, a directory without search permission) comes without attributes.
func (f *FS) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, verf [8]byte, plus bool, emit func(*blockstore.DirEntry) bool) ([8]byte, bool, error) {
	var zero [8]byte
	d, err := f.acquireDir(dir)
	if err != nil {
		return zero, false, err
	}
	defer f.release(d)
	var st unix.Stat_t
	if err := d.stat(&st); err != nil {
		return zero, false, err
	}
	if !f.may(c, d, &st, blockstore.MayRead) {
		return zero, false, blockstore.ErrAccess
	}
	plus = plus && f.may(c, d, &st, blockstore.MayExec)
	var s *stream
	if cookie != 0 {
		s = f.streams.take(d.h, cookie)
	}
	if s != nil {
		f.count.streamHits.Add(1)
	} else if s, err = openStream(d, cookie); err != nil {
		return zero, false, err
	}
	for n := batchFirst; ; n = min(2*n, batchMax) {
		more, err := s.fill()
		if err == nil && more {
			err = s.parse(n)
		}
		if err != nil || !more {
			unix.Close(s.fd)
			return zero, !more && err == nil, err
		}
		f.look(d, &st, s.batch, plus)
		for i := range s.batch {
			e := &s.batch[i]
			if e.here && !emit(&e.told) {
				f.streams.give(d.h, s)
				return zero, false, nil
			}
			s.rest = s.rest[e.size:]
			s.pos = e.off
		}
	}
}

// Entries are looked at some at a time: few at first, as what does not fit into the
// reply was looked at in vain.
const (
	batchFirst = 16
	batchMax   = 512
	// shareMin is how many one goroutine looks at at least.
	shareMin = 32
	// sharesMax bounds the goroutines of one listing.
	sharesMax = 4
)

// listed is an entry and what is told of it.
type listed struct {
	dirent
	size int  // of its record
	here bool // it has not gone
	told blockstore.DirEntry
	attr blockstore.Attr
	h    blockstore.Handle
}

// parse takes up to n entries out of what was read, without consuming them.
func (s *stream) parse(n int) error {
	s.batch = s.batch[:0]
	for rest := s.rest; len(rest) > 0 && len(s.batch) < n; {
		de, size, ok := parseDirent(rest)
		if !ok {
			return blockstore.ErrIO
		}
		s.batch = append(s.batch, listed{dirent: de, size: size})
		rest = rest[size:]
	}
	return nil
}

// look finds out what is told of entries of d, on several processors where there are many:
// nearly all of the time goes into the kernel's looking up of names.
func (f *FS) look(d *object, st *unix.Stat_t, list []listed, plus bool) {
	shares := 1
	if plus {
		shares = max(1, min(len(list)/shareMin, runtime.GOMAXPROCS(0), sharesMax))
	}
	var others sync.WaitGroup
	for i := shares - 1; i >= 0; i-- {
		part := list[len(list)*i/shares : len(list)*(i+1)/shares]
		each := func() {
			for j := range part {
				part[j].told = blockstore.DirEntry{Name: string(part[j].name), FileID: part[j].ino, Cookie: part[j].off}
				part[j].here = f.entry(d, st, &part[j], plus)
			}
		}
		if i > 0 {
			others.Go(each)
		} else {
			each()
		}
	}
	others.Wait()
}

// entry finds out what is told of one entry, and whether it is still there.
func (f *FS) entry(d *object, st *unix.Stat_t, e *listed, plus bool) (here bool) {
	name := e.told.Name
	switch {
	case name == "." || (name == ".." && d == f.root):
		e.told.FileID = st.Ino
		if plus {
			e.tell(attrOf(st), d.h)
		}
		return true
	case !plus:
		return true
	case name == "..":
		up, err := unix.Openat(d.path, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return true
		}
		if ok, err := f.below(up); err != nil || !ok {
			unix.Close(up)
			return true
		}
		f.tellOf(up, d, e)
		return true
	}
	var sx unix.Statx_t
	switch e := e.statx(d.path, &sx); {
	case e != 0:
		return e != unix.ENOENT
	case !f.ours(&sx):
		return true // a mount point
	}
	if id, ok := f.incarnations.get(&sx); ok {
		f.find.seen(&id, &d.id, name)
		e.tell(attrOfStatx(&sx), f.seal.seal(&id))
		return true
	}
	fd, err := f.openName(d.path, name)
	if err != nil {
		return err != unix.ENOENT
	}
	f.tellOf(fd, d, e)
	return true
}

// tellOf tells of what a descriptor, which it closes, stands for.
func (f *FS) tellOf(fd int, d *object, e *listed) {
	defer unix.Close(fd)
	var sx unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, entryMask, &sx) != nil {
		return
	}
	id, err := identify(f.kind, fd, "")
	if err != nil {
		return
	}
	f.incarnations.put(&sx, &id)
	f.find.seen(&id, &d.id, e.told.Name)
	e.tell(attrOfStatx(&sx), f.seal.seal(&id))
}

func (e *listed) tell(a blockstore.Attr, h blockstore.Handle) {
	e.attr, e.h = a, h
	e.told.Attr, e.told.Handle, e.told.FileID = &e.attr, &e.h, a.FileID
}
