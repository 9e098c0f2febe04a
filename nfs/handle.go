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

// A file handle of version 3 and 4:
//
//	+---------+-----------+--------------+------+
//	| version | export ID | store handle | code |
//	+---------+-----------+--------------+------+
//	     1          4          1..43        16     bytes, big-endian
//
// The code is the first half of an HMAC-SHA256 over the fields before it. Without the secret, a
// client cannot make a handle of an object that it was never given, such as one outside of the
// export.
const (
	handleVersion = 1
	handleHead    = 1 + 4
	handleCode    = 16
	handleLongest = handleHead + blockstore.HandleMax + handleCode
)

// The longest handle must fit into a file handle of version 3.
const _ = uint(HandleMax - handleLongest)

// Errors of Parse. The client gets NFS3ERR_BADHANDLE or NFS4ERR_BADHANDLE for both.
var (
	ErrHandleForm = errors.New("nfs: file handle is not of this server's form")
	ErrHandleCode = errors.New("nfs: file handle fails its authentication")
)

// Codec encodes and decodes file handles. It is immutable and may be used from any goroutine. Its
// methods do not allocate.
type Codec struct {
	inner, outer [sha256.BlockSize]byte // the HMAC's two padded keys
}

// NewCodec makes a codec with a secret. All codecs with one secret accept the same handles, over
// restarts too.
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

// code returns the HMAC-SHA256 of msg (RFC 2104). msg has at most handleHead + blockstore.HandleMax
// bytes. crypto/hmac is not used, because a hash.Hash is allocated on the heap.
func (c *Codec) code(msg []byte) [sha256.Size]byte {
	var b [sha256.BlockSize + handleLongest]byte
	copy(b[:], c.inner[:])
	n := copy(b[sha256.BlockSize:], msg)
	sum := sha256.Sum256(b[:sha256.BlockSize+n])
	copy(b[:], c.outer[:])
	copy(b[sha256.BlockSize:], sum[:])
	return sha256.Sum256(b[:sha256.BlockSize+sha256.Size])
}

// Append appends the file handle of an object of a store to dst.
func (c *Codec) Append(dst []byte, export uint32, h *blockstore.Handle) []byte {
	at := len(dst)
	dst = append(dst, handleVersion)
	dst = binary.BigEndian.AppendUint32(dst, export)
	dst = append(dst, h.Bytes()...)
	sum := c.code(dst[at:])
	return append(dst, sum[:handleCode]...)
}

// AppendNoted is Append for an entry of a listing. The store keeps a note with each entry: it has
// the code, if one was computed before. note may be nil.
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

// A note must hold exactly one code.
const _ = uint(len(blockstore.Note{}.B)-handleCode) + uint(handleCode-len(blockstore.Note{}.B))

// Parsed is the file handle that was decoded last. Successive calls often have the same handle,
// whose code then need not be computed again. A Parsed is for one goroutine at a time and for one
// Codec. The zero value has no handle.
type Parsed struct {
	n      int
	b      [HandleMax]byte
	export uint32
	h      blockstore.Handle
}

// ParseNext is Parse with a cache of one handle. It updates last.
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

// Parse decodes a file handle and checks its code. The bytes come from a client: any length and any
// content are possible.
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
