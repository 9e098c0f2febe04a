package posixfs

import (
	"bytes"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
)

// pins are the files that stay when their last name is removed. Each has a descriptor of its own
// (O_PATH), because the cache may evict the object.
type pins struct {
	files *Files

	mu sync.Mutex
	m  map[blockstore.Handle]*pin
	wg sync.WaitGroup // goroutines that close files without a name
}

type pin struct {
	fd int
	n  int // users
}

func (p *pins) init(files *Files) {
	p.files, p.m = files, make(map[blockstore.Handle]*pin)
}

// has reports whether a file is pinned.
func (p *pins) has(h *blockstore.Handle) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m[*h] != nil
}

// share adds a user to a file that is pinned.
func (p *pins) share(h *blockstore.Handle) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.m[*h]
	if x != nil {
		x.n++
	}
	return x != nil
}

// dup returns another descriptor of a file, if it is pinned.
func (p *pins) dup(h *blockstore.Handle) (fd int, pinned bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.m[*h]
	if x == nil {
		return -1, false, nil
	}
	fd, err = unix.FcntlInt(uintptr(x.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, true, err
}

// add pins a file for n more users. It owns the descriptor, also if it fails.
func (p *pins) add(h *blockstore.Handle, fd, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.m[*h]; x != nil {
		x.n += n
		unix.Close(fd)
		return nil
	}
	if !p.files.pin(1) {
		unix.Close(fd)
		return blockstore.ErrJukebox
	}
	p.m[*h] = &pin{fd, n}
	return nil
}

// Pin implements blockstore.Pinner.
func (f *FS) Pin(h blockstore.Handle) error {
	if f.pins.share(&h) {
		return nil
	}
	o, err := f.acquire(h)
	if err != nil {
		return err
	}
	defer f.release(o)
	var st unix.Stat_t
	if err := o.statFile(&st); err != nil {
		return err
	}
	// From here on the descriptor retains the inode if the last name is removed, and add makes the
	// handle valid again.
	//
	// The descriptor is not a duplicate of o.path: o.path may be open for writing, and its
	// duplicate would conflict with leases.
	fd, err := again(func() (int, error) { return unix.Open(procPath(o.path), unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return mapErr(err)
	}
	return f.pins.add(&h, fd, 1)
}

// Unpin implements blockstore.Pinner.
func (f *FS) Unpin(h blockstore.Handle) {
	p := &f.pins
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.m[h]
	if x == nil {
		return
	}
	if x.n--; x.n > 0 {
		return
	}
	delete(p.m, h)
	p.files.pin(-1)
	// A file that still has a name is closed here, which is quick: this close does not free the
	// inode. Without a name, or on a filesystem where fstat may wait (f.near is false), a goroutine
	// closes it.
	var st unix.Stat_t
	if f.near && unix.Fstat(x.fd, &st) == nil && st.Nlink > 0 {
		unix.Close(x.fd)
		return
	}
	p.wg.Go(func() { f.unpinned(h, x.fd) })
}

// unpinned closes a file that may have no name any more. That takes a while if the file is large.
func (f *FS) unpinned(h blockstore.Handle, fd int) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Nlink > 0 {
		return
	}
	if o := f.objects.get(&h); o != nil {
		f.forget(o)
		f.release(o)
	} else if id, err := f.tag.ident(&h); err == nil {
		f.find.gone(&id)
	}
}

// close ends all pins.
func (p *pins) close() {
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for h, x := range p.m {
		unix.Close(x.fd)
		delete(p.m, h)
		p.files.pin(-1)
	}
}

// handedPin is a pinned file that is handed over. A file with a name is opened again by its handle.
type handedPin struct {
	Handle []byte
	File   int // 0: it has a name
	Users  int
}

// handover describes the pins. add adds a file and returns its number.
func (p *pins) handover(add func(fd int) int) (list []handedPin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for h, x := range p.m {
		y := handedPin{Handle: bytes.Clone(h.Bytes()), Users: x.n}
		var st unix.Stat_t
		if unix.Fstat(x.fd, &st) == nil && st.Nlink == 0 {
			y.File = add(x.fd)
		}
		list = append(list, y)
	}
	return list
}

// restorePin pins a file that another process had pinned.
func (f *FS) restorePin(x *handedPin, files []*os.File) error {
	h, ok := blockstore.MakeHandle(x.Handle)
	if !ok || x.Users <= 0 || f.pins.has(&h) {
		return errHandover
	}
	if x.File == 0 {
		if err := f.Pin(h); err != nil {
			return nil //nolint:nilerr // its name was removed, or too many are pinned: the pin ends
		}
		f.pins.mu.Lock()
		f.pins.m[h].n = x.Users
		f.pins.mu.Unlock()
		return nil
	}
	id, err := f.tag.ident(&h)
	if err != nil {
		return fmt.Errorf("%w: a handle of another export", errHandover)
	}
	fd, err := dupOf(files, x.File)
	if err != nil {
		return err
	}
	if is, err := identify(f.kind, fd, ""); err != nil || is != id {
		unix.Close(fd)
		return fmt.Errorf("%w: a file of another handle", errHandover)
	}
	return f.pins.add(&h, fd, x.Users)
}
