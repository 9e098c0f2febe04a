package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/rstored/rstored/blockstore"
)

// Options say what the store under test can do.
type Options struct {
	// User is an identity without privileges that can make objects in the root
	// directory of a fresh store; nil skips the tests of permissions.
	User *blockstore.Cred
	// AnyUser says that other identities can make objects too.
	AnyUser bool
	// Root says that the nil identity may give objects away and make devices.
	Root bool
	// Dense says that Attr.Used counts holes.
	Dense bool
	// BigDir is the number of entries of the large directory; 0 means 10,000.
	BigDir int
	// Reopen closes a store and opens it again, or is nil where the contents
	// do not outlive it.
	Reopen func(t *testing.T, fs blockstore.FS) blockstore.FS
}

// Other is an identity that shares nothing with Options.User.
var Other = &blockstore.Cred{UID: 4242, GID: 4243, Groups: []uint32{4244}}

// Run tests the stores that open returns; each is empty and used for one test.
func Run(t *testing.T, open func(t *testing.T) blockstore.FS, opts Options) {
	if opts.BigDir == 0 {
		opts.BigDir = 10000
	}
	for _, test := range []struct {
		name string
		run  func(*env)
	}{
		{"Root", testRoot},
		{"Lookup", testLookup},
		{"CreateModes", testCreateModes},
		{"Exclusive", testExclusive},
		{"ReadWrite", testReadWrite},
		{"Sparse", testSparse},
		{"Extents", testExtents},
		{"Xattrs", testXattrs},
		{"ACLs", testACLs},
		{"Births", testBirths},
		{"Labels", testLabels},
		{"Stability", testStability},
		{"WriteNowait", testWriteNowait},
		{"GetAttrNowait", testGetAttrNowait},
		{"LookupNowait", testLookupNowait},
		{"SetAttr", testSetAttr},
		{"Guard", testGuard},
		{"Wcc", testWcc},
		{"Dirs", testDirs},
		{"Symlinks", testSymlinks},
		{"Special", testSpecial},
		{"Links", testLinks},
		{"Rename", testRename},
		{"HandlesOverRename", testHandlesOverRename},
		{"HandlesOverReopen", testHandlesOverReopen},
		{"Stale", testStale},
		{"Pinned", testPinned},
		{"BadHandles", testBadHandles},
		{"BadNames", testBadNames},
		{"Names", testNames},
		{"WrongTypes", testWrongTypes},
		{"ReadDir", testReadDir},
		{"ReadDirModify", testReadDirModify},
		{"ReadDirBig", testReadDirBig},
		{"Permissions", testPermissions},
		{"OwnerOverride", testOwnerOverride},
		{"SetAttrPermissions", testSetAttrPermissions},
		{"Sticky", testSticky},
		{"SetGIDDirectory", testSetGIDDirectory},
		{"SetIDBits", testSetIDBits},
		{"Access", testAccess},
		{"Stat", testStat},
		{"Stress", testStress},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := &env{T: t, opts: opts, FS: open(t)}
			r, err := e.Root()
			if err != nil {
				t.Fatal(err)
			}
			e.root = r
			test.run(e)
			if err := e.FS.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// env is one test on one store, with helpers that fail it.
type env struct {
	*testing.T
	blockstore.FS
	opts Options
	root blockstore.Handle
}

func (e *env) ok(err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("unexpected error: %v", err)
	}
}

func (e *env) want(err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Fatalf("error %v, want %v", err, want)
	}
}

func (e *env) wantNot(ok bool, format string, args ...any) {
	e.Helper()
	if ok {
		e.Fatalf(format, args...)
	}
}

// second, third and fourth return the last result of a call, its error. Their names say which it
// is.
func second[A any](_ A, err error) error                 { return err }
func third[A, B any](_ A, _ B, err error) error          { return err }
func fourth[A, B, C any](_ A, _ B, _ C, err error) error { return err }

func (e *env) chmod(c *blockstore.Cred, h blockstore.Handle, mode uint32) {
	e.Helper()
	e.ok(second(e.SetAttr(c, h, &blockstore.SetAttr{Mode: &mode}, nil)))
}

func (e *env) mkfile(c *blockstore.Cred, dir blockstore.Handle, name string, mode uint32,
	data string,
) blockstore.Handle {
	e.Helper()
	h, _, _, err := e.Create(c, dir, name, blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		e.Fatalf("create %q: %v", name, err)
	}
	if data != "" {
		e.put(c, h, data, 0)
	}
	return h
}

func (e *env) mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, mode uint32) blockstore.Handle {
	e.Helper()
	h, _, _, err := e.Mkdir(c, dir, name, &blockstore.SetAttr{Mode: &mode})
	if err != nil {
		e.Fatalf("mkdir %q: %v", name, err)
	}
	return h
}

func (e *env) put(c *blockstore.Cred, h blockstore.Handle, data string, off uint64) {
	e.Helper()
	for p := []byte(data); len(p) > 0; {
		n, _, _, err := e.WriteAt(c, h, p, off, blockstore.Unstable)
		if err != nil || n <= 0 {
			e.Fatalf("write at %d: %d, %v", off, n, err)
		}
		p, off = p[n:], off+uint64(n)
	}
}

func (e *env) get(c *blockstore.Cred, h blockstore.Handle) string {
	e.Helper()
	var out bytes.Buffer
	buf := make([]byte, 70000)
	for {
		n, eof, err := e.ReadAt(c, h, buf, uint64(out.Len()), false)
		if err != nil {
			e.Fatalf("read at %d: %v", out.Len(), err)
		}
		out.Write(buf[:n])
		if eof {
			return out.String()
		}
		if n == 0 {
			e.Fatalf("read at %d: neither data nor end", out.Len())
		}
	}
}

func (e *env) attr(h blockstore.Handle) blockstore.Attr {
	e.Helper()
	a, err := e.GetAttr(nil, h)
	e.ok(err)
	return a
}

func (e *env) lookup(dir blockstore.Handle, name string) (blockstore.Handle, error) {
	h, _, err := e.Lookup(nil, dir, name)
	return h, err
}

// find is lookup of a name that is there.
func (e *env) find(dir blockstore.Handle, name string) blockstore.Handle {
	e.Helper()
	h, err := e.lookup(dir, name)
	e.ok(err)
	return h
}

// list reads a directory, per entries a call (0: all in one).
func (e *env) list(dir blockstore.Handle, per int, plus bool) []blockstore.DirEntry {
	e.Helper()
	var out []blockstore.DirEntry
	var cookie uint64
	var verf [8]byte
	for {
		n := 0
		v, eof, err := e.ReadDir(nil, dir, cookie, verf, plus, func(d *blockstore.DirEntry) bool {
			if per > 0 && n == per {
				return false
			}
			n++
			if d.Cookie == 0 {
				e.Fatalf("entry %q has cookie 0", d.Name)
			}
			kept := *d
			if d.Attr != nil {
				a := *d.Attr
				kept.Attr = &a
			}
			if d.Handle != nil {
				h := *d.Handle
				kept.Handle = &h
			}
			out = append(out, kept)
			cookie = d.Cookie
			return true
		})
		e.ok(err)
		verf = v
		if eof {
			return out
		}
		if n == 0 {
			e.Fatal("a listing that makes no progress")
		}
	}
}

// names returns the listed names without the dots, each once or the test fails.
func (e *env) names(dir blockstore.Handle, per int) map[string]bool {
	e.Helper()
	set := make(map[string]bool)
	dots := 0
	for _, d := range e.list(dir, per, false) {
		if d.Name == "." || d.Name == ".." {
			dots++
			continue
		}
		if set[d.Name] {
			e.Fatalf("%q is listed twice", d.Name)
		}
		set[d.Name] = true
	}
	if dots != 2 {
		e.Fatalf("%d entries for . and ..", dots)
	}
	return set
}

func numbered(i int) string { return fmt.Sprintf("entry-%06d", i) }
