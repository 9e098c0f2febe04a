package posixfs

import (
	"errors"
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// search walks the export for an object that is not at its last place. One walk runs at a time,
// and there are pauses between walks. Meanwhile calls get ErrJukebox, so that clients try again
// later. A walk also corrects the places of other objects that it passes, so that a moved tree
// costs one walk and not one for each file.
func (t *byTable) search(id *ident) (int, error) {
	if !t.searchMu.TryLock() {
		return -1, blockstore.ErrJukebox
	}
	defer t.searchMu.Unlock()
	now := time.Now()
	t.mu.Lock()
	at, miss := t.missed[*id]
	p, known := t.known(id)
	t.mu.Unlock()
	if (miss && now.Sub(at) < missFor) || (known && p.name == "") {
		return -1, blockstore.ErrStale
	}
	if now.Before(t.nextSearch) {
		return -1, blockstore.ErrJukebox
	}
	t.fs.count.searches.Add(1)
	w := walk{t: t, want: *id, left: t.fs.opts.SearchEntries, fd: -1}
	err := w.run()
	end := time.Now()
	t.nextSearch = end.Add(searchShare * end.Sub(now))
	if w.fd >= 0 {
		return w.fd, nil
	}
	if err != nil {
		return -1, err
	}
	t.fs.count.searchMisses.Add(1)
	if w.left <= 0 {
		t.fs.log.Warn("a moved file was not found within the bound of the search", "export", t.fs.dir, "entries",
			t.fs.opts.SearchEntries)
	}
	t.mu.Lock()
	if len(t.missed) >= missMax {
		clear(t.missed)
	}
	t.missed[*id] = end
	t.mu.Unlock()
	return -1, blockstore.ErrStale
}

// walk is one search, breadth first. Its queue has identities of directories, so that it needs few
// descriptors however deep the tree is.
type walk struct {
	t     *byTable
	want  ident
	left  int
	fd    int
	queue []ident
}

func (w *walk) run() error {
	w.queue = append(w.queue, w.t.root)
	buf := make([]byte, direntBuf)
	for len(w.queue) > 0 && w.fd < 0 && w.left > 0 {
		dir := w.queue[0]
		w.queue = w.queue[1:]
		if err := w.list(&dir, buf); err != nil && !errors.Is(err, blockstore.ErrStale) &&
			!errors.Is(err, blockstore.ErrAccess) {
			return err
		}
	}
	return nil
}

func (w *walk) list(dir *ident, buf []byte) error {
	f := w.t.fs
	path, err := w.t.openParent(dir, 0)
	if err != nil {
		return err
	}
	defer unix.Close(path)
	fd, err := again(func() (int, error) {
		return unix.Open(procPath(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return mapErr(err)
	}
	defer unix.Close(fd)
	for {
		n, err := again(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil || n == 0 {
			return mapErr(err)
		}
		for rest := buf[:n]; len(rest) > 0; {
			d, size, ok := parseDirent(rest)
			if !ok {
				return blockstore.ErrIO
			}
			rest = rest[size:]
			name := string(d.name)
			if name == "." || name == ".." {
				continue
			}
			if w.left--; w.left < 0 {
				return nil // Options.SearchEntries
			}
			id, err := identify(f.kind, path, name)
			if err != nil {
				continue
			}
			if id == w.want {
				if w.fd, err = w.t.openIf(path, name, &id); err == nil {
					w.t.seen(&id, dir, name)
					return nil
				}
				w.fd = -1 // renamed again between identify and openIf
			}
			isDir := d.typ == unix.DT_DIR
			if d.typ == unix.DT_UNKNOWN { // some filesystems do not store the type in the directory
				var st unix.Stat_t
				isDir = unix.Fstatat(path, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
			}
			// Correct the places of directories, because the walk follows them, and of files that have
			// moved.
			if p, ok := w.t.lookup(&id); isDir || (ok && (p.name != name || p.parent != *dir) && !w.still(&id, &p)) {
				w.t.seen(&id, dir, name)
			}
			if isDir {
				w.queue = append(w.queue, id)
			}
		}
	}
}

// still reports whether id is also at p. Then it has another hard link, and its place need not
// change.
func (w *walk) still(id *ident, p *place) bool {
	dir, err := w.t.openParent(&p.parent, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	got, err := identify(w.t.fs.kind, dir, p.name)
	return err == nil && got == *id
}
