package blockstore

import (
	"errors"
	"fmt"
	"time"
)

// Cred is the identity an operation runs as, after any squashing. A nil Cred
// means the server itself (no permission checks).
type Cred struct {
	UID    uint32
	GID    uint32
	Groups []uint32
	// Spent is the sum of the times, in nanoseconds, that calls of a store with this Cred took. The
	// gate in front of the store adds to it (cmd/internal/exports). A Cred is used by one goroutine
	// at a time.
	Spent int64
}

// HandleMax is the largest handle a store may make, in bytes. An NFSv3
// filehandle is 64 bytes and the protocol layer adds its own prefix and MAC.
const HandleMax = 43

// Handle names an object for as long as it exists: over renames and restarts.
// It is comparable and may be a map key. The protocol layer authenticates handles from
// the network before they reach a store. A store checks that a handle has its form
// and that the handle is its own.
type Handle struct {
	Len uint8
	B   [HandleMax]byte
}

// Bytes returns the handle's bytes.
func (h *Handle) Bytes() []byte { return h.B[:h.Len] }

// MakeHandle copies b into a Handle; ok is false if it is too long or empty.
func MakeHandle(b []byte) (h Handle, ok bool) {
	if len(b) == 0 || len(b) > HandleMax {
		return h, false
	}
	h.Len = uint8(len(b))
	copy(h.B[:], b)
	return h, true
}

// MarshalBinary is for encoding/gob, which would write all of B otherwise.
func (h Handle) MarshalBinary() ([]byte, error) { return h.B[:h.Len], nil }

// UnmarshalBinary is the counterpart of MarshalBinary.
func (h *Handle) UnmarshalBinary(b []byte) error {
	got, ok := MakeHandle(b)
	if !ok && len(b) > 0 {
		return fmt.Errorf("a handle of %d bytes", len(b))
	}
	*h = got
	return nil
}

// FileType is the type of an object. The numbers are NFSv3's ftype3.
type FileType uint32

// File types.
const (
	TypeReg  FileType = 1
	TypeDir  FileType = 2
	TypeBlk  FileType = 3
	TypeChr  FileType = 4
	TypeLnk  FileType = 5
	TypeSock FileType = 6
	TypeFifo FileType = 7
)

// Attr are the attributes of an object.
type Attr struct {
	Type   FileType
	Mode   uint32 // permission bits, 07777
	NLink  uint32
	UID    uint32
	GID    uint32
	Size   uint64
	Used   uint64 // bytes allocated
	Major  uint32 // device numbers of TypeBlk and TypeChr
	Minor  uint32
	FileID uint64 // inode number
	Atime  time.Time
	Mtime  time.Time
	Ctime  time.Time
	// ACL is the access ACL if Cred has to check it. It is nil if there is none, or if the store
	// checks permission by itself. It is never modified.
	ACL *ACL
}

// TimeSet says how a time is to be changed.
type TimeSet uint8

// Ways to set a time.
const (
	TimeKeep TimeSet = iota
	TimeServer
	TimeClient
)

// SetAttr are the changes of a SETATTR or the initial attributes of a create.
// Nil pointers and TimeKeep leave a field alone.
type SetAttr struct {
	Mode     *uint32
	UID      *uint32
	GID      *uint32
	Size     *uint64
	Grow     bool // Size makes a smaller file larger, and leaves a larger one as it is
	AtimeHow TimeSet
	Atime    time.Time
	MtimeHow TimeSet
	Mtime    time.Time
}

// Wcc holds weak cache consistency data: attributes of the object before the
// operation and after it.
type Wcc struct {
	Pre, Post WccAttr
}

// WccAttr are attributes that may be unknown. They are values and no pointers: each operation that
// changes something returns two, and allocates no memory for them.
type WccAttr struct {
	Attr
	Known bool
}

// Known are attributes that are known.
func Known(a *Attr) WccAttr { return WccAttr{*a, true} }

// Stability is how durable a write must be before it is acknowledged. The
// numbers are NFS's stable_how.
type Stability uint32

// Levels of stability.
const (
	Unstable Stability = 0
	DataSync Stability = 1
	FileSync Stability = 2
)

// Access bits as in NFSv3 ACCESS (RFC 1813 section 3.3.4).
const (
	AccessRead    = 1
	AccessLookup  = 2
	AccessModify  = 4
	AccessExtend  = 8
	AccessDelete  = 16
	AccessExecute = 32
)

// Note is a value that the caller of ReadDir derives from an entry's handle, such as its MAC. A
// store may cache the note and return it in a later entry with the same handle. The caller uses the
// note during emit only.
type Note struct {
	Made bool
	For  uint32 // tells apart notes that were derived in different ways
	B    [16]byte
}

// DirEntry is one directory entry. Attr and Handle are set only if the caller of ReadDir asked
// for them, and can be nil for one entry even then. The entry is valid until emit returns, but
// Name may be retained.
type DirEntry struct {
	Name   string
	FileID uint64
	Cookie uint64 // continue after this entry; never 0
	Attr   *Attr
	Handle *Handle
	Note   *Note // nil if the store does not cache one
}

// Stat are the numbers of a filesystem, bytes and inodes.
type Stat struct {
	TotalBytes, FreeBytes, AvailBytes uint64
	TotalFiles, FreeFiles, AvailFiles uint64
}

// Limits are the static properties of a filesystem.
type Limits struct {
	MaxFileSize uint64
	LinkMax     uint32
	NameMax     uint32
	// WccExact says that nobody but the store changes its objects, so that nothing
	// else has happened between the two sides of a Wcc.
	WccExact bool
	// BlockSize is the unit of allocation in bytes; 0 if it is not known. Clones begin and end at
	// multiples of it.
	BlockSize uint32
	// Clones says that files can share blocks.
	Clones bool
	// Quotas says that there are quotas of users; see type Quotas.
	Quotas bool
	// Xattrs says that objects can have extended attributes.
	Xattrs bool
	// ACLs says that the store has POSIX ACLs; see type ACLs.
	ACLs bool
	// Births says that the store knows when objects were made; see type Births.
	Births bool
	// Labels says that the store has security labels; see type Labels.
	Labels bool
	// CaseInsensitive says that names that differ in case alone are the same name, at least in the root
	// and the directories made below it.
	CaseInsensitive bool
}

// CreateMode is how Create treats an existing name.
type CreateMode uint8

// Create modes (RFC 1813 createmode3).
const (
	Unchecked CreateMode = iota
	Guarded
	Exclusive
)

// FS is a file store. Every method may be called from any goroutine. Names are
// single components, already checked to be non-empty and without '/' or NUL;
// "." and ".." are accepted by Lookup only. Errors are those of this package
// (possibly wrapped) and are to be tested with errors.Is.
//
// Attributes that one call returns are those of one moment, where the store can do so.
type FS interface {
	// Root is the handle of the export's root directory.
	Root() (Handle, error)
	// FSID identifies the filesystem, stable over restarts.
	FSID() uint64

	GetAttr(c *Cred, h Handle) (Attr, error)
	// SetAttr changes attributes. guard, if not nil, must equal the object's ctime or the call
	// fails with ErrNotSync. If s changes nothing, SetAttr makes earlier changes of the object
	// stable, also those that an earlier process made.
	SetAttr(c *Cred, h Handle, s *SetAttr, guard *time.Time) (Wcc, error)
	Lookup(c *Cred, dir Handle, name string) (Handle, Attr, error)
	// Access returns which of the wanted access bits are granted.
	Access(c *Cred, h Handle, want uint32) (uint32, Attr, error)
	ReadLink(c *Cred, h Handle) (string, error)

	// ReadAt reads into p at off. It returns the bytes read and whether the end of the file was
	// reached (off+n >= size). With nowait it does not wait for a device: it returns ErrWouldBlock,
	// or fewer bytes without eof if only a part is in memory.
	ReadAt(c *Cred, h Handle, p []byte, off uint64, nowait bool) (n int, eof bool, err error)
	// WriteAt writes p at off and makes it at least as stable as how. It can write less than p; if p
	// is not empty it writes something or returns an error.
	WriteAt(c *Cred, h Handle, p []byte, off uint64, how Stability) (n int, committed Stability, w Wcc, err error)
	// Commit makes earlier writes of the range stable; n 0 means to the end.
	Commit(c *Cred, h Handle, off uint64, n uint32) (Wcc, error)
	// Verifier changes whenever unstable writes may have been lost.
	Verifier() [8]byte

	// Create makes a regular file. verf is used by Exclusive only.
	Create(c *Cred, dir Handle, name string, mode CreateMode, s *SetAttr, verf [8]byte) (Handle, Attr, Wcc, error)
	Mkdir(c *Cred, dir Handle, name string, s *SetAttr) (Handle, Attr, Wcc, error)
	Symlink(c *Cred, dir Handle, name, target string, s *SetAttr) (Handle, Attr, Wcc, error)
	Mknod(c *Cred, dir Handle, name string, typ FileType, major, minor uint32, s *SetAttr) (Handle, Attr, Wcc, error)
	Remove(c *Cred, dir Handle, name string) (Wcc, error)
	Rmdir(c *Cred, dir Handle, name string) (Wcc, error)
	Rename(c *Cred, from Handle, fromName string, to Handle, toName string) (fromW, toW Wcc, err error)
	Link(c *Cred, h Handle, dir Handle, name string) (Attr, Wcc, error)

	// ReadDir calls emit for the entries after cookie, until emit returns false or the directory
	// ends. Cookie 0 is the start, with "." and "..". plus asks for Attr and Handle of each entry.
	// verf is the verifier that the client got with the cookie. ReadDir returns the current one.
	ReadDir(c *Cred, dir Handle, cookie uint64, verf [8]byte, plus bool, emit func(*DirEntry) bool) (newVerf [8]byte,
		eof bool, err error)

	Stat(c *Cred, h Handle) (Stat, error)
	Limits() Limits
	// Close syncs and releases the store.
	Close() error
}

// The error vocabulary. Each maps to one NFS status.
var (
	ErrPerm        = errors.New("operation not permitted")
	ErrNotExist    = errors.New("no such file or directory")
	ErrIO          = errors.New("input/output error")
	ErrNXIO        = errors.New("no such device or address")
	ErrAccess      = errors.New("permission denied")
	ErrExist       = errors.New("file exists")
	ErrXDev        = errors.New("cross-device link")
	ErrNoDev       = errors.New("no such device")
	ErrNotDir      = errors.New("not a directory")
	ErrIsDir       = errors.New("is a directory")
	ErrInval       = errors.New("invalid argument")
	ErrFBig        = errors.New("file too large")
	ErrNoSpace     = errors.New("no space left on device")
	ErrROFS        = errors.New("read-only filesystem")
	ErrMLink       = errors.New("too many links")
	ErrNameTooLong = errors.New("name too long")
	ErrNotEmpty    = errors.New("directory not empty")
	ErrQuota       = errors.New("disk quota exceeded")
	ErrStale       = errors.New("stale file handle")
	ErrBadHandle   = errors.New("bad file handle")
	ErrNotSync     = errors.New("guard does not match")
	ErrBadCookie   = errors.New("stale directory cookie")
	ErrNotSupp     = errors.New("operation not supported")
	ErrBadType     = errors.New("unsupported object type")
	ErrWouldBlock  = errors.New("operation would block")
	ErrJukebox     = errors.New("try again later")
	ErrNoXattr     = errors.New("no such extended attribute")
	ErrXattrTooBig = errors.New("extended attribute too large")
)
