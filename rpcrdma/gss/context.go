package gss

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // of the enctypes of RFC 3962, which today's kernels have
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
	"sync/atomic"
)

// EncType is a Kerberos encryption type.
type EncType int32

// Encryption types that contexts can use (RFC 3962, RFC 8009).
const (
	AES128SHA1   EncType = 17
	AES256SHA1   EncType = 18
	AES128SHA256 EncType = 19
	AES256SHA384 EncType = 20
)

// RC4HMAC is an encryption type of tickets alone (RFC 4757). Contexts cannot use it.
const RC4HMAC EncType = 23

func (e EncType) String() string {
	switch p := profiles[e]; {
	case p.name != "":
		return p.name
	case e == RC4HMAC:
		return "arcfour-hmac"
	}
	return fmt.Sprintf("enctype %d", int32(e))
}

// Supported reports whether contexts can use e.
func (e EncType) Supported() bool { return profiles[e].hash != nil }

// KeyLen is the length of a key in bytes, or 0 if e is not supported.
func (e EncType) KeyLen() int { return profiles[e].key }

// profile has the properties that differ between encryption types.
type profile struct {
	name string
	hash func() hash.Hash
	mac  int // bytes of a checksum
	key  int // bytes of a key
	// overCipher says that the checksum of encrypted data is over the ciphertext (RFC 8009 section
	// 5). Otherwise it is over the plaintext (RFC 3961 section 5.3).
	overCipher bool
}

var profiles = map[EncType]profile{
	AES128SHA1:   {"aes128-cts-hmac-sha1-96", sha1.New, 12, 16, false},
	AES256SHA1:   {"aes256-cts-hmac-sha1-96", sha1.New, 12, 32, false},
	AES128SHA256: {"aes128-cts-hmac-sha256-128", sha256.New, 16, 16, true},
	AES256SHA384: {"aes256-cts-hmac-sha384-192", sha512.New384, 24, 32, true},
}

// Key is a Kerberos key.
type Key struct {
	Type  EncType
	Value []byte
}

// Key usages of RFC 4121 section 2.
const (
	usageAcceptorSeal  = 22
	usageAcceptorSign  = 23
	usageInitiatorSeal = 24
	usageInitiatorSign = 25
)

// Errors of tokens.
var (
	ErrToken   = errors.New("gss: malformed token")
	ErrMIC     = errors.New("gss: the checksum of a token is wrong")
	ErrNotMine = errors.New("gss: the token was made by the other side of the context")
)

// Context has the keys of one established context. The keys of the two directions differ, so a
// token cannot be sent back to its sender.
type Context struct {
	flags byte // of the tokens that this side makes
	seq   atomic.Uint64
	sign  *mac
	check *mac
	seal  *sealer
	open  *sealer

	key  Key // key and role: the keys above are derived from them
	role Role
}

// Role says which side of a context this is, and which side chose the key.
type Role struct {
	// Acceptor: this side is the server.
	Acceptor bool
	// AcceptorSubkey: the key was chosen by the acceptor.
	AcceptorSubkey bool
	// Seq is the sequence number of the first token that this side makes.
	Seq uint64
}

// NewContext derives the keys of a context. key is copied.
func NewContext(key Key, role Role) (*Context, error) {
	p, ok := profiles[key.Type]
	if !ok {
		return nil, fmt.Errorf("gss: %v is not supported", key.Type)
	}
	if len(key.Value) != p.key {
		return nil, fmt.Errorf("gss: a key of %v has %d bytes instead of %d", key.Type, len(key.Value), p.key)
	}
	c := &Context{key: Key{key.Type, bytes.Clone(key.Value)}, role: role}
	c.seq.Store(role.Seq)
	sign, check, seal, open := uint32(usageInitiatorSign), uint32(usageAcceptorSign), uint32(usageInitiatorSeal),
		uint32(usageAcceptorSeal)
	if role.Acceptor {
		c.flags = flagAcceptor
		sign, check, seal, open = check, sign, open, seal
	}
	if role.AcceptorSubkey {
		c.flags |= flagSubkey
	}
	var errs [4]error
	c.sign, errs[0] = newMAC(key, p, sign, kindKc)
	c.check, errs[1] = newMAC(key, p, check, kindKc)
	c.seal, errs[2] = newSealer(key, p, seal)
	c.open, errs[3] = newSealer(key, p, open)
	return c, errors.Join(errs[:]...)
}

// mac makes checksums with one derived key.
type mac struct {
	size  int
	pool  sync.Pool // of *macState
	short *short    // nil: there is none for the encryption type
}

// macState is a checksum in progress. It is reused, so that a checksum allocates nothing.
type macState struct {
	h      hash.Hash
	hdr    [tokenHeader]byte
	sum    []byte
	word   [4]byte
	blocks [2][aes.BlockSize]byte
	short  shortState
}

func newMAC(key Key, p profile, usage uint32, kind byte) (*mac, error) {
	k, err := derive(key, p, usage, kind)
	if err != nil {
		return nil, err
	}
	m := &mac{size: p.mac}
	if !p.overCipher {
		m.short = newShort(k)
	}
	m.pool.New = func() any {
		s := &macState{h: hmac.New(p.hash, k)}
		if m.short != nil {
			s.short.h = sha1.New().(sha1State) //nolint:gosec // see the import
		}
		return s
	}
	return m, nil
}

// begin returns a state, which end takes back.
func (m *mac) begin() *macState { return m.pool.Get().(*macState) }

func (m *mac) end(s *macState) { m.pool.Put(s) }

// mic returns the checksum of a message in parts and of the header in s.
func (m *mac) mic(s *macState, parts [][]byte) []byte {
	n := len(s.hdr)
	for _, p := range parts {
		n += len(p)
	}
	if m.short != nil && n <= shortMax {
		return m.short.sum(&s.short, parts, s.hdr[:])[:m.size]
	}
	s.h.Reset()
	for _, p := range parts {
		s.h.Write(p)
	}
	s.h.Write(s.hdr[:])
	return m.total(s)
}

// total returns the checksum, truncated to the length of the encryption type.
func (m *mac) total(s *macState) []byte {
	s.sum = s.h.Sum(s.sum[:0])
	return s.sum[:m.size]
}

// sealer encrypts and decrypts in one direction.
type sealer struct {
	overCipher bool
	block      cipher.Block
	keys       *roundKeys // nil: the processor has no instructions for AES, or the test asks for it
	ki         *mac
	enc, dec   sync.Pool // of cipher.BlockMode
}

// resettable is a cipher.BlockMode of CBC, whose initialization vector can be set again.
type resettable interface {
	cipher.BlockMode
	SetIV(iv []byte)
}

var zeroIV [aes.BlockSize]byte

func newSealer(key Key, p profile, usage uint32) (*sealer, error) {
	k, err := derive(key, p, usage, kindKe)
	if err != nil {
		return nil, err
	}
	s := &sealer{overCipher: p.overCipher, keys: newRoundKeys(k)}
	if s.block, err = aes.NewCipher(k); err != nil {
		return nil, err
	}
	s.enc.New = func() any { return cipher.NewCBCEncrypter(s.block, zeroIV[:]) }
	s.dec.New = func() any { return cipher.NewCBCDecrypter(s.block, zeroIV[:]) }
	s.ki, err = newMAC(key, p, usage, kindKi)
	return s, err
}

// cbc runs one pass of CBC with a zero initialization vector over whole blocks, in place.
func cbc(pool *sync.Pool, b []byte) {
	m := pool.Get().(cipher.BlockMode)
	m.CryptBlocks(b, b)
	if r, ok := m.(resettable); ok {
		r.SetIV(zeroIV[:])
		pool.Put(m)
	}
}

// encrypt encrypts the first n bytes of b in place by CBC with ciphertext stealing (RFC 3962
// section 5). n is at least two blocks. b has room for n rounded up to blocks; encrypt overwrites
// the bytes between n and that length.
//
//	plaintext    | P1 | ... | Pn-1 | Pn, d bytes |
//	by CBC       | C1 | ... | Cn-1 | Cn |            Pn padded with zeros
//	ciphertext   | C1 | ... | Cn | Cn-1, d bytes |
func (s *sealer) encrypt(b []byte, n int) {
	whole := (n + aes.BlockSize - 1) &^ (aes.BlockSize - 1)
	clear(b[n:whole])
	if s.keys != nil {
		s.keys.encrypt(b[:whole])
	} else {
		cbc(&s.enc, b[:whole])
	}
	swap(b[whole-2*aes.BlockSize:whole-aes.BlockSize], b[whole-aes.BlockSize:whole])
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// decrypt is the reverse of encrypt. encrypt has cut off the end of Cn-1. decrypt finds these bytes
// in the decryption of Cn, because Pn was padded with zeros. len(b) is at least two blocks. d is
// scratch.
func (s *sealer) decrypt(b []byte, d *[2][aes.BlockSize]byte) {
	const bs = aes.BlockSize
	last := (len(b) - 1) &^ (bs - 1) // where the last, perhaps short block begins
	prev := zeroIV[:]
	if last > bs {
		d[1] = [bs]byte(b[last-2*bs : last-bs])
		prev = d[1][:]
	}
	tail := b[last:]
	stolen := b[last-bs : last] // Cn
	s.block.Decrypt(stolen, stolen)
	d[0] = [bs]byte(stolen)
	copy(d[0][:], tail) // now Cn-1
	for i := range tail {
		tail[i] ^= stolen[i]
	}
	s.block.Decrypt(stolen, d[0][:])
	for i := range stolen {
		stolen[i] ^= prev[i]
	}
	switch {
	case last <= bs:
	case s.keys != nil:
		s.keys.decrypt(b[:last-bs])
	default:
		cbc(&s.dec, b[:last-bs])
	}
}

// confound fills b with random bytes.
func confound(b []byte) { _, _ = rand.Read(b) } // does not fail: crypto/rand ends the program instead

func putHeader(h []byte, id uint16, flags byte, rest uint32, seq uint64) {
	binary.BigEndian.PutUint16(h, id)
	h[2], h[3] = flags, 0xff
	binary.BigEndian.PutUint32(h[4:], rest)
	binary.BigEndian.PutUint64(h[8:], seq)
}
