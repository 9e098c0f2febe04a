package memfs

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/rstored/rstored/blockstore"
)

const (
	// handleLen is the length of a handle: the store's id and the inode number.
	handleLen = 16
	rootID    = 1
	// maxFileSize is the largest offset of a byte plus one, as on ext4's VFS limit.
	maxFileSize = 1<<63 - 1
	// linkMax bounds the names of one file and the subdirectories of one directory.
	linkMax = 65000
	// targetMax is the longest target of a symlink (PATH_MAX less its NUL).
	targetMax = 4095
	// inodeCost is the number of bytes that an inode counts against Options.MaxBytes.
	inodeCost = 256
)

// Options are the properties of a new store. The zero value is usable.
type Options struct {
	// MaxBytes bounds file data, extended attributes and ACLs, plus a fixed cost for each inode;
	// 0 means 1 TiB. Beyond it operations fail with ErrNoSpace.
	MaxBytes uint64
	// MaxFiles bounds the inodes; 0 means 2^32.
	MaxFiles uint64
	// FSID identifies the filesystem; 0 takes a random one.
	FSID uint64
	// Now is the clock; nil means time.Now. The store makes its own stamps
	// strictly increasing, so that a ctime identifies a version of an object.
	Now func() time.Time
	// RootMode is the mode of the root directory; 0 means 0755.
	RootMode uint32
	// RootUID and RootGID own the root directory.
	RootUID, RootGID uint32
	// ReadOnly makes every change fail with ErrROFS.
	ReadOnly bool
}

// FS is a store in memory. Its methods may be called from any goroutine: mu guards everything,
// so that each of them is atomic. Reads do not update atime.
type FS struct {
	opts Options
	fsid uint64
	verf [8]byte

	mu     sync.RWMutex
	inodes map[uint64]*inode
	nextID uint64
	used   uint64
	last   int64 // the latest stamp given, nanoseconds
}

var (
	_ blockstore.FS     = (*FS)(nil)
	_ blockstore.Pinner = (*FS)(nil)
)

// New returns an empty store.
func New(opts Options) *FS {
	if opts.MaxBytes == 0 {
		opts.MaxBytes = 1 << 40
	}
	if opts.MaxFiles == 0 {
		opts.MaxFiles = 1 << 32
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.RootMode == 0 {
		opts.RootMode = 0o755
	}
	f := &FS{opts: opts, fsid: opts.FSID, inodes: make(map[uint64]*inode), nextID: rootID}
	var seed [16]byte
	rand.Read(seed[:])
	if f.fsid == 0 {
		f.fsid = binary.BigEndian.Uint64(seed[:8]) | 1
	}
	copy(f.verf[:], seed[8:])
	n := f.newInode(blockstore.TypeDir, opts.RootMode&0o7777, opts.RootUID, opts.RootGID)
	n.attr.NLink = 2
	n.dir = newDirectory()
	n.parent = n.attr.FileID
	return f
}

// Root returns the handle of the root directory.
func (f *FS) Root() (blockstore.Handle, error) { return f.handle(rootID), nil }

// FSID returns the identity given or drawn at New.
func (f *FS) FSID() uint64 { return f.fsid }

// Verifier is constant: no data is lost before the process ends.
func (f *FS) Verifier() [8]byte { return f.verf }

// Close does nothing. The store stays usable.
func (f *FS) Close() error { return nil }

// Limits returns the static properties of the store.
func (f *FS) Limits() blockstore.Limits {
	return blockstore.Limits{
		MaxFileSize: maxFileSize, LinkMax: linkMax, NameMax: blockstore.NameMax, WccExact: true,
		BlockSize: 1, Xattrs: true, ACLs: true, Births: true,
	}
}

// Birth returns when an object was made.
func (f *FS) Birth(_ *blockstore.Cred, h blockstore.Handle) (time.Time, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.lookup(h)
	if err != nil {
		return time.Time{}, err
	}
	return n.born, nil
}

// Stat returns the space and the inodes left under Options.
func (f *FS) Stat(c *blockstore.Cred, h blockstore.Handle) (blockstore.Stat, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if _, err := f.lookup(h); err != nil {
		return blockstore.Stat{}, err
	}
	free := f.opts.MaxBytes - min(f.used, f.opts.MaxBytes)
	files := f.opts.MaxFiles - min(uint64(len(f.inodes)), f.opts.MaxFiles)
	return blockstore.Stat{
		TotalBytes: f.opts.MaxBytes, FreeBytes: free, AvailBytes: free,
		TotalFiles: f.opts.MaxFiles, FreeFiles: files, AvailFiles: files,
	}, nil
}

func (f *FS) handle(id uint64) blockstore.Handle {
	h := blockstore.Handle{Len: handleLen}
	binary.BigEndian.PutUint64(h.B[0:], f.fsid)
	binary.BigEndian.PutUint64(h.B[8:], id)
	return h
}

// lookup returns the inode of a handle. Inode numbers are never used twice, so
// an absent one is stale.
func (f *FS) lookup(h blockstore.Handle) (*inode, error) {
	if h.Len != handleLen {
		return nil, blockstore.ErrBadHandle
	}
	if binary.BigEndian.Uint64(h.B[0:]) != f.fsid {
		return nil, blockstore.ErrStale
	}
	n := f.inodes[binary.BigEndian.Uint64(h.B[8:])]
	if n == nil {
		return nil, blockstore.ErrStale
	}
	return n, nil
}

func (f *FS) lookupDir(h blockstore.Handle) (*inode, error) {
	n, err := f.lookup(h)
	if err != nil {
		return nil, err
	}
	if n.dir == nil {
		return nil, blockstore.ErrNotDir
	}
	return n, nil
}

// now returns a time later than every one before. mu is held.
func (f *FS) now() time.Time {
	t := f.opts.Now().UnixNano()
	if t <= f.last {
		t = f.last + 1
	}
	f.last = t
	return time.Unix(0, t)
}

// charge counts n more bytes against Options.MaxBytes, or fails. mu is held.
func (f *FS) charge(n uint64) error {
	if n > f.opts.MaxBytes || f.used > f.opts.MaxBytes-n {
		return blockstore.ErrNoSpace
	}
	f.used += n
	return nil
}

func (f *FS) newInode(typ blockstore.FileType, mode, uid, gid uint32) *inode {
	now := f.now()
	n := &inode{attr: blockstore.Attr{
		Type: typ, Mode: mode, NLink: 1, UID: uid, GID: gid, FileID: f.nextID,
		Atime: now, Mtime: now, Ctime: now,
	}, born: now}
	f.nextID++
	f.inodes[n.attr.FileID] = n
	f.used += inodeCost
	return n
}

// drop removes a name of n, and frees n if that was the last name. mu is held.
func (f *FS) drop(n *inode, now time.Time) {
	n.attr.NLink--
	n.attr.Ctime = now
	if n.dir != nil {
		n.attr.NLink = 0
	}
	if n.attr.NLink == 0 && n.pins == 0 {
		f.free(n)
	}
}

// Pin implements blockstore.Pinner.
func (f *FS) Pin(h blockstore.Handle) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup(h)
	if err != nil {
		return err
	}
	if n.attr.Type != blockstore.TypeReg {
		return blockstore.ErrInval
	}
	n.pins++
	return nil
}

// Unpin implements blockstore.Pinner.
func (f *FS) Unpin(h blockstore.Handle) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookup(h)
	if err != nil || n.pins == 0 {
		return
	}
	if n.pins--; n.pins == 0 && n.attr.NLink == 0 {
		f.free(n)
	}
}

// free forgets an inode without names.
func (f *FS) free(n *inode) {
	f.used -= inodeCost + n.attr.Used + n.xattrBytes + aclBytes(n.attr.ACL) + aclBytes(n.inherit)
	delete(f.inodes, n.attr.FileID)
}
