package posixfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// Leases of the host's kernel (fcntl(2), F_SETLEASE) report opens and truncations by other
// programs. The kernel sends a signal and makes the program wait, for up to
// /proc/sys/fs/lease-break-time seconds. One thread for all stores blocks the signal and reads
// it from a signalfd. A lease belongs to an open file description: the object stays open and in
// the cache as long, and at most half of the cache can have leases.
//
// The kernel does not distinguish other programs from this one. So the store uses an object with
// a lease to write only through the descriptor that has the lease, and ends a lease to read
// before it opens the object for writing.

// Numbers that golang.org/x/sys/unix does not have.
const (
	fSetSig     = 10
	fSetOwnEx   = 15
	ownerThread = 0 // F_OWNER_TID
)

// leaseSignal is a real-time signal that neither Go nor a C library uses.
const leaseSignal = 50

// lease is a lease of an object, by one or more users.
type lease struct {
	fs     *FS
	o      *object
	fd     int
	write  bool
	users  int
	broken func()
	// notified: broken was called.
	notified atomic.Bool

	// For a lease that another process has handed over: unclaimed counts the users that have not
	// yet called Lease (openMu guards it), late has a break of the lease in that time.
	unclaimed int
	late      *lateBreak
}

// watcher is the thread that receives the signals of broken leases.
type watcher struct {
	once sync.Once
	err  error
	tid  int32
	fd   int // signalfd

	mu   sync.Mutex
	byFD map[int]*lease
}

var watch watcher

func (w *watcher) start() error {
	w.once.Do(func() {
		w.byFD = make(map[int]*lease)
		ready := make(chan error)
		go w.run(ready)
		w.err = <-ready
	})
	return w.err
}

func signalSet(signals ...unix.Signal) (set unix.Sigset_t) {
	word := uint(unsafe.Sizeof(set.Val[0])) * 8
	for _, s := range signals {
		set.Val[uint(s-1)/word] |= 1 << (uint(s-1) % word)
	}
	return set
}

// run receives signals for as long as the process lives. It never unlocks its thread, on which the
// signals are blocked.
func (w *watcher) run(ready chan error) {
	runtime.LockOSThread()
	set := signalSet(leaseSignal, unix.SIGIO)
	err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
	if err == nil {
		w.tid = int32(unix.Gettid())
		w.fd, err = unix.Signalfd(-1, &set, unix.SFD_CLOEXEC)
	}
	ready <- err
	if err != nil {
		return
	}
	var b [16 * unsafe.Sizeof(unix.SignalfdSiginfo{})]byte
	for {
		n, err := again(func() (int, error) { return unix.Read(w.fd, b[:]) })
		if err != nil {
			return // does not occur: nothing closes w.fd
		}
		const size = int(unsafe.Sizeof(unix.SignalfdSiginfo{}))
		for at := 0; at+size <= n; at += size {
			// ssi_signo is the first word, ssi_fd the sixth.
			signo, fd := binary.NativeEndian.Uint32(b[at:]), binary.NativeEndian.Uint32(b[at+20:])
			if signo == leaseSignal {
				w.check(int(int32(fd)))
			} else {
				w.checkAll() // SIGIO: the queue of real-time signals was full
			}
		}
	}
}

// check calls broken if the lease of a descriptor is broken. The descriptor may have been closed
// and opened again since the signal, so check asks the kernel.
func (w *watcher) check(fd int) {
	w.mu.Lock()
	l := w.byFD[fd]
	w.mu.Unlock()
	if l != nil && l.isBroken() && !l.notified.Swap(true) {
		l.fs.count.leaseBreaks.Add(1)
		go l.broken()
	}
}

func (w *watcher) checkAll() {
	w.mu.Lock()
	fds := slices.Collect(maps.Keys(w.byFD))
	w.mu.Unlock()
	for _, fd := range fds {
		w.check(fd)
	}
}

func (l *lease) kind() int {
	if l.write {
		return unix.F_WRLCK
	}
	return unix.F_RDLCK
}

// isBroken reports whether a program waits for the end of the lease. F_GETLEASE returns the type to
// which it has to be reduced.
func (l *lease) isBroken() bool {
	kind, err := unix.FcntlInt(uintptr(l.fd), unix.F_GETLEASE, 0)
	return err == nil && kind != l.kind()
}

// Lease implements blockstore.Leaser.
func (f *FS) Lease(h blockstore.Handle, write bool, broken func()) (func(), error) {
	if err := watch.start(); err != nil {
		return nil, fmt.Errorf("%w: %v", blockstore.ErrNotSupp, err)
	}
	for try := 0; ; try++ {
		o, err := f.acquire(h)
		if err != nil {
			return nil, err
		}
		l, err := f.lease(o, write, broken)
		if err == nil {
			return sync.OnceFunc(func() { l.release() }), nil
		}
		// The conflicting descriptor may be one of this store's cache.
		if errors.Is(err, unix.EAGAIN) && try == 0 && o != f.root {
			unused, dirty := f.objects.dropUnused(o), o.dirty.Load()
			f.release(o)
			switch {
			case unused:
				continue
			case dirty: // a sync would take too long
				return nil, blockstore.ErrNotSupp
			}
			return nil, blockstore.ErrJukebox
		}
		f.release(o)
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			return nil, blockstore.ErrNotSupp // this user may not, or the filesystem has no leases
		}
		return nil, mapErr(err)
	}
}

// lease takes a lease of an object, or adds a user to the one that exists. If it succeeds, the
// lease owns the caller's use of the object, and lease.release ends it.
func (f *FS) lease(o *object, write bool, broken func()) (*lease, error) {
	if err := o.dataType(); err != nil {
		return nil, err
	}
	o.openMu.Lock()
	defer o.openMu.Unlock()
	if l := o.lease; l != nil && l.unclaimed > 0 && l.write == write {
		l.unclaimed--
		l.users++
		l.late.claim(broken)
		return l, nil
	}
	if l := o.lease; l != nil {
		if l.write || write || l.notified.Load() {
			return nil, blockstore.ErrJukebox
		}
		l.users++
		return l, nil
	}
	file, flags := &o.ro, unix.O_RDONLY
	if write {
		file, flags = &o.rw, unix.O_RDWR
	}
	fd := int(file.Load())
	if fd < 0 {
		var err error
		if fd, err = o.reopen(flags); err != nil {
			return nil, err
		}
		file.Store(int32(fd))
	}
	if !f.objects.pin(o) {
		return nil, blockstore.ErrNotSupp
	}
	l := &lease{fs: f, o: o, fd: fd, write: write, users: 1, broken: broken}
	if err := l.set(); err != nil {
		f.objects.unpin(o)
		return nil, err
	}
	o.lease = l
	return l, nil
}

// set asks the kernel for the lease.
func (l *lease) set() error {
	if err := l.own(); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(l.fd), unix.F_SETLEASE, l.kind()); err != nil {
		l.forget()
		return err
	}
	l.fs.count.leases.Add(1)
	return nil
}

// own makes the kernel send the signals of the descriptor to the watcher of this process.
func (l *lease) own() error {
	owner := struct{ kind, pid int32 }{ownerThread, watch.tid}
	if _, _, e := unix.Syscall(unix.SYS_FCNTL, uintptr(l.fd), fSetOwnEx, uintptr(unsafe.Pointer(&owner))); e != 0 {
		return e
	}
	if _, err := unix.FcntlInt(uintptr(l.fd), fSetSig, leaseSignal); err != nil {
		return err
	}
	watch.mu.Lock()
	watch.byFD[l.fd] = l // before the lease exists and can be broken
	watch.mu.Unlock()
	return nil
}

func (l *lease) forget() {
	watch.mu.Lock()
	defer watch.mu.Unlock()
	if watch.byFD[l.fd] == l {
		delete(watch.byFD, l.fd)
	}
}

// release ends the lease of one user. Releasing the object can mean to sync it, for which the
// caller does not wait.
func (l *lease) release() {
	o := l.o
	o.openMu.Lock()
	l.users--
	last := l.users == 0
	if last {
		o.unlease(l)
	}
	o.openMu.Unlock()
	go l.fs.release(o)
}

// unlease ends a lease, if the object still has it. openMu is held.
func (o *object) unlease(l *lease) {
	if l == nil || o.lease != l {
		return
	}
	o.lease = nil
	l.forget()
	_, _ = unix.FcntlInt(uintptr(l.fd), unix.F_SETLEASE, unix.F_UNLCK)
	l.fs.objects.unpin(o)
}
