package posixfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// lister lists the root of a store as a client does, some entries at a time.
type lister struct {
	t     *testing.T
	f     *FS
	dir   string
	notes int // entries that had a note
}

func (l *lister) list(page int) map[string]blockstore.Handle {
	l.t.Helper()
	r, err := l.f.Root()
	must(l.t, err)
	out := make(map[string]blockstore.Handle)
	l.notes = 0
	var cookie uint64
	for eof := false; !eof; {
		k := 0
		_, eof, err = l.f.ReadDir(nil, r, cookie, [8]byte{}, true, func(e *blockstore.DirEntry) bool {
			if k == page {
				return false
			}
			k++
			if e.Handle == nil || e.Attr == nil || e.Attr.FileID != e.FileID {
				l.t.Fatalf("%+v", e)
			}
			if _, twice := out[e.Name]; twice {
				l.t.Fatalf("%s comes twice", e.Name)
			}
			var st unix.Stat_t
			must(l.t, unix.Lstat(filepath.Join(l.dir, e.Name), &st))
			if st.Ino != e.FileID && e.Name != ".." || uint64(st.Size) != e.Attr.Size && e.Name != ".." {
				l.t.Fatalf("%s: inode %d of %d bytes, is %d of %d", e.Name, e.FileID, e.Attr.Size, st.Ino, st.Size)
			}
			if e.Note != nil {
				if e.Note.Made {
					if l.notes++; e.Note.For != 7 || e.Note.B[3] != e.Handle.B[e.Handle.Len-1] {
						l.t.Fatalf("%s has a note of another handle", e.Name)
					}
				} else {
					e.Note.Made, e.Note.For, e.Note.B[3] = true, 7, e.Handle.B[e.Handle.Len-1]
				}
			}
			out[e.Name], cookie = *e.Handle, e.Cookie
			return true
		})
		must(l.t, err)
	}
	return out
}

// remember has the store remember identities, as if the files had been there for long.
func (l *lister) remember(of map[string]blockstore.Handle) {
	l.t.Helper()
	for name, h := range of {
		var sx unix.Statx_t
		must(l.t, unix.Statx(unix.AT_FDCWD, filepath.Join(l.dir, name), 0, entryMask, &sx))
		id, err := l.f.tag.ident(&h)
		must(l.t, err)
		k, ok := keyOf(&sx)
		if !ok {
			l.t.Skip("the filesystem knows no births")
		}
		l.f.incarnations.set(k, &id)
	}
}

// TestListings has a large directory listed again and again, in pages of several sizes,
// while files in it change, go and come behind the server's back. What is remembered of
// one listing must show in nothing but the notes.
func TestListings(t *testing.T) {
	for name, opts := range map[string]Options{"handle": {}, "table": {Handles: Server}} {
		t.Run(name, func(t *testing.T) { testListings(t, opts) })
	}
}

func testListings(t *testing.T, opts Options) {
	const files = 1200
	f, s := openTemp(t, opts)
	l := &lister{t: t, f: f, dir: s.dir}
	path := func(i int) string { return filepath.Join(s.dir, fmt.Sprintf("file-%d", i)) }
	for i := range files {
		must(t, os.WriteFile(path(i), nil, 0o644))
	}
	first := l.list(files)
	l.remember(first)
	f.listings.init() // what was listed before had no identities to keep
	same := func(page, notes int) {
		t.Helper()
		got := l.list(page)
		if len(got) != len(first) || l.notes != notes {
			t.Fatalf("pages of %d: %d entries of %d, %d notes where %d were made", page, len(got), len(first), l.notes, notes)
		}
		for name, h := range got {
			if h != first[name] {
				t.Fatalf("%s has another handle", name)
			}
		}
	}
	same(files, 0)
	for _, page := range []int{2 * files, 1000, 333, 100} {
		same(page, files)
	}
	// Attributes are those of now, places those that the finder knows now.
	h := first["file-5"]
	id, err := f.tag.ident(&h)
	must(t, err)
	must(t, os.WriteFile(path(5), []byte("longer"), 0o644))
	f.find.gone(&id)
	same(500, files)
	if b, ok := f.find.(*byTable); ok {
		if p, ok := b.lookup(&id); !ok || p.name != "file-5" {
			t.Errorf("the place of a file that was listed is %+v, %v", p, ok)
		}
	}
	// Few that go or come are no reason to forget the others.
	for i := 100; i < 105; i++ {
		must(t, os.Remove(path(i)))
		delete(first, fmt.Sprintf("file-%d", i))
	}
	same(400, files-5)
	// Another file in the place of one has a handle of its own, though the name is the same.
	old := first["file-200"]
	must(t, os.WriteFile(path(files), nil, 0o644))
	must(t, os.Rename(path(files), path(200)))
	got := l.list(files)
	if got["file-200"] == old || l.notes != files-6 {
		t.Errorf("another file has the handle of the one before: %v; %d notes", got["file-200"] == old, l.notes)
	}
	// Many that go are.
	for i := 300; i < 900; i++ {
		must(t, os.Remove(path(i)))
	}
	first = l.list(files)
	l.remember(first)
	l.list(files)
	l.list(files)
	if n := len(first) - 2; l.notes != n {
		t.Errorf("%d notes of %d after it was listed anew", l.notes, n)
	}
}

// TestListingsBound: what is remembered has a bound, and the oldest goes first.
func TestListingsBound(t *testing.T) {
	var l listings
	l.init()
	id := func(n byte) *ident { return &ident{n: 1, b: [identMax]byte{n}} }
	l.put(id(1), &listing{list: make([]known, listingMin-1)})
	l.put(id(2), &listing{list: make([]known, listingsMax+1)})
	if l.n != 0 {
		t.Errorf("%d entries of too small and too large", l.n)
	}
	for i := range byte(4) {
		l.put(id(i), &listing{list: make([]known, listingsMax/4)})
	}
	l.put(id(0), &listing{list: make([]known, listingsMax/4)}) // again
	l.put(id(9), &listing{list: make([]known, listingsMax/2)})
	if l.n != listingsMax || len(l.of) != 3 || len(l.order) != 3 || l.get(id(1)) != nil || l.get(id(2)) != nil ||
		l.get(id(0)) == nil {
		t.Errorf("%d entries of %d directories, order %v", l.n, len(l.of), l.order)
	}
	l.drop(id(9), &listing{}) // another one
	l.drop(id(0), l.get(id(0)))
	if l.n != listingsMax*3/4 || l.get(id(9)) == nil {
		t.Errorf("%d entries", l.n)
	}
}
