package posixfs

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// A store can be handed over to a successor process. What belongs to open file descriptions goes
// with it, because it would end with this process: locks and leases of the host, files without a
// name, and objects with unstable writes, so that the successor learns of an error of writing
// them back.
//
//	old process                       successor
//	Handover  ->  data and files  ->  Open, Restore, Lease for each lease, Settle
//	ends without Close
//
// Both processes share the descriptions in between, so that no lock or lease ends. The old
// process must not Close its store: that would release locks and leases of the successor. If the
// successor fails, the old process calls Settle and continues.

// handedOver is encoded by gob, so that a later version can add fields. Numbers of files count
// from 1; 0 is none.
type handedOver struct {
	Root     []byte
	Verifier []byte
	Objects  []handedObject
	Locks    []handedLocks
	Pins     []handedPin
}

type handedObject struct {
	Handle       []byte
	Path, RO, RW int
	Dirty        bool
	Leases       int  // users of its lease
	Write        bool // it is a lease to write
}

type handedLocks struct {
	Handle []byte
	File   int
}

// Settle ends a handover in the process that continues. The kernel signals breaks of leases to this
// process from now on. Leases that no call of Lease has claimed end.
func (f *FS) Settle() error {
	var err error
	for _, o := range f.objects.list() {
		o.openMu.Lock()
		switch l := o.lease; {
		case l == nil:
		case l.users == 0:
			o.unlease(l)
		default:
			l.unclaimed = 0
			err = errors.Join(err, l.redirect())
		}
		o.openMu.Unlock()
	}
	return err
}

// Handover describes a store for a successor. No other method runs meanwhile. The caller closes the
// files.
func (f *FS) Handover() (data []byte, files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, x := range files {
				_ = x.Close()
			}
			files = nil
		}
	}()
	add := func(fd int) int {
		if fd < 0 || err != nil {
			return 0
		}
		var dup int
		if dup, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return 0
		}
		files = append(files, os.NewFile(uintptr(dup), f.dir))
		return len(files)
	}
	f.leaving.drain() // a sync that fails changes the verifier
	v := f.Verifier()
	out := handedOver{Root: f.root.h.Bytes(), Verifier: v[:]}
	for _, o := range f.objects.list() {
		o.openMu.Lock()
		if o.lease != nil || o.dirty.Load() {
			x := handedObject{Handle: bytes.Clone(o.h.Bytes()), Path: add(o.path), Dirty: o.dirty.Load()}
			x.RO, x.RW = add(int(o.ro.Load())), add(int(o.rw.Load()))
			if l := o.lease; l != nil {
				x.Leases, x.Write = l.users, l.write
			}
			out.Objects = append(out.Objects, x)
		}
		o.openMu.Unlock()
	}
	f.hostLocks.mu.Lock()
	for h, fd := range f.hostLocks.fds {
		out.Locks = append(out.Locks, handedLocks{bytes.Clone(h.Bytes()), add(fd)})
	}
	f.hostLocks.mu.Unlock()
	out.Pins = f.pins.handover(add)
	if err != nil {
		return nil, files, fmt.Errorf("handing over the open files of %s: %w", f.dir, err)
	}
	var b bytes.Buffer
	err = gob.NewEncoder(&b).Encode(&out)
	return b.Bytes(), files, err
}

var errHandover = errors.New("what was handed over of the open files is damaged")

// Restore takes over the state of another process's store. The store was just opened. Before Settle
// the caller calls Lease again for each lease. If a program already waits for such a lease, the
// store calls broken at once. The caller closes the files. After an error the store must not be
// used or closed: it ends with the process.
func (f *FS) Restore(data []byte, files []*os.File) error {
	var in handedOver
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&in); err != nil {
		return fmt.Errorf("%w: %w", errHandover, err)
	}
	if !bytes.Equal(in.Root, f.root.h.Bytes()) {
		return fmt.Errorf("%s was another directory", f.dir)
	}
	if len(in.Verifier) != len(f.verf) {
		return errHandover
	}
	f.changes.sealNow() // the counts of the other process are not handed over
	f.verfMu.Lock()
	copy(f.verf[:], in.Verifier)
	f.verfMu.Unlock()
	for i := range in.Pins {
		if err := f.restorePin(&in.Pins[i], files); err != nil {
			return err
		}
	}
	for i := range in.Objects {
		if err := f.restoreObject(&in.Objects[i], files); err != nil {
			return err
		}
	}
	for i := range in.Locks {
		x := &in.Locks[i]
		h, ok := blockstore.MakeHandle(x.Handle)
		f.hostLocks.mu.Lock()
		_, twice := f.hostLocks.fds[h]
		f.hostLocks.mu.Unlock()
		if !ok || twice || x.File == 0 {
			return errHandover
		}
		fd, err := dupOf(files, x.File)
		if err != nil {
			return err
		}
		f.hostLocks.files.restoreLock()
		f.hostLocks.mu.Lock()
		f.hostLocks.fds[h] = fd
		f.hostLocks.mu.Unlock()
	}
	return nil
}

// dupOf returns another descriptor of file number place, -1 for none.
func dupOf(files []*os.File, place int) (int, error) {
	if place == 0 {
		return -1, nil
	}
	if place < 0 || place > len(files) {
		return -1, errHandover
	}
	c, err := files[place-1].SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if e := c.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 3) }); e != nil {
		err = e
	}
	return fd, err
}

// restoreObject makes an object of open files.
func (f *FS) restoreObject(x *handedObject, files []*os.File) error {
	h, ok := blockstore.MakeHandle(x.Handle)
	if !ok || x.Path == 0 || x.Leases < 0 {
		return errHandover
	}
	id, err := f.tag.ident(&h)
	if err != nil || id.kind != f.kind {
		return fmt.Errorf("%w: a handle of another export", errHandover)
	}
	path, err := dupOf(files, x.Path)
	if err != nil {
		return err
	}
	if is, err := identify(f.kind, path, ""); err != nil || is != id {
		unix.Close(path)
		return fmt.Errorf("%w: a file of another handle", errHandover)
	}
	o, err := f.adopt(id, path)
	if errors.Is(err, blockstore.ErrStale) {
		return nil // its last name was removed
	}
	if err != nil {
		return err
	}
	defer f.release(o)
	if o == f.root || o.dataType() != nil {
		return errHandover
	}
	o.openMu.Lock()
	defer o.openMu.Unlock()
	if o.ro.Load() >= 0 || o.rw.Load() >= 0 {
		return fmt.Errorf("%w: a file twice", errHandover)
	}
	ro, err := dupOf(files, x.RO)
	if err != nil {
		return err
	}
	o.ro.Store(int32(ro))
	rw, err := dupOf(files, x.RW)
	if err != nil {
		return err
	}
	o.rw.Store(int32(rw))
	o.dirty.Store(x.Dirty)
	if x.Leases == 0 {
		return nil
	}
	if x.Write {
		ro = rw
	}
	if ro < 0 {
		return fmt.Errorf("%w: a lease of nothing", errHandover)
	}
	return f.restoreLease(o, ro, x)
}

// restoreLease makes the lease of an open file one of this process. openMu is held.
func (f *FS) restoreLease(o *object, fd int, x *handedObject) error {
	if err := watch.start(); err != nil {
		return err
	}
	if !f.objects.pin(o) {
		return nil // too many, or the file is gone: the lease ends with its description
	}
	late := new(lateBreak)
	o.lease = &lease{fs: f, o: o, fd: fd, write: x.Write, unclaimed: x.Leases, late: late, broken: late.occur}
	return o.lease.redirect()
}

// redirect makes the kernel signal a break of the lease to this process, with l.fd. Before, the
// signals went to the other process of the handover.
func (l *lease) redirect() error {
	if err := l.own(); err != nil {
		return err
	}
	if !l.isBroken() {
		// Setting the lease again changes the descriptor in the signal. It fails if a program is just
		// breaking the lease.
		_, _ = unix.FcntlInt(uintptr(l.fd), unix.F_SETLEASE, l.kind())
	}
	watch.check(l.fd)
	return nil
}

// lateBreak stores the break of a restored lease until a call of Lease claims the lease and brings
// the callback.
type lateBreak struct {
	mu       sync.Mutex
	occurred bool
	broken   func()
}

func (b *lateBreak) occur() {
	b.mu.Lock()
	b.occurred = true
	broken := b.broken
	b.mu.Unlock()
	if broken != nil {
		broken()
	}
}

// claim sets the callback if there is none yet. If the lease is already broken, claim then calls
// the callback.
func (b *lateBreak) claim(broken func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return
	}
	if b.broken = broken; b.occurred {
		go broken()
	}
}
