package nfs

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"

	"github.com/rstored/rstored/blockstore"
)

// HandleMax is the longest file handle of NFS version 3 (NFS3_FHSIZE).
const HandleMax = 64

// A file handle is
//
//	version (1) | export id (4, big-endian) | store handle (1..43) | code (16)
//
// The code is the first half of an HMAC-SHA256 over what precedes it. It stops
// a client from making up a handle of an object that it was never given, in
// particular one outside the export.
const (
	handleVersion = 1
	handleHead    = 1 + 4
	handleCode    = 16
	handleLongest = handleHead + blockstore.HandleMax + handleCode
)

// The longest handle has to fit into a version 3 file handle.
const _ = uint(HandleMax - handleLongest)

// Why a handle is refused. Both are NFS3ERR_BADHANDLE to the client.
var (
	ErrHandleForm = errors.New("nfs: file handle is not of this server's form")
	ErrHandleCode = errors.New("nfs: file handle fails its authentication")
)

// Codec makes file handles and takes them apart. It is immutable, does not
// allocate, and may be used from any goroutine.
type Codec struct {
	inner, outer [sha256.BlockSize]byte // the HMAC's two padded keys
}

// NewCodec makes a codec of a secret. Handles made with one secret are good in
// every codec of the same secret, over restarts.
func NewCodec(secret []byte) *Codec {
	c := &Codec{}
	if len(secret) > sha256.BlockSize {
		s := sha256.Sum256(secret)
		secret = s[:]
	}
	copy(c.inner[:], secret)
	copy(c.outer[:], secret)
	for i := range c.inner {
		c.inner[i] ^= 0x36
		c.outer[i] ^= 0x5c
	}
	return c
}

// code is HMAC-SHA256 of msg (RFC 2104), which is at most handleHead +
// blockstore.HandleMax bytes. Written out because a hash.Hash lives on the heap.
func (c *Codec) code(msg []byte) [sha256.Size]byte {
	var b [sha256.BlockSize + handleLongest]byte
	copy(b[:], c.inner[:])
	n := copy(b[sha256.BlockSize:], msg)
	sum := sha256.Sum256(b[:sha256.BlockSize+n])
	copy(b[:], c.outer[:])
	copy(b[sha256.BlockSize:], sum[:])
	return sha256.Sum256(b[:sha256.BlockSize+sha256.Size])
}

// Append appends the file handle of a store's object to dst.
func (c *Codec) Append(dst []byte, export uint32, h *blockstore.Handle) []byte {
	at := len(dst)
	dst = append(dst, handleVersion)
	dst = binary.BigEndian.AppendUint32(dst, export)
	dst = append(dst, h.Bytes()...)
	sum := c.code(dst[at:])
	return append(dst, sum[:handleCode]...)
}

// AppendNoted is Append for an entry of a listing, whose code is in the note if it was
// made before. note may be nil.
func (c *Codec) AppendNoted(dst []byte, export uint32, h *blockstore.Handle, note *blockstore.Note) []byte {
	if note == nil {
		return c.Append(dst, export, h)
	}
	if note.Made && note.For == export {
		dst = append(dst, handleVersion)
		dst = binary.BigEndian.AppendUint32(dst, export)
		dst = append(dst, h.Bytes()...)
		return append(dst, note.B[:]...)
	}
	dst = c.Append(dst, export, h)
	note.Made, note.For = true, export
	copy(note.B[:], dst[len(dst)-handleCode:])
	return dst
}

// A note holds a code.
const _ = uint(len(blockstore.Note{}.B)-handleCode) + uint(handleCode-len(blockstore.Note{}.B))

// Parsed remembers the file handle that was taken apart last, as calls of one kind tend to
// come for one file. It is for one goroutine at a time and one Codec. The zero value
// remembers none.
type Parsed struct {
	n      int
	b      [HandleMax]byte
	export uint32
	h      blockstore.Handle
}

// ParseNext is Parse of a handle that may be the one of before, whose code need not be
// computed again.
func (c *Codec) ParseNext(last *Parsed, b []byte) (export uint32, h blockstore.Handle, err error) {
	if last.n > 0 && subtle.ConstantTimeCompare(b, last.b[:last.n]) == 1 {
		return last.export, last.h, nil
	}
	export, h, err = c.Parse(b)
	if err == nil {
		last.n, last.export, last.h = copy(last.b[:], b), export, h
	}
	return export, h, err
}

// Parse takes a file handle apart. The bytes may have any length and come from anybody.
func (c *Codec) Parse(b []byte) (export uint32, h blockstore.Handle, err error) {
	n := len(b) - handleHead - handleCode
	if n <= 0 || n > blockstore.HandleMax || b[0] != handleVersion {
		return 0, h, ErrHandleForm
	}
	sum := c.code(b[:handleHead+n])
	if subtle.ConstantTimeCompare(sum[:handleCode], b[handleHead+n:]) != 1 {
		return 0, h, ErrHandleCode
	}
	h, _ = blockstore.MakeHandle(b[handleHead : handleHead+n])
	return binary.BigEndian.Uint32(b[1:]), h, nil
}
