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

// A store can be handed over to another process, with what belongs to open file descriptions
// and would end with this one: locks and leases of the host, and the objects that have
// unstable writes, so that an error of writing them back is seen by somebody. Both
// processes have the descriptions then, and until one of them ends nothing is given up. The one
// that is left must not Close its store: it would give up what is the other's.

// handedOver is a gob value, to which fields may be added. Places of files count from 1.
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
	Leases       int // users of its lease
	Write        bool
}

type handedLocks struct {
	Handle []byte
	File   int
}

// Settle ends a handover in the process that goes on: leases tell that one, and those that
// nobody has asked for end.
func (f *FS) Settle() error {
	var err error
	for _, o := range f.objects.leased() {
		o.openMu.Lock()
		switch l := o.lease; {
		case l == nil:
		case l.users == 0:
			o.unlease(l)
		default:
			l.unclaimed = 0
			err = errors.Join(err, l.retake())
		}
		o.openMu.Unlock()
	}
	return err
}

// Handover describes a store that nobody calls. The files are the caller's.
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

// list is all objects of the cache.
func (c *cache) list() (list []*object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.byH {
		list = append(list, o)
	}
	return list
}

var errHandover = errors.New("what was handed over of the open files is damaged")

// Takeover has a store that was just opened go on where another process was. Each lease is to
// be asked for again, by Lease, before Settle; who does so is told at once if somebody waits for
// it. The files stay the caller's. After an error the store is of no use, but to be closed by the
// end of the process.
func (f *FS) Takeover(data []byte, files []*os.File) error {
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
	f.changes.sealNow() // what the other process has counted is not handed over
	f.verfMu.Lock()
	copy(f.verf[:], in.Verifier)
	f.verfMu.Unlock()
	for i := range in.Pins {
		if err := f.takePin(&in.Pins[i], files); err != nil {
			return err
		}
	}
	for i := range in.Objects {
		if err := f.takeObject(&in.Objects[i], files); err != nil {
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
		f.hostLocks.files.takeLock()
		f.hostLocks.mu.Lock()
		f.hostLocks.fds[h] = fd
		f.hostLocks.mu.Unlock()
	}
	return nil
}

// dupOf is another descriptor of a file, -1 for none.
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

// takeObject makes an object of open files.
func (f *FS) takeObject(x *handedObject, files []*os.File) error {
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
		return nil // it has no name any more
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
	return f.takeLease(o, ro, x)
}

// takeLease makes the lease of an open file one of this process. Call with openMu held.
func (f *FS) takeLease(o *object, fd int, x *handedObject) error {
	if err := watch.start(); err != nil {
		return err
	}
	if !f.objects.pin(o) {
		return nil // there are too many, or the file is gone: it is given up with its description
	}
	late := new(lateBreak)
	o.lease = &lease{fs: f, o: o, fd: fd, write: x.Write, unclaimed: x.Leases, late: late, broken: late.happen}
	return o.lease.retake()
}

// retake has the kernel tell this process, by this descriptor, of a lease that was set by
// another one, or was told to another one.
func (l *lease) retake() error {
	if err := l.own(); err != nil {
		return err
	}
	if !l.isBroken() {
		// Setting it again changes the descriptor that the signal names, and fails if somebody is
		// about to break it.
		_, _ = unix.FcntlInt(uintptr(l.fd), unix.F_SETLEASE, l.kind())
	}
	watch.tell(l.fd)
	return nil
}

// lateBreak is the break of a lease of which it is not known yet who is to be told.
type lateBreak struct {
	mu     sync.Mutex
	happed bool
	tell   func()
}

func (b *lateBreak) happen() {
	b.mu.Lock()
	b.happed = true
	tell := b.tell
	b.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// then says who is told: once.
func (b *lateBreak) then(tell func()) {
	b.mu.Lock()
	first := b.tell == nil
	if first {
		b.tell = tell
	}
	happed := b.happed
	b.mu.Unlock()
	if first && happed {
		go tell()
	}
}
