package fusefs

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/nfs/client"
)

// CacheTimes bound how long attributes and names are valid without a call, as the options of
// nfs(5) with these names do.
type CacheTimes struct {
	RegMin, RegMax time.Duration // of files and their names
	DirMin, DirMax time.Duration // of directories and their names
}

// DefaultCacheTimes are those of nfs(5).
var DefaultCacheTimes = CacheTimes{3 * time.Second, time.Minute, 30 * time.Second, time.Minute}

// Config describes a mount.
type Config struct {
	// Client makes the calls. Its owner closes it after Unmount.
	Client *client.Client
	// Root is the directory that is mounted.
	Root *client.Node
	// Source is what mount(8) and df(1) show as the device.
	Source string
	// ReadOnly refuses changes.
	ReadOnly bool
	// AllowOther lets all users use the mount. Calls then have the identity of the calling user,
	// and the kernel checks the permission bits. Without it only the user of this process can use
	// the mount, and calls have the identity of the client.
	AllowOther bool
	// UID and GID, if not nil, are shown as the owner and group of everything.
	UID, GID *uint32
	// Sync makes each write stable before write(2) returns.
	Sync bool
	// NoCTO leaves out the call that makes open(2) see the changes of others.
	NoCTO bool
	// NoNegative makes the kernel look up names that do not exist each time.
	NoNegative bool
	// Times bound caching.
	Times CacheTimes
	// Timeout, if not 0, bounds the wait for the server in one operation, which then fails with EIO.
	Timeout time.Duration
	// Memory is the size of the data buffers in bytes; 0 is 64 MiB.
	Memory int
	// ReadAhead is the most bytes that are read ahead of one open file; 0 is 16 MiB.
	ReadAhead int
	// LocalLocks makes locks of version 3 hold between the programs of this mount alone. Without it
	// they fail with ENOLCK: the client has no lock manager. Versions 4 lock at the server.
	LocalLocks bool
	// NoDelegations leaves out delegations: files are cached as long as Times say.
	NoDelegations bool
	// NoACL hides ACLs. The server enforces them nevertheless.
	NoACL bool
	// Options are further options of the kernel: noexec, nosuid, nodev, suid, dev, exec.
	Options []string
	// Log gets what cannot be returned to a caller; nil is no log.
	Log *slog.Logger
	// Debug logs every request of the kernel.
	Debug bool
}

// FS is a mounted directory. Unmount, Done and Stats are for the caller of Mount; Recalled, Lost
// and Changed are for the client. All other exported methods are those of fuse.RawFileSystem, for
// the kernel. All may be called from any goroutine.
type FS struct {
	fuse.RawFileSystem // answers IOCTL, STATX and TMPFILE with ENOSYS

	cfg    Config
	c      *client.Client
	server *fuse.Server
	pool   *pool
	nodes  nodes
	creds  creds
	stats  stats
	acls   bool // the server has ACLs

	ctx  context.Context // ends with the mount
	stop context.CancelFunc
	work sync.WaitGroup // background work that uses the pool or the kernel's connection
	done chan struct{}  // closed when nothing runs any more

	seq     atomic.Uint64 // orders attributes and writes
	sillies atomic.Uint64 // numbers names of removed files

	mu      sync.Mutex
	handles map[uint64]any // *file or *dir
	lastFH  uint64

	dirtyMu sync.Mutex
	dirty   map[*writer]struct{} // writers with data that is not stable
}

// maxTransfer is the largest READ and WRITE of the kernel, in bytes.
const maxTransfer = 1 << 20

// background is how many asynchronous requests the kernel has in flight: for reading ahead, and for
// writing the pages of mapped files.
const background = 64

// Mount mounts cfg.Root at the directory dir and serves it until Unmount or umount(8). It needs
// /dev/fuse, and root or fusermount3.
func Mount(dir string, cfg Config) (*FS, error) {
	f, err := newFS(cfg)
	if err != nil {
		return nil, err
	}
	f.acls = !cfg.NoACL && f.hasACLs()
	o := &fuse.MountOptions{
		AllowOther: cfg.AllowOther, Options: cfg.Options, MaxBackground: background, MaxWrite: maxTransfer,
		FsName: cfg.Source, Name: "rstored", EnableLocks: cfg.Client.Version() != client.Version3 || !cfg.LocalLocks,
		ExplicitDataCacheControl: true, EnableSymlinkCaching: true,
		DisableXAttrs: cfg.Client.Version() != client.Version42 && !f.acls, Debug: cfg.Debug,
		Logger: log.New(logWriter{cfg.Log}, "", 0), DirectMount: syscall.Geteuid() == 0,
		DirectMountFlags: syscall.MS_NOSUID | syscall.MS_NODEV,
		// The server clears the set-ID bits at a WRITE or SETATTR of the size by an ordinary user
		// (RFC 8881 section 18.32.4). Without KILLPRIV_V2 the kernel would do so by a SETATTR as
		// that user, who need not be the owner.
		ExtraCapabilities: fuse.CAP_ASYNC_DIO | fuse.CAP_READDIRPLUS_AUTO | fuse.CAP_DIRECT_IO_ALLOW_MMAP |
			fuse.CAP_HANDLE_KILLPRIV_V2,
	}
	if cfg.AllowOther {
		o.Options = append(o.Options, "default_permissions")
		if f.acls {
			o.ExtraCapabilities |= fuse.CAP_POSIX_ACL // the kernel checks them too
		}
	}
	if cfg.ReadOnly && o.DirectMount {
		o.DirectMountFlags |= syscall.MS_RDONLY
	} else if cfg.ReadOnly {
		o.Options = append(o.Options, "ro")
	}
	if f.server, err = fuse.NewServer(f, dir, o); err != nil {
		f.close()
		return nil, err
	}
	if !cfg.NoDelegations {
		f.c.UseDelegations(f)
	}
	go func() {
		f.server.Serve()
		f.close()
		close(f.done)
	}()
	if err := f.server.WaitMount(); err != nil {
		return nil, errors.Join(err, f.Unmount())
	}
	setReadAhead(dir)
	return f, nil
}

func newFS(cfg Config) (*FS, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Memory == 0 {
		cfg.Memory = 64 << 20
	}
	if cfg.ReadAhead == 0 {
		cfg.ReadAhead = 16 << 20
	}
	f := &FS{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), cfg: cfg, c: cfg.Client, done: make(chan struct{}),
		handles: make(map[uint64]any), dirty: make(map[*writer]struct{}),
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	var err error
	if f.pool, err = newPool(cfg.Client, cfg.Memory); err != nil {
		f.stop()
		return nil, err
	}
	f.nodes.init(cfg.Root, f.seq.Add(1), cfg.Times)
	f.work.Go(f.tick)
	return f, nil
}

// Unmount unmounts the directory. It fails while files are open there.
func (f *FS) Unmount() error {
	if err := f.server.Unmount(); err != nil {
		return err
	}
	<-f.done
	return nil
}

// Done is closed when the directory is not mounted any more.
func (f *FS) Done() <-chan struct{} { return f.done }

// lastWrites bounds how long the end of a mount waits until the server has the data.
const lastWrites = 10 * time.Second

// close ends the background work. The kernel has closed all files by then, so only data of mapped
// files can be left.
func (f *FS) close() {
	f.c.UseDelegations(nil) // the client returns the remaining delegations when it is closed
	ctx, cancel := context.WithTimeout(f.ctx, lastWrites)
	for _, w := range f.dirtyWriters() {
		if err := w.commit(ctx); err != nil {
			f.cfg.Log.Error("data was not written at the end of the mount", "fileid", w.n.fileID(), "error", err)
		}
	}
	cancel()
	f.releaseAll()
	f.stop()
	f.work.Wait()
	f.pool.close()
}

// String implements fuse.RawFileSystem.
func (f *FS) String() string { return "rstored" }

// logWriter passes the lines of go-fuse on.
type logWriter struct{ l *slog.Logger }

func (w logWriter) Write(b []byte) (int, error) {
	if w.l != nil {
		w.l.Info("fuse: " + string(b))
	}
	return len(b), nil
}

// tickTime is how often tick looks for writers with old data.
const tickTime = 500 * time.Millisecond

// tick sends data that has waited for long enough, until the end of the mount.
func (f *FS) tick() {
	t := time.NewTicker(tickTime)
	defer t.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case now := <-t.C:
			for _, w := range f.dirtyWriters() {
				w.age(now)
			}
		}
	}
}

func (f *FS) dirtyWriters() (list []*writer) {
	f.dirtyMu.Lock()
	defer f.dirtyMu.Unlock()
	for w := range f.dirty {
		list = append(list, w)
	}
	return list
}

// add returns the number of a new open file or directory.
func (f *FS) add(h any) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastFH++
	f.handles[f.lastFH] = h
	return f.lastFH
}

func (f *FS) drop(fh uint64) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.handles[fh]
	delete(f.handles, fh)
	return h
}

func (f *FS) file(fh uint64) *file {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, _ := f.handles[fh].(*file)
	if h != nil {
		h.used()
	}
	return h
}

// releaseAll frees the files and directories that the kernel has not released, because the
// connection to it was aborted. The server closes the files when the client is closed.
func (f *FS) releaseAll() {
	f.mu.Lock()
	all := f.handles
	f.handles = make(map[uint64]any)
	f.mu.Unlock()
	for _, h := range all {
		if h, ok := h.(*file); ok {
			h.reader.close()
		}
	}
}
