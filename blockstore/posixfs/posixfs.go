// Package posixfs is a file store over a directory of the host.
//
// # What a handle is
//
// A handle holds the filesystem's own file handle (or inode number and birth
// time, where the filesystem makes none) and a tag of the export. It names the
// object over renames and restarts, also after a crash, because nothing about it
// is stored. It has no code of its own: the protocol layer has to authenticate the
// handles that clients send. Where the daemon may use
// open_by_handle_at the kernel finds the object; elsewhere a table of where
// objects were last seen does, and when that is out of date a search of the
// export.
//
// # What can be reached
//
// Names are resolved one component at a time below an open directory, never
// through a symlink and never over a mount point, so a path leads nowhere but
// down. Handles of other exports fail by their tag. Directories found by handle are walked up
// to the root of the export before use, so one that the host moved away is
// stale and its ".." no way out. A file that the host moved out of the export
// but not off the filesystem stays readable to those who hold its handle where
// the kernel resolves handles, as with every NFS server that checks no subtrees.
//
// # Who does it
//
// A privileged daemon makes each system call that checks permission as the
// client's user, so that the kernel decides, ACLs included. An unprivileged one
// compares mode bits itself, and can do no more than its own user: it makes
// objects for its own uid (and for a client's root) and refuses others with
// ErrPerm.
//
// # What is on disk
//
// Stable writes, commits and every change of the namespace are on disk before a
// method returns, unless Options.Async. The attributes of symlinks and special
// files cannot be synced one by one and follow with the filesystem's journal. A
// failed sync fails every request that it was for and changes the verifier, so that
// clients send their unstable writes again.
package posixfs

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// Mechanism forces one way of doing a thing where Open would choose by what
// the process may do.
type Mechanism uint8

// Mechanisms.
const (
	// Auto uses the kernel where permitted, else the server.
	Auto Mechanism = iota
	// Kernel insists on the kernel's way and makes Open fail without it.
	Kernel
	// Server uses the server's own way although the kernel's may be there.
	Server
)

// Options of Open.
type Options struct {
	// StateDir keeps the table of locations, without open_by_handle_at. Several exports
	// may share it; it must not be below an export. Where it is empty the table
	// ends with the process.
	StateDir string
	// ReadOnly makes every change fail with ErrROFS.
	ReadOnly bool
	// Async answers before changes are on disk, as the async export option of
	// other servers: faster, and a crash of the host loses acknowledged data.
	Async bool
	// FSID identifies the export, in its handles and to clients; 0 derives one
	// from Filesystem and the root directory.
	FSID uint64
	// Filesystem identifies the filesystem; 0 is that of ProbeFilesystem.
	Filesystem uint64
	// OpenFiles bounds the objects kept open, each with up to three
	// descriptors; 0 takes a share of RLIMIT_NOFILE, at most 4096.
	OpenFiles int
	// Files is what stores of the process share; nil: the store has all descriptors for itself.
	Files *Files
	// SearchEntries bounds the search for one object that moved behind the
	// server's back; 0 means 1<<20. Not used with open_by_handle_at.
	SearchEntries int
	// Identity is how permission is enforced: Kernel switches thread
	// identities, Server compares mode bits.
	Identity Mechanism
	// Handles is how they are resolved: Kernel by open_by_handle_at, Server by
	// the table of locations.
	Handles Mechanism
	// NoUmask says that the umask of the process is 0 and stays so: new objects get
	// their mode without the help of threads that have a umask of their own.
	NoUmask bool
	// OwnThreads says that identities of clients are taken on threads that do nothing else, for
	// programs whose other threads must keep the credentials that the process began with, as
	// the kernel's RDMA devices demand. It costs two changes of thread for each such call.
	OwnThreads bool
	// MapAfter is how long a file must not have changed for its data to be lent from where
	// it is in memory; see Map. 0 means one second, less than 0 never to lend any.
	MapAfter time.Duration
	// Logger gets what an operator should know; nil drops it.
	Logger *slog.Logger

	// For tests: what an older kernel or a poorer filesystem would do.
	forceBirth, noOpenat2, noFaccessat2 bool
}

// Counters are totals since Open, for statistics.
type Counters struct {
	Opens          uint64 // objects opened because they were not in the cache
	Evictions      uint64 // objects closed for room
	ForeignHandles uint64 // handles that are of another export
	Outside        uint64 // handles of objects no longer below the root
	Searches       uint64 // walks of the export for a moved object
	SearchMisses   uint64 // walks that did not find it
	SyncFailures   uint64 // fsyncs that failed, each with a new verifier
	SyncsShared    uint64 // writes and commits that another's sync stood for, or that shared theirs
	ReadAhead      uint64 // bytes that the kernel was asked to read ahead of streams
	WouldBlock     uint64 // reads sent back because data was not in memory
	DirectReads    uint64 // reads that went past the page cache
	DirectWrites   uint64 // writes that did
	WritesBlock    uint64 // writes sent back because they might have to wait
	DirStreamHits  uint64 // directory reads that continued an open stream
	Leases         uint64 // leases of files
	LeaseBreaks    uint64 // leases that another program broke
	Mapped         uint64 // reads whose data was lent, not copied
	MapCopies      uint64 // packets of lent data that were copied after all
}

type counters struct {
	opens, evictions, foreign, outside, searches, searchMisses, syncFailures, syncsShared, readAhead, wouldBlock, streamHits, leases, leaseBreaks, mapped, mapCopies, writesBlock, directReads, directWrites atomic.Uint64
}

// FS is a store over a directory. It implements blockstore.FS; its methods may
// be called from any goroutine, but none after or during Close.
type FS struct {
	opts   Options
	log    *slog.Logger
	dir    string
	fsid   uint64
	dev    uint64
	kind   uint8 // of identities
	tag    tag
	who    caller
	makers *makers

	incarnations incarnations
	listings     listings
	find         finder
	objects      cache
	leaving      leaving
	changes      changes
	root         *object
	windows      windows
	aheads       atomic.Int32 // goroutines that ask for what is ahead of streams
	streams      streams
	limits       blockstore.Limits
	count        counters

	hostLocks hostLocks
	pins      pins
	quotas    quotas

	readOnly  bool
	async     atomic.Bool
	noOpenat2 bool
	mountID   uint64
	// kernelSync is replaced in tests.
	kernelSync func(fd int, all bool) error
	// noNowait is set once the filesystem has refused RWF_NOWAIT, noNowaitWrite for a write.
	noNowait, noNowaitWrite atomic.Bool
	direct                  atomic.Bool // see SetDirect
	// limitsUsers: the filesystem has quotas or a reserve that the daemon overrides by who it is.
	limitsUsers bool
	// inMemory: there is no disk that a read would wait for.
	inMemory bool
	near     bool // see nearFS
	layered  bool // an overlay: files may have the device of the layer that they are in
	// mappable: files are mapped to be sent. seesAll: mincore tells the truth of all of
	// them, else of uid's.
	mappable, seesAll bool
	noatime           bool // reading a file does not set its time of access
	uid               uint32
	writeRest         time.Duration // of Options.MapAfter

	syncs  syncs // of the whole filesystem
	verfMu sync.Mutex
	verf   [8]byte
}

var (
	_ blockstore.FS           = (*FS)(nil)
	_ blockstore.Leaser       = (*FS)(nil)
	_ blockstore.Pinner       = (*FS)(nil)
	_ blockstore.NowaitWriter = (*FS)(nil)
)

var errClosed = errors.New("the store is closed")

// finder gets from an identity to a descriptor (O_PATH) of the object, and is
// told where objects are seen.
type finder interface {
	open(id *ident) (int, error)
	// seen notes that id is name in the directory parent.
	seen(id, parent *ident, name string)
	// gone notes that id has no name left.
	gone(id *ident)
	// epoch is a number that stays as long as everything that was seen is known.
	epoch() uint64
	close() error
}

// Open makes a store of the directory dir, which must exist.
func Open(dir string, opts Options) (*FS, error) {
	f, err := open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("opening %s for export: %w", dir, err)
	}
	return f, nil
}

// Dir is the directory that was opened, without symbolic links in its path.
func (f *FS) Dir() string { return f.dir }

func open(dir string, opts Options) (_ *FS, err error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.SearchEntries <= 0 {
		opts.SearchEntries = 1 << 20
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return nil, err
	}
	f := &FS{opts: opts, log: opts.Logger, dir: abs, readOnly: opts.ReadOnly, kernelSync: kernelSync}
	f.async.Store(opts.Async)
	f.newVerifier()
	if err := f.checkStateDir(); err != nil {
		return nil, err
	}
	// What the path leads to has been found out: a link that somebody puts there meanwhile is not followed.
	fd, err := unix.Openat2(unix.AT_FDCWD, abs, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err == unix.ENOSYS || err == unix.EPERM { // an old kernel, or a filter
		fd, err = unix.Open(abs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	var st unix.Stat_t
	if err := unix.Stat(procPath(fd), &st); err != nil {
		return nil, fmt.Errorf("/proc must be mounted: %w", err)
	}
	f.dev = st.Dev
	var sfs unix.Statfs_t
	if err := unix.Fstatfs(fd, &sfs); err != nil {
		return nil, err
	}
	if sfs.Flags&unix.ST_RDONLY != 0 {
		f.readOnly = true
	}
	f.limits = limitsOf(int64(sfs.Type))
	f.inMemory = sfs.Type == unix.TMPFS_MAGIC || sfs.Type == unix.RAMFS_MAGIC
	f.near = nearFS(int64(sfs.Type))
	f.changes.init(coarseTimes(fd, int64(sfs.Type)))
	f.changes.sealNow()
	f.layered = sfs.Type == unix.OVERLAYFS_SUPER_MAGIC
	f.mappable, f.seesAll, f.uid = opts.MapAfter >= 0 && mappable(&sfs), canSwitch(), uint32(unix.Geteuid())
	f.noatime = sfs.Flags&(unix.ST_NOATIME|unix.ST_RDONLY) != 0
	f.limits.BlockSize = uint32(max(sfs.Bsize, 0))
	f.limits.Xattrs = hasXattrs(fd)
	f.limits.ACLs = hasACLs(fd)
	f.limits.Clones = !f.readOnly && hasClones(fd)
	f.noOpenat2, f.mountID = probeOpenat2(fd)

	f.noOpenat2 = f.noOpenat2 || opts.noOpenat2

	f.kind = kindKernel
	id, err := identify(kindKernel, fd, "")
	if err != nil || opts.forceBirth {
		f.kind = kindBirth
		if id, err = identify(kindBirth, fd, ""); err != nil {
			return nil, err
		}
	}
	if f.layered && f.kind == kindBirth {
		f.log.Warn("this overlay makes no file handles that fit: a file gets another handle when it is copied up, and "+
			"clients that have it open get ESTALE; mount the overlay with index=on,nfs_export=on, "+
			"with layers on ext4, XFS or tmpfs",
			"path", f.dir)
	}
	f.fsid = opts.FSID
	if f.fsid == 0 {
		filesystem := opts.Filesystem
		if filesystem == 0 {
			fs, err := probeFilesystem(fd, &id)
			if err != nil {
				return nil, err
			}
			filesystem = fs.ID()
		}
		f.fsid = exportID(filesystem, &id)
	}
	f.tag = newTag(&id, f.fsid)
	if err := f.chooseIdentity(); err != nil {
		return nil, err
	}
	f.quotas.get = f.who.quotaOf
	f.limits.Quotas = f.quotas.found(fd)
	// XFS asks who owns the file, not who writes. In memory there is no reserve.
	f.limitsUsers = f.who.overrides() && sfs.Type != unix.XFS_SUPER_MAGIC && (!f.inMemory || f.limits.Quotas)
	if err := f.chooseFinder(fd, &id); err != nil {
		return nil, err
	}
	files := opts.Files
	if files == nil {
		files = NewFiles(Descriptors())
	}
	f.pins.init(files)
	f.root = f.newObject(id, fd, blockstore.TypeDir)
	f.objects.init(openFiles(opts.OpenFiles), files, f.clean, f.discard)
	f.leaving.init()
	f.windows.init()
	f.writeRest = cmp.Or(opts.MapAfter, writeRest)
	f.streams.init()
	f.incarnations.init()
	f.listings.init()
	f.hostLocks.init(files, remoteFS(int64(sfs.Type)))
	f.makers = startMakers(opts.NoUmask)
	return f, nil
}

// checkStateDir refuses a state directory that clients could read or write.
func (f *FS) checkStateDir() error {
	if f.opts.StateDir == "" {
		return nil
	}
	abs, err := filepath.Abs(f.opts.StateDir)
	if err != nil {
		return err
	}
	// The directory may not be there yet: resolve what is.
	for probe, rest := abs, ""; ; {
		real, err := filepath.EvalSymlinks(probe)
		if err == nil {
			abs = filepath.Join(real, rest)
			break
		}
		rest = filepath.Join(filepath.Base(probe), rest)
		if probe == filepath.Dir(probe) {
			return err
		}
		probe = filepath.Dir(probe)
	}
	if abs == f.dir || strings.HasPrefix(abs, strings.TrimSuffix(f.dir, "/")+"/") {
		return fmt.Errorf("the state directory %s is inside the export, where clients could reach it", abs)
	}
	return nil
}

func (f *FS) chooseIdentity() error {
	can := canSwitch()
	if f.opts.Identity == Kernel && !can {
		return errors.New("taking on the identity of clients needs CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_FOWNER and CAP_DAC_OVERRIDE")
	}
	f.who = newCaller(can && f.opts.Identity != Server, f.opts.OwnThreads)
	return nil
}

func (f *FS) chooseFinder(root int, id *ident) error {
	if f.opts.Handles != Server && f.kind == kindKernel {
		k := &byHandle{fs: f, root: root}
		fd, err := k.openRaw(id)
		if err == nil {
			unix.Close(fd)
			f.find = k
			return nil
		}
		if f.opts.Handles == Kernel {
			return fmt.Errorf("open_by_handle_at: %w", err)
		}
	} else if f.opts.Handles == Kernel {
		return errors.New("the filesystem makes no file handles")
	}
	t, err := openTable(f, *id)
	if err != nil {
		return err
	}
	f.find = t
	return nil
}

// Root returns the handle of the exported directory.
func (f *FS) Root() (blockstore.Handle, error) { return f.root.h, nil }

// SetAsync changes Options.Async. What was answered before is not on disk by that.
func (f *FS) SetAsync(on bool) { f.async.Store(on) }

// FSID identifies the export, stable over restarts.
func (f *FS) FSID() uint64 { return f.fsid }

// Limits returns the static properties of the filesystem.
func (f *FS) Limits() blockstore.Limits { return f.limits }

// Counters returns the totals so far.
func (f *FS) Counters() Counters {
	c := &f.count
	return Counters{
		Opens: c.opens.Load(), Evictions: c.evictions.Load(), ForeignHandles: c.foreign.Load(), Outside: c.outside.Load(),
		Searches: c.searches.Load(), SearchMisses: c.searchMisses.Load(), SyncFailures: c.syncFailures.Load(), SyncsShared: c.syncsShared.Load(), ReadAhead: c.readAhead.Load(),
		WouldBlock: c.wouldBlock.Load(), WritesBlock: c.writesBlock.Load(), DirectReads: c.directReads.Load(), DirectWrites: c.directWrites.Load(),
		DirStreamHits: c.streamHits.Load(),
		Leases:        c.leases.Load(), LeaseBreaks: c.leaseBreaks.Load(),
		Mapped: c.mapped.Load(), MapCopies: c.mapCopies.Load(),
	}
}

// Stat returns the numbers of the filesystem under the object.
func (f *FS) Stat(c *blockstore.Cred, h blockstore.Handle) (blockstore.Stat, error) {
	o, err := f.acquire(h)
	if err != nil {
		return blockstore.Stat{}, err
	}
	defer f.release(o)
	var s unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(o.path, &s) }); err != nil {
		return blockstore.Stat{}, mapErr(err)
	}
	unit := uint64(s.Frsize)
	if unit == 0 {
		unit = uint64(s.Bsize)
	}
	return blockstore.Stat{
		TotalBytes: s.Blocks * unit, FreeBytes: s.Bfree * unit, AvailBytes: s.Bavail * unit,
		TotalFiles: s.Files, FreeFiles: s.Ffree, AvailFiles: s.Ffree,
	}, nil
}

// Verifier changes at every Open and after every failed sync.
func (f *FS) Verifier() [8]byte {
	f.verfMu.Lock()
	defer f.verfMu.Unlock()
	return f.verf
}

func (f *FS) newVerifier() {
	f.verfMu.Lock()
	defer f.verfMu.Unlock()
	rand.Read(f.verf[:])
}

// syncFailed records that data or names may be lost: clients learn by the
// verifier that they must send unstable writes again.
func (f *FS) syncFailed(err error) error {
	f.count.syncFailures.Add(1)
	f.newVerifier()
	f.log.Error("a sync to disk failed; the write verifier was changed", "path", f.dir, "error", err)
	if m := mapErr(err); errors.Is(m, blockstore.ErrNoSpace) || errors.Is(m, blockstore.ErrQuota) {
		return m
	}
	return fmt.Errorf("%w: sync: %v", blockstore.ErrIO, err)
}

// Close syncs the files written and not yet committed, and releases everything.
func (f *FS) Close() error {
	f.makers.stop()
	f.streams.close()
	for _, o := range f.objects.leased() {
		o.openMu.Lock()
		o.unlease(o.lease)
		o.openMu.Unlock()
	}
	f.hostLocks.close()
	f.pins.close()
	f.objects.close()
	f.leaving.drain()
	f.root.closeFiles()
	return f.find.close()
}

// limitsOf knows the link limits of filesystems, which no system call tells.
func limitsOf(magic int64) blockstore.Limits {
	l := blockstore.Limits{MaxFileSize: 1<<63 - 1, LinkMax: 32000, NameMax: blockstore.NameMax}
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		l.LinkMax, l.MaxFileSize = 65000, 16<<40-4096
	case unix.BTRFS_SUPER_MAGIC:
		l.LinkMax = 65535
	case unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		l.LinkMax = 1<<31 - 1
	}
	return l
}

// openFiles sizes the cache so that its descriptors stay a part of the limit.
func openFiles(want int) int {
	n := min(4096, Descriptors()/6)
	if want > 0 {
		n = min(n, want)
	}
	return max(n, openFilesMin)
}
