package posixfs

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// The layout of a handle. kind is that of the identity, len the length of the identity in bytes:
//
//	 0            1        5
//	+------+-----+--------+------------------+
//	| kind | len | tag of | identity         |
//	| 2 b  | 6 b | export | (len bytes)      |
//	+------+-----+--------+------------------+
//
//	identity of kindKernel           identity of kindBirth, big-endian
//	 0      1                         0              8            16        20
//	+------+-----------------+       +--------------+------------+---------+
//	| type | f_handle of the |       | inode number | seconds of | nano-   |
//	|      | filesystem      |       |              | birth time | seconds |
//	+------+-----------------+       +--------------+------------+---------+
//
// The identity alone names the object, so that a handle is valid after a crash without anything
// stored. The tag distinguishes exports: the number of an export can stand for another
// filesystem later, where the same identity is another object. Nothing here prevents a client
// from making up a handle. The protocol layer authenticates it.
const (
	tagLen     = 4
	handleHead = 1 + tagLen
	identMax   = blockstore.HandleMax - handleHead
)

// Kinds of identity.
const (
	// kindKernel: the filesystem's own handle from name_to_handle_at, after its type in one byte.
	// It has the inode number and a generation number.
	kindKernel = 1
	// kindBirth: inode number and birth time (or zero), for filesystems that make no handles. If
	// they have no birth time either, a new file with the number of a removed one gets its handle.
	kindBirth = 2
)

// lenBits is the number of bits of the first byte that are the length.
const (
	lenBits = 6
	// The constant does not compile if identMax needs more bits.
	_ = uint(1<<lenBits - 1 - identMax)
)

// sealed is the first byte of handles that earlier versions of rstored made. Those handles had a
// MAC of their own.
const sealed = 1

const birthLen = 8 + 8 + 4

// ident identifies an object of the filesystem for as long as it exists.
type ident struct {
	kind uint8
	n    uint8
	b    [identMax]byte
}

func (id *ident) bytes() []byte { return append([]byte{id.kind}, id.b[:id.n]...) }

func identFromBytes(b []byte) (id ident, ok bool) {
	if len(b) < 2 || len(b) > 1+identMax {
		return id, false
	}
	id.kind, id.n = b[0], uint8(len(b)-1)
	copy(id.b[:], b[1:])
	return id, id.kind == kindKernel || id.kind == kindBirth
}

var errNoHandle = errors.New("the filesystem makes no handles that fit")

// identify returns the identity of the object at (fd, name). An empty name is fd itself. It
// follows no symbolic link.
func identify(kind uint8, fd int, name string) (ident, error) {
	if kind == kindKernel {
		id, _, err := kernelIdent(fd, name)
		return id, err
	}
	return birthIdent(fd, name)
}

// fileHandle is a struct file_handle of name_to_handle_at(2), with room for the longest handle
// that fits into an identity.
type fileHandle struct {
	n   uint32
	typ int32
	b   [identMax - 1]byte
}

// kernelIdent returns the identity and the mount ID of the object at (fd, name). It allocates
// nothing.
func kernelIdent(fd int, name string) (id ident, mount uint64, err error) {
	flags := 0
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	var path [blockstore.NameMax + 1]byte // with the NUL
	if len(name) >= len(path) {
		return id, 0, unix.ENAMETOOLONG
	}
	if strings.IndexByte(name, 0) >= 0 {
		return id, 0, unix.EINVAL
	}
	copy(path[:], name)
	h := fileHandle{n: uint32(len(fileHandle{}.b))}
	var on int32
	for {
		_, _, e := unix.Syscall6(unix.SYS_NAME_TO_HANDLE_AT, uintptr(fd), uintptr(unsafe.Pointer(&path)),
			uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&on)), uintptr(flags), 0)
		if e == unix.EINTR {
			continue
		}
		if e == unix.EOVERFLOW {
			return id, 0, errNoHandle
		}
		if e != 0 {
			return id, 0, e
		}
		break
	}
	if int(h.n) > len(h.b) || h.typ < 0 || h.typ > 0xff {
		return id, 0, errNoHandle
	}
	id = ident{kind: kindKernel, n: uint8(1 + h.n)}
	id.b[0] = uint8(h.typ)
	copy(id.b[1:], h.b[:h.n])
	return id, uint64(on), nil
}

// kernel returns the identity as the argument of open_by_handle_at.
func (id *ident) kernel() unix.FileHandle {
	return unix.NewFileHandle(int32(id.b[0]), id.b[1:id.n])
}

func birthIdent(fd int, name string) (ident, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var sx unix.Statx_t
	if err := unix.Statx(fd, name, flags, unix.STATX_INO|unix.STATX_BTIME, &sx); err != nil {
		return ident{}, err
	}
	id := ident{kind: kindBirth, n: birthLen}
	binary.BigEndian.PutUint64(id.b[0:], sx.Ino)
	if sx.Mask&unix.STATX_BTIME != 0 {
		binary.BigEndian.PutUint64(id.b[8:], uint64(sx.Btime.Sec))
		binary.BigEndian.PutUint32(id.b[16:], sx.Btime.Nsec)
	}
	return id, nil
}

// tag distinguishes the handles of an export from those of others.
type tag [tagLen]byte

// newTag derives the tag of a directory in a filesystem.
func newTag(root *ident, fsid uint64) (t tag) {
	m := sha256.New()
	m.Write([]byte("posixfs handle"))
	m.Write(binary.BigEndian.AppendUint64(nil, fsid))
	m.Write(root.bytes())
	copy(t[:], m.Sum(nil))
	return t
}

// handle returns the handle of an identity. It is the same each time.
func (t tag) handle(id *ident) blockstore.Handle {
	h := blockstore.Handle{Len: handleHead + id.n}
	h.B[0] = id.kind<<lenBits | id.n
	copy(h.B[1:], t[:])
	copy(h.B[handleHead:], id.b[:id.n])
	return h
}

// ident returns the identity in a handle. It is ErrBadHandle if the handle is malformed, and
// ErrStale if it is of another export or of an earlier version.
func (t tag) ident(h *blockstore.Handle) (ident, error) {
	if h.Len > 0 && h.B[0] == sealed {
		return ident{}, blockstore.ErrStale
	}
	id := ident{kind: h.B[0] >> lenBits, n: h.B[0] & (1<<lenBits - 1)}
	if int(h.Len) != handleHead+int(id.n) || id.n < 2 ||
		id.kind != kindKernel && (id.kind != kindBirth || id.n != birthLen) {
		return ident{}, blockstore.ErrBadHandle
	}
	if tag(h.B[1:handleHead]) != t {
		return ident{}, blockstore.ErrStale
	}
	copy(id.b[:], h.B[handleHead:h.Len])
	return id, nil
}
