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
	aheads       atomic.Int32 // goroutines that have the kernel read ahead
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
	// noNowait is set after the filesystem has refused RWF_NOWAIT for a read, noNowaitWrite after it
	// has refused a write.
	noNowait, noNowaitWrite atomic.Bool
	direct                  atomic.Bool // see SetDirect
	// limitsUsers: the filesystem has quotas or a reserve that apply to users and not to the daemon.
	limitsUsers bool
	// inMemory: tmpfs or ramfs, where no read or write waits for a disk.
	inMemory bool
	near     bool // see fsType
	aborts   bool // see fsType
	layered  bool // an overlay: files can have the device number of their layer
	// mappable: Map may map files. seesAll: mincore reports for all files whether they are in memory,
	// else only for files of uid.
	mappable, seesAll bool
	noatime           bool // a read does not set the atime
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

// finder opens the object of an identity: byHandle or byTable.
type finder interface {
	// open returns a descriptor (O_PATH).
	open(id *ident) (int, error)
	// seen records that id is name in the directory parent.
	seen(id, parent *ident, name string)
	// knows reports whether seen would change nothing. It waits for no device.
	knows(id, parent *ident, name string) bool
	// gone records that id has no name any more.
	gone(id *ident)
	// epoch returns the same number as long as the finder remembers all that it has seen.
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
	// EvalSymlinks has resolved the links of the path. A link that another program puts there now
	// is not followed.
	fd, err := unix.Openat2(unix.AT_FDCWD, abs, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
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
	// What the filesystem can do follows from its type, from flags of the mount, and from probes.
	var sfs unix.Statfs_t
	if err := unix.Fstatfs(fd, &sfs); err != nil {
		return nil, err
	}
	if sfs.Flags&unix.ST_RDONLY != 0 {
		f.readOnly = true
	}
	kind := typeOfFS(&sfs)
	f.limits, f.inMemory, f.near = kind.limits(), kind.inMemory, kind.near
	f.aborts = kind.aborts && !f.readOnly
	f.changes.init(coarseTimes(fd))
	f.changes.sealNow()
	f.layered = sfs.Type == unix.OVERLAYFS_SUPER_MAGIC
	// Map lends nothing of a filesystem that sets the atime at every read (strictatime), because
	// touching a mapping does not set it.
	relaxed := sfs.Flags&(unix.ST_NOATIME|unix.ST_RELATIME|unix.ST_RDONLY) != 0
	f.mappable = opts.MapAfter >= 0 && relaxed && kind.mappable
	f.seesAll, f.uid = canSwitch(), uint32(unix.Geteuid())
	f.noatime = sfs.Flags&(unix.ST_NOATIME|unix.ST_RDONLY) != 0
	f.limits.BlockSize = uint32(max(sfs.Bsize, 0))
	f.limits.Xattrs = hasXattrs(fd)
	f.limits.ACLs = hasACLs(fd)
	f.limits.Labels = hasLabels(fd)
	_, f.limits.Births, _ = birth(fd)
	f.limits.CaseInsensitive = caseInsensitive(fd, int64(sfs.Type))
	f.limits.Clones = !f.readOnly && hasClones(fd)
	// Without a mount ID, mount points below the root are recognised by their device numbers.
	f.noOpenat2, f.mountID = probeOpenat2(fd)
	f.noOpenat2 = f.noOpenat2 || opts.noOpenat2

	// A handle of one kind is stale under the other, so that the kind follows from the filesystem
	// alone.
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
	can := canSwitch()
	if opts.Identity == Kernel && !can {
		return nil, errors.New("taking on the identity of clients needs CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_FOWNER and " +
			"CAP_DAC_OVERRIDE")
	}
	f.who = newCaller(can && opts.Identity != Server, opts.OwnThreads)
	f.quotas.get = f.who.quotaOf
	f.limits.Quotas = f.quotas.found(fd)
	// XFS charges the owner of the file, whoever writes. A filesystem in memory has no reserve.
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
	f.windows.init(files)
	f.objects.init(openFiles(opts.OpenFiles), files, &f.windows, f.clean, f.discard)
	f.leaving.init()
	f.writeRest = cmp.Or(opts.MapAfter, writeRest)
	f.streams.init()
	f.incarnations.init()
	f.listings.init()
	f.hostLocks.init(files, kind.remote)
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
	// The directory may not exist yet: resolve the part of its path that does.
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

// chooseFinder uses open_by_handle_at if it works for the root. It needs CAP_DAC_READ_SEARCH, and a
// filesystem with handles.
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

// SetAsync changes Options.Async. It does not sync what was acknowledged before.
func (f *FS) SetAsync(on bool) { f.async.Store(on) }

// FSID identifies the export, stable over restarts.
func (f *FS) FSID() uint64 { return f.fsid }

// Limits returns the static properties of the filesystem.
func (f *FS) Limits() blockstore.Limits { return f.limits }

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

// syncFailed records a sync that failed, so that data or names may be lost. The new write verifier
// makes clients send their unstable writes again (RFC 1813 section 3.3.21).
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
	for _, o := range f.objects.list() {
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

// openFiles sizes the cache so that its descriptors stay a part of the limit.
func openFiles(want int) int {
	n := min(4096, Descriptors()/6)
	if want > 0 {
		n = min(n, want)
	}
	return max(n, openFilesMin)
}
