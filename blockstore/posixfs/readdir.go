package posixfs

import (
	"bytes"
	"encoding/binary"
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

// dirent is one record of getdents64; name aliases the buffer.
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
	if i := bytes.IndexByte(d.name, 0); i >= 0 {
		d.name = d.name[:i]
	}
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

// next returns the next entry without consuming it; ok is false at the end.
func (s *stream) next() (d dirent, size int, ok bool, err error) {
	if len(s.rest) == 0 {
		n, err := again(func() (int, error) { return unix.Getdents(s.fd, s.buf) })
		if err != nil {
			return d, 0, false, mapErr(err)
		}
		if n == 0 {
			return d, 0, false, nil
		}
		s.rest = s.buf[:n]
	}
	d, size, ok = parseDirent(s.rest)
	if !ok {
		return d, 0, false, blockstore.ErrIO
	}
	return d, size, true, nil
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
	for {
		de, size, ok, err := s.next()
		if err != nil || !ok {
			unix.Close(s.fd)
			return zero, !ok && err == nil, err
		}
		e, here := f.entry(d, &st, &de, plus)
		if here && !emit(e) {
			f.streams.give(d.h, s)
			return zero, false, nil
		}
		s.rest = s.rest[size:]
		s.pos = de.off
	}
}

// entry builds what is told of one name; here is false if it has gone.
func (f *FS) entry(d *object, st *unix.Stat_t, de *dirent, plus bool) (e *blockstore.DirEntry, here bool) {
	e = &blockstore.DirEntry{Name: string(de.name), FileID: de.ino, Cookie: de.off}
	var fd int
	switch {
	case e.Name == "." || (e.Name == ".." && d == f.root):
		e.FileID = st.Ino
		if plus {
			a, h := attrOf(st), d.h
			e.Attr, e.Handle = &a, &h
		}
		return e, true
	case !plus:
		return e, true
	case e.Name == "..":
		up, err := unix.Openat(d.path, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return e, true
		}
		if ok, err := f.below(up); err != nil || !ok {
			unix.Close(up)
			return e, true
		}
		fd = up
	default:
		var err error
		if fd, err = f.openName(d.path, e.Name); err != nil {
			return e, err != unix.ENOENT
		}
	}
	defer unix.Close(fd)
	var est unix.Stat_t
	if unix.Fstat(fd, &est) != nil {
		return e, true
	}
	id, err := identify(f.kind, fd, "")
	if err != nil {
		return e, true
	}
	f.find.seen(&id, &d.id, e.Name)
	told := &struct {
		a blockstore.Attr
		h blockstore.Handle
	}{attrOf(&est), f.seal.seal(&id)}
	e.Attr, e.Handle, e.FileID = &told.a, &told.h, est.Ino
	return e, true
}
