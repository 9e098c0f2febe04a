package posixfs

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

const (
	direntBuf = 32 << 10
	// streamsMax bounds the directory listings kept open between requests.
	streamsMax = 64
	// zeroCookie stands for an offset of 0. Cookie 0 of NFS is the start of the directory.
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

// stream is an open listing between two requests of a client, with records that were read and
// not sent yet. Without it each request would open the directory, seek, and read again what the
// last request had left.
type stream struct {
	fd  int
	pos uint64 // cookie of the entry before rest
	// rest is the rest of a buffer of getdents, then are the buffers behind it. They are never written
	// again, because names alias them.
	rest []byte
	then [][]byte
	eof  bool // there are no further records
	took int  // entries in the last reply
	cursor
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

// take removes and returns the stream of h at cookie. The caller owns it.
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
	i := slices.Index(s.order, k)
	s.order = slices.Delete(s.order, i, i+1)
}

// give retains a stream for the next request. It closes the oldest one if there are too many.
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

// openStream opens a listing at a cookie. Cookies are the filesystem's own offsets, which stay
// valid over changes of the directory and restarts.
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
	return &stream{fd: fd, pos: cookie}, nil
}

// read reads another buffer, empty at the end of the directory.
func (s *stream) read() ([]byte, error) {
	if s.eof {
		return nil, nil
	}
	b := make([]byte, direntBuf)
	n, err := again(func() (int, error) { return unix.Getdents(s.fd, b) })
	if err != nil {
		return nil, mapErr(err)
	}
	s.eof = n == 0
	return b[:n], nil
}

// pass consumes an entry that was emitted, and reports whether the stream continues with the
// next buffer.
func (s *stream) pass(e *listed) (turned bool) {
	s.cursor.pass(e)
	s.rest, s.pos = e.rest, e.off
	if len(s.rest) == 0 && len(s.then) > 0 {
		s.rest, s.then = s.then[0], s.then[1:]
		return true
	}
	return false
}

// ReadDir lists a directory in the filesystem's order. The verifier is always zero, because
// cookies do not expire. With plus, an entry that cannot be looked up (a mount point, or without
// search permission on the directory) has no attributes.
func (f *FS) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, verf [8]byte, plus bool,
	emit func(*blockstore.DirEntry) bool,
) ([8]byte, bool, error) {
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
	// Attributes and handles of entries are those of a lookup, which needs search permission.
	plus = plus && f.may(c, d, &st, blockstore.MayExec)
	var s *stream
	if cookie != 0 {
		s = f.streams.take(d.h, cookie)
	}
	if s != nil {
		f.count.streamHits.Add(1)
	} else if s, err = openStream(d, cookie); err != nil {
		return zero, false, err
	} else if cookie == 0 && plus {
		s.begin(f, &d.id)
	}
	full, err := f.emitEntries(d, &st, s, plus, emit)
	if err == nil && full {
		f.streams.give(d.h, s)
		return zero, false, nil
	}
	unix.Close(s.fd)
	if err == nil {
		s.end(f, &d.id)
	}
	return zero, err == nil, err
}

// emitEntries emits the entries from s on. full says that emit has returned false.
func (f *FS) emitEntries(d *object, st *unix.Stat_t, s *stream, plus bool, emit func(*blockstore.DirEntry) bool) (
	full bool, err error,
) {
	l := lookers.Get().(*looker)
	defer lookers.Put(l)
	l.begin(f, d, st, s, plus)
	defer l.end()
	took := 0
	cur, err := l.next(0)
	for cur != nil {
		// Helpers look up the next batch while this one is emitted.
		nxt, failed := l.next(took + len(cur.list))
		cur.finish(l)
		for i := range cur.list {
			e := &cur.list[i]
			if e.here && !emit(&e.out) {
				s.took = took
				return true, nil
			}
			if s.pass(e) {
				l.then--
			}
			took++
		}
		cur, err = nxt, failed
	}
	return false, err
}

// listed is an entry of a directory while it is being listed.
type listed struct {
	dirent
	rest []byte // behind its record
	hash uint64 // of its name
	was  *known // the cached entry; nil if there is none
	at   int    // the place behind it in the cached listing
	here bool   // it was not removed meanwhile
	// lasting: incarnations has its identity, by inc.
	lasting bool
	inc     incarnation
	out     blockstore.DirEntry // for emit; points to what follows
	attr    blockstore.Attr
	h       blockstore.Handle
	note    blockstore.Note
}

// entry looks up one entry and fills in e.out. It reports false if the entry was removed
// meanwhile. placed says that the finder already has the places of cached entries.
func (f *FS) entry(d *object, st *unix.Stat_t, e *listed, plus, placed bool) (here bool) {
	name := e.out.Name
	switch {
	case name == "." || (name == ".." && d == f.root):
		e.out.FileID = st.Ino
		if plus {
			e.fill(f.changes.attrOf(st), d.h)
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
		f.fillFrom(up, d, e)
		return true
	}
	var sx unix.Statx_t
	switch e := f.statx(d.path, e, &sx); {
	case e != 0:
		return e != unix.ENOENT // another error: the name is emitted without attributes
	case !f.ours(&sx):
		return true // a mount point
	}
	if e.was != nil && e.was.is(&sx) {
		if !placed {
			id := identOf(&e.was.h)
			f.find.seen(&id, &d.id, name)
		}
		e.note = e.was.note
		e.fill(f.changes.attrOfStatx(&sx), e.was.h)
		e.out.Note = &e.note
		return true
	}
	if id, ok := f.incarnations.get(&sx); ok {
		f.find.seen(&id, &d.id, name)
		e.fill(f.changes.attrOfStatx(&sx), f.tag.handle(&id))
		e.inc, e.lasting = keyOf(&sx)
		e.out.Note = &e.note
		return true
	}
	fd, err := f.openName(d.path, name)
	if err != nil {
		return err != unix.ENOENT
	}
	f.fillFrom(fd, d, e)
	return true
}

// fillFrom fills in e.out from a descriptor, which it closes.
func (f *FS) fillFrom(fd int, d *object, e *listed) {
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
	f.find.seen(&id, &d.id, e.out.Name)
	e.fill(f.changes.attrOfStatx(&sx), f.tag.handle(&id))
}

// fill sets attributes and handle of e.out.
func (e *listed) fill(a blockstore.Attr, h blockstore.Handle) {
	e.attr, e.h = a, h
	e.out.Attr, e.out.Handle, e.out.FileID = &e.attr, &e.h, a.FileID
}
