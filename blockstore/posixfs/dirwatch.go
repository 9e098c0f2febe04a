package posixfs

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.DirWatcher = (*FS)(nil)

// fanotify(7) reports changes of directories, with the process that made them. Changes by this
// process are changes by clients of the server, and are ignored. All stores share one fanotify
// group. An event names the directory by its filesystem and handle:
//
//	 0           4   5   6    8       16    20    24
//	+-----------+---+---+----+--------+-----+-----+
//	| event_len |ver| - |len | mask   | fd  | pid |   host byte order; len is 24
//	+-----------+---+---+----+--------+-----+-----+
//	 0      1   2     4      12     16     20
//	+------+---+-----+------+------+------+----------+------+
//	| type | - | len | fsid | size | kind | handle   | name |   one or more
//	+------+---+-----+------+------+------+----------+------+
const (
	dirEventHead = 24
	dirFIDHead   = 20
	// dirChanges are the changes that are reported: of the entries, of the directory's attributes, and
	// of its own name.
	dirChanges = unix.FAN_CREATE | unix.FAN_DELETE | unix.FAN_MOVED_FROM | unix.FAN_MOVED_TO | unix.FAN_ATTRIB |
		unix.FAN_DELETE_SELF | unix.FAN_MOVE_SELF | unix.FAN_ONDIR
)

// dirWatch is one call of WatchDir.
type dirWatch struct {
	once    sync.Once
	changed func()
}

func (w *dirWatch) tell() { w.once.Do(func() { go w.changed() }) }

// dirWatcher receives the events. A key of on is fsid, size, kind and handle, as an event has them.
type dirWatcher struct {
	once sync.Once
	err  error
	fd   int

	// marks is held over the system calls that set and end marks, which can wait for the disk. The
	// end of a watch does not take it. It comes before mu.
	marks sync.Mutex
	mu    sync.Mutex
	on    map[string][]*dirWatch
}

var dirs dirWatcher

func (d *dirWatcher) start() error {
	d.once.Do(func() {
		d.on = make(map[string][]*dirWatch)
		flags := uint(unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK)
		// First without the limits of the kernel, because package state bounds the delegations. This
		// needs CAP_SYS_ADMIN.
		d.fd, d.err = unix.FanotifyInit(flags|unix.FAN_UNLIMITED_QUEUE|unix.FAN_UNLIMITED_MARKS, unix.O_RDONLY)
		if d.err != nil {
			d.fd, d.err = unix.FanotifyInit(flags, unix.O_RDONLY)
		}
		if d.err == nil {
			go d.run(os.NewFile(uintptr(d.fd), "fanotify"))
		}
	})
	return d.err
}

// run receives events for as long as the process lives.
func (d *dirWatcher) run(f *os.File) {
	b := make([]byte, 64<<10)
	for {
		n, err := f.Read(b)
		if err != nil {
			d.tellAll() // does not occur; nobody may rely on further events
			return
		}
		d.events(b[:n], int32(os.Getpid()))
	}
}

// events handles the events that one read has returned.
func (d *dirWatcher) events(b []byte, self int32) {
	e := binary.NativeEndian
	for len(b) >= dirEventHead {
		n, head := int(e.Uint32(b)), int(e.Uint16(b[6:]))
		if n < head || n > len(b) || head < dirEventHead {
			d.tellAll()
			return
		}
		one := b[head:n]
		switch mask, pid := e.Uint64(b[8:]), int32(e.Uint32(b[20:])); {
		case mask&unix.FAN_Q_OVERFLOW != 0:
			d.tellAll()
		case pid != self:
			d.event(one)
		}
		b = b[n:]
	}
}

// event handles the records of one event.
func (d *dirWatcher) event(b []byte) {
	e := binary.NativeEndian
	for len(b) >= dirFIDHead {
		n, size := int(e.Uint16(b[2:])), int(e.Uint32(b[12:]))
		if n < dirFIDHead || n > len(b) || size > n-dirFIDHead {
			return
		}
		d.mu.Lock()
		for _, w := range d.on[string(b[4:dirFIDHead+size])] {
			w.tell()
		}
		d.mu.Unlock()
		b = b[n:]
	}
}

func (d *dirWatcher) tellAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, list := range d.on {
		for _, w := range list {
			w.tell()
		}
	}
}

// dirKey is the key of an open directory.
func dirKey(fd int) (string, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "", err
	}
	h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return "", err
	}
	e := binary.NativeEndian
	b := e.AppendUint32(nil, uint32(st.Fsid.Val[0]))
	b = e.AppendUint32(b, uint32(st.Fsid.Val[1]))
	b = e.AppendUint32(b, uint32(h.Size()))
	b = e.AppendUint32(b, uint32(h.Type()))
	return string(append(b, h.Bytes()...)), nil
}

// WatchDir implements blockstore.DirWatcher. It needs fanotify with FAN_REPORT_DFID_NAME (Linux
// 5.9; 5.13 without CAP_SYS_ADMIN), and a filesystem with handles. Only this host may change the
// filesystem: the kernel reports no change that another host makes. Changes by another store of
// this process are not reported.
func (f *FS) WatchDir(h blockstore.Handle, changed func()) (stop func(), err error) {
	if !f.near {
		return nil, fmt.Errorf("%w: others than this host may change the filesystem of %s", blockstore.ErrNotSupp, f.dir)
	}
	if err := dirs.start(); err != nil {
		return nil, fmt.Errorf("%w: %v", blockstore.ErrNotSupp, err)
	}
	o, err := f.acquire(h)
	if err != nil {
		return nil, err
	}
	defer f.release(o)
	if o.typ != blockstore.TypeDir {
		return nil, blockstore.ErrNotDir
	}
	key, err := dirKey(o.path)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", blockstore.ErrNotSupp, err)
	}
	w := &dirWatch{changed: changed}
	if err := dirs.add(key, w, func() error {
		return unix.FanotifyMark(dirs.fd, unix.FAN_MARK_ADD|unix.FAN_MARK_ONLYDIR, dirChanges, unix.AT_FDCWD,
			procPath(o.path))
	}); err != nil {
		return nil, fmt.Errorf("%w: %v", blockstore.ErrNotSupp, err)
	}
	return sync.OnceFunc(func() {
		if dirs.remove(key, w) {
			go f.unwatch(h, key)
		}
	}), nil
}

// unwatch ends the kernel's mark of a directory, unless it is watched again. If the directory
// cannot be opened any more, the mark ends with the directory, and its events are dropped until
// then.
func (f *FS) unwatch(h blockstore.Handle, key string) {
	o, err := f.acquire(h)
	if err != nil {
		return
	}
	defer f.release(o)
	dirs.marks.Lock()
	defer dirs.marks.Unlock()
	if !dirs.watched(key) {
		_ = unix.FanotifyMark(dirs.fd, unix.FAN_MARK_REMOVE, dirChanges, unix.AT_FDCWD, procPath(o.path))
	}
}

// add registers a watch. It calls mark for the first watch of a directory. If mark fails, add
// registers nothing.
func (d *dirWatcher) add(key string, w *dirWatch, mark func() error) error {
	d.marks.Lock()
	defer d.marks.Unlock()
	d.mu.Lock()
	first := len(d.on[key]) == 0
	d.on[key] = append(d.on[key], w)
	d.mu.Unlock()
	if !first {
		return nil
	}
	err := mark()
	if err != nil {
		d.remove(key, w)
	}
	return err
}

func (d *dirWatcher) watched(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.on[key]) > 0
}

// remove ends a watch, and reports whether it was the last one of its directory. It waits for no
// system call: package state calls it with locks held.
func (d *dirWatcher) remove(key string, w *dirWatch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.DeleteFunc(d.on[key], func(x *dirWatch) bool { return x == w })
	if d.on[key] = list; len(list) == 0 {
		delete(d.on, key)
	}
	return len(list) == 0
}
