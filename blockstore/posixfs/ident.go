package posixfs

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// A handle is: version, kind, length of the identity, the identity, MAC. The
// identity alone says which object it is, so that a handle needs nothing stored
// to be valid after a crash; the MAC says that this export gave it out, which it
// does only for what it found beneath its root.
const (
	handleVersion = 1
	macLen        = 8
	handleHead    = 3
	// macBody is what the MAC covers: head and identity, padded with zeros.
	macBody  = 2 * aes.BlockSize
	identMax = macBody - handleHead
)

// Kinds of identity.
const (
	// kindKernel: the filesystem's own handle from name_to_handle_at, its type
	// in the first byte. It has the inode number and its generation.
	kindKernel = 1
	// kindBirth: inode number and birth time (or zero), for filesystems that
	// make no handles.
	kindBirth = 2
)

const birthLen = 8 + 8 + 4

// ident says which object of the filesystem is meant, for as long as it exists.
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

// identify returns the identity of the object at (fd, name); an empty name is
// fd itself. It follows no symlink.
func identify(kind uint8, fd int, name string) (ident, error) {
	if kind == kindKernel {
		id, _, err := kernelIdent(fd, name)
		return id, err
	}
	return birthIdent(fd, name)
}

// fileHandle is a struct file_handle with room for what fits into an identity.
type fileHandle struct {
	n   uint32
	typ int32
	b   [identMax - 1]byte
}

// kernelIdent returns the identity and the mount of the object at (fd, name).
func kernelIdent(fd int, name string) (id ident, mount uint64, err error) {
	flags := 0
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	var path [blockstore.NameMax + 1]byte // with the zero behind it
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

// sealer makes and checks the MAC of handles: CBC-MAC with AES over a message
// of fixed length, under a key of this export alone.
type sealer struct{ block cipher.Block }

func newSealer(master []byte, root *ident, fsid uint64) (sealer, error) {
	m := hmac.New(sha256.New, master)
	m.Write([]byte("posixfs handle"))
	m.Write(binary.BigEndian.AppendUint64(nil, fsid))
	m.Write(root.bytes())
	block, err := aes.NewCipher(m.Sum(nil))
	return sealer{block}, err
}

// bodies is memory for what is encrypted, which a cipher.Block would put on the heap.
var bodies = sync.Pool{New: func() any { return new([macBody]byte) }}

func (s sealer) mac(body *[macBody]byte) (sum [macLen]byte) {
	b := bodies.Get().(*[macBody]byte)
	*b = *body
	first, second := b[:aes.BlockSize], b[aes.BlockSize:]
	s.block.Encrypt(first, first)
	subtle.XORBytes(second, first, second)
	s.block.Encrypt(second, second)
	copy(sum[:], second)
	bodies.Put(b)
	return sum
}

// seal returns the handle of an identity; it is the same each time.
func (s sealer) seal(id *ident) blockstore.Handle {
	var body [macBody]byte
	body[0], body[1], body[2] = handleVersion, id.kind, id.n
	copy(body[handleHead:], id.b[:id.n])
	sum := s.mac(&body)
	h := blockstore.Handle{Len: handleHead + id.n + macLen}
	copy(h.B[:], body[:handleHead+id.n])
	copy(h.B[handleHead+id.n:], sum[:])
	return h
}

// open returns the identity in a handle: ErrBadHandle if it has not the form of
// one, ErrStale if it has but this export did not make it.
func (s sealer) open(h *blockstore.Handle) (ident, error) {
	if int(h.Len) < handleHead+2+macLen || int(h.Len) > handleHead+identMax+macLen ||
		h.B[0] != handleVersion || int(h.B[2]) != int(h.Len)-handleHead-macLen {
		return ident{}, blockstore.ErrBadHandle
	}
	id := ident{kind: h.B[1], n: h.B[2]}
	if id.kind != kindKernel && (id.kind != kindBirth || id.n != birthLen) {
		return ident{}, blockstore.ErrBadHandle
	}
	copy(id.b[:], h.B[handleHead:handleHead+int(id.n)])
	var body [macBody]byte
	copy(body[:], h.B[:handleHead+int(id.n)])
	sum := s.mac(&body)
	if subtle.ConstantTimeCompare(sum[:], h.B[handleHead+int(id.n):h.Len]) != 1 {
		return ident{}, blockstore.ErrStale
	}
	return id, nil
}

const (
	keyFile = "handle.key"
	keyLen  = 32
)

// loadKey returns the secret of a state directory, made on first use and on
// disk before anything is sealed with it. Without a directory it is random.
func loadKey(dir string) ([]byte, error) {
	key := make([]byte, keyLen)
	if dir == "" {
		rand.Read(key)
		return key, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	path := filepath.Join(dir, keyFile)
	for {
		b, err := os.ReadFile(path)
		if err == nil {
			if len(b) != keyLen {
				return nil, fmt.Errorf("%s has %d bytes where a handle key has %d; remove it to make all handles given out so far stale", path, len(b), keyLen)
			}
			return b, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("reading the handle key: %w", err)
		}
		rand.Read(key)
		if err := writeKey(dir, path, key); err != nil {
			return nil, fmt.Errorf("writing the handle key: %w", err)
		}
	}
}

// writeKey puts the key in place unless another process was first.
func writeKey(dir, path string, key []byte) error {
	tmp, err := os.CreateTemp(dir, keyFile+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(key)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
