package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// Compare does the same seeded random operations, as several users, to both
// stores and to a model of names and contents, and fails at the first
// difference of outcome, attributes or data. The users must be able to make
// objects in both. Both stores must be empty.
func Compare(t *testing.T, a, b blockstore.FS, users []*blockstore.Cred, seed uint64, steps int) {
	t.Logf("seed %d", seed)
	c := &comparison{T: t, r: rand.New(rand.NewPCG(seed, 0)), users: users, model: newModel()}
	for i, fs := range []blockstore.FS{a, b} {
		root, err := fs.Root()
		if err != nil {
			t.Fatal(err)
		}
		c.side[i] = side{i: i, fs: fs, h: map[*node]blockstore.Handle{c.model: root}}
	}
	c.nodes = append(c.nodes, c.model)
	for i := range steps {
		c.step = i
		c.one()
		if t.Failed() {
			return
		}
	}
	c.sweep()
}

// node is an object of the model; its names are kept by its parents.
type node struct {
	typ      blockstore.FileType
	data     []byte
	children map[string]*node
	parent   *node
	links    int
}

func newModel() *node {
	n := &node{typ: blockstore.TypeDir, children: map[string]*node{}, links: 1}
	n.parent = n
	return n
}

type side struct {
	i  int
	fs blockstore.FS
	h  map[*node]blockstore.Handle
}

type comparison struct {
	*testing.T
	r     *rand.Rand
	users []*blockstore.Cred
	side  [2]side
	model *node
	nodes []*node // all ever made, gone ones too
	step  int
	what  string
}

var classes = []error{
	blockstore.ErrPerm, blockstore.ErrNotExist, blockstore.ErrAccess, blockstore.ErrExist, blockstore.ErrNotDir,
	blockstore.ErrIsDir,
	blockstore.ErrInval, blockstore.ErrFBig, blockstore.ErrNotEmpty, blockstore.ErrStale, blockstore.ErrNotSync,
	blockstore.ErrNameTooLong,
}

func class(err error) error {
	for _, c := range classes {
		if errors.Is(err, c) {
			return c
		}
	}
	return err
}

// both runs op on each store, and fails if the outcomes differ.
func (c *comparison) both(op func(s *side) error) error {
	c.Helper()
	var e [2]error
	for i := range c.side {
		for range 500 {
			e[i] = class(op(&c.side[i]))
			if !errors.Is(e[i], blockstore.ErrJukebox) {
				break
			}
			time.Sleep(5 * time.Millisecond) // as a client does
		}
	}
	e0, e1 := e[0], e[1]
	if e0 != e1 {
		c.Fatalf("step %d, %s: %v and %v", c.step, c.what, e0, e1)
	}
	return e0
}

func (c *comparison) pick(dir bool) *node {
	for range 20 {
		n := c.nodes[c.r.IntN(len(c.nodes))]
		// Removed objects are chosen rarely, to use their stale handles.
		if (n.links > 0 || c.r.IntN(10) == 0) && (!dir || n.typ == blockstore.TypeDir || c.r.IntN(20) == 0) {
			return n
		}
	}
	return c.model
}

func (c *comparison) name() string { return fmt.Sprintf("n%d", c.r.IntN(8)) }

func (c *comparison) one() {
	u := c.users[c.r.IntN(len(c.users))]
	d, name := c.pick(true), c.name()
	mode := []uint32{0o777, 0o755, 0o700, 0o644, 0o666, 0o2775, 0o1777, 0o4755}[c.r.IntN(8)]
	who := "server"
	if u != nil {
		who = fmt.Sprint(u.UID)
	}
	say := func(format string, args ...any) { c.what = who + ": " + fmt.Sprintf(format, args...) }
	switch c.r.IntN(12) {
	case 0, 1:
		m := blockstore.CreateMode(c.r.IntN(2))
		s := blockstore.SetAttr{Mode: &mode}
		if c.r.IntN(2) == 0 {
			s.Size = new(uint64(c.r.IntN(3000)))
		}
		say("create %s mode %d %o size %v", name, m, mode, s.Size != nil)
		c.create(d, name, blockstore.TypeReg, s.Size, func(f *side) (blockstore.Handle, blockstore.Attr, error) {
			h, a, _, err := f.fs.Create(u, f.h[d], name, m, &s, [8]byte{})
			return h, a, err
		})
	case 2:
		say("mkdir %s %o", name, mode)
		c.create(d, name, blockstore.TypeDir, nil, func(f *side) (blockstore.Handle, blockstore.Attr, error) {
			h, a, _, err := f.fs.Mkdir(u, f.h[d], name, &blockstore.SetAttr{Mode: &mode})
			return h, a, err
		})
	case 3:
		say("symlink %s", name)
		c.create(d, name, blockstore.TypeLnk, nil, func(f *side) (blockstore.Handle, blockstore.Attr, error) {
			h, a, _, err := f.fs.Symlink(u, f.h[d], name, "target", nil)
			return h, a, err
		})
	case 4:
		say("remove %s", name)
		if c.both(func(f *side) error { _, err := f.fs.Remove(u, f.h[d], name); return err }) == nil {
			c.drop(d, name)
		}
	case 5:
		say("rmdir %s", name)
		if c.both(func(f *side) error { _, err := f.fs.Rmdir(u, f.h[d], name); return err }) == nil {
			c.drop(d, name)
		}
	case 6:
		to, toName := c.pick(true), c.name()
		say("rename %s to %s, same directory %v", name, toName, to == d)
		if c.both(func(f *side) error { _, _, err := f.fs.Rename(u, f.h[d], name, f.h[to], toName); return err }) == nil {
			if n := d.children[name]; n != nil && n != to.children[toName] {
				if to.children[toName] != nil {
					c.drop(to, toName)
				}
				delete(d.children, name)
				to.children[toName] = n
				n.parent = to
			}
		}
	case 7:
		n := c.pick(false)
		if n.typ == blockstore.TypeDir && u == nil {
			break
		}
		if slices.Contains(c.users, nil) {
			u = nil // the host may restrict links of other users (protected_hardlinks)
		}
		say("link type %d as %s", n.typ, name)
		if c.both(func(f *side) error { _, _, err := f.fs.Link(u, f.h[n], f.h[d], name); return err }) == nil {
			d.children[name] = n
			n.links++
		}
	case 8:
		n := c.pick(false)
		off, p := c.r.IntN(100000), make([]byte, 1+c.r.IntN(5000))
		for i := range p {
			p[i] = byte(c.r.Uint32())
		}
		say("write %d at %d", len(p), off)
		if c.both(func(f *side) error {
			k, _, _, err := f.fs.WriteAt(u, f.h[n], p, uint64(off), blockstore.Stability(c.r.IntN(3)))
			if err == nil && k != len(p) {
				return fmt.Errorf("wrote %d of %d", k, len(p))
			}
			return err
		}) == nil {
			if len(n.data) < off+len(p) {
				n.data = append(n.data, make([]byte, off+len(p)-len(n.data))...)
			}
			copy(n.data[off:], p)
		}
	case 9:
		c.setattr(u, c.pick(false), mode, say)
	case 10:
		n := c.pick(false)
		say("access")
		var got [2]uint32
		_ = c.both(func(f *side) (err error) { got[f.i], _, err = f.fs.Access(u, f.h[n], 0x3f); return err })
		if got[0] != got[1] {
			c.Fatalf("step %d, %s: %#x and %#x", c.step, c.what, got[0], got[1])
		}
	case 11:
		c.check(u, c.pick(false))
	}
}

func (c *comparison) setattr(u *blockstore.Cred, n *node, mode uint32, say func(string, ...any)) {
	s := blockstore.SetAttr{}
	if c.r.IntN(3) == 0 {
		s.Mode = &mode
	}
	if c.r.IntN(3) == 0 && n.typ == blockstore.TypeReg {
		s.Size = new(uint64(c.r.IntN(100000)))
	}
	if c.r.IntN(4) == 0 {
		if v := c.users[c.r.IntN(len(c.users))]; v != nil {
			s.UID, s.GID = new(v.UID), new(v.GID)
		}
	}
	if c.r.IntN(3) == 0 {
		s.MtimeHow, s.Mtime = blockstore.TimeClient, unix(int64(c.r.IntN(1e9)), int64(c.r.IntN(1e9)))
	}
	say("setattr mode %v size %v owner %v mtime %v", s.Mode != nil, s.Size != nil, s.UID != nil, s.MtimeHow)
	if c.both(func(f *side) error { _, err := f.fs.SetAttr(u, f.h[n], &s, nil); return err }) != nil {
		return
	}
	if s.Size != nil {
		n.resize(int(*s.Size))
	}
	if s.MtimeHow == blockstore.TimeClient {
		for i := range c.side {
			if a, _ := c.side[i].fs.GetAttr(nil, c.side[i].h[n]); !a.Mtime.Equal(s.Mtime) {
				c.Fatalf("step %d, %s: mtime %v, want %v", c.step, c.what, a.Mtime, s.Mtime)
			}
		}
	}
	c.check(u, n)
}

func (n *node) resize(size int) {
	if size <= len(n.data) {
		n.data = slices.Clone(n.data[:size])
		return
	}
	n.data = append(n.data, make([]byte, size-len(n.data))...)
}

// create runs a create on both stores and updates the model.
func (c *comparison) create(d *node, name string, typ blockstore.FileType, size *uint64,
	op func(*side) (blockstore.Handle, blockstore.Attr, error),
) {
	var h [2]blockstore.Handle
	if c.both(func(f *side) (err error) { h[f.i], _, err = op(f); return err }) != nil {
		return
	}
	n := d.children[name]
	if n == nil {
		n = &node{typ: typ, parent: d, links: 1}
		if typ == blockstore.TypeDir {
			n.children = map[string]*node{}
		}
		d.children[name] = n
		c.nodes = append(c.nodes, n)
		c.side[0].h[n], c.side[1].h[n] = h[0], h[1]
	}
	for i := range h {
		if h[i] != c.side[i].h[n] {
			c.Fatalf("step %d, %s: store %d returned the handle of another object", c.step, c.what, i)
		}
	}
	if size != nil && typ == blockstore.TypeReg {
		n.resize(int(*size))
	}
	c.check(nil, n)
}

func (c *comparison) drop(d *node, name string) {
	n := d.children[name]
	delete(d.children, name)
	n.links--
}

// check compares attributes and contents of an object as u.
func (c *comparison) check(u *blockstore.Cred, n *node) {
	c.Helper()
	var a [2]blockstore.Attr
	if c.both(func(f *side) (err error) { a[f.i], err = f.fs.GetAttr(u, f.h[n]); return err }) != nil {
		if n.links > 0 {
			c.Fatalf("step %d, after %s: an object with %d names is gone", c.step, c.what, n.links)
		}
		return
	}
	if n.links == 0 {
		c.Fatalf("step %d, after %s: an object without names is there", c.step, c.what)
	}
	if a[0].Type != a[1].Type || a[0].Mode != a[1].Mode || a[0].UID != a[1].UID || a[0].GID != a[1].GID ||
		a[0].NLink != a[1].NLink ||
		(n.typ != blockstore.TypeDir && a[0].Size != a[1].Size) {
		c.Fatalf("step %d, after %s:\n%+v\n%+v", c.step, c.what, a[0], a[1])
	}
	switch n.typ {
	case blockstore.TypeReg:
		if a[0].Size != uint64(len(n.data)) {
			c.Fatalf("step %d, after %s: size %d, want %d", c.step, c.what, a[0].Size, len(n.data))
		}
		_ = c.both(func(f *side) error {
			buf := make([]byte, len(n.data)+10)
			k, eof, err := f.fs.ReadAt(u, f.h[n], buf, 0, false)
			if err == nil && (!eof || !bytes.Equal(buf[:k], n.data)) {
				return errors.New("other data than was written")
			}
			return err
		})
	case blockstore.TypeDir:
		want := slices.Sorted(maps.Keys(n.children))
		_ = c.both(func(f *side) error {
			var got []string
			_, _, err := f.fs.ReadDir(u, f.h[n], 0, [8]byte{}, false, func(d *blockstore.DirEntry) bool {
				if d.Name != "." && d.Name != ".." {
					got = append(got, d.Name)
				}
				return true
			})
			sort.Strings(got)
			if err == nil && !slices.Equal(got, want) {
				return fmt.Errorf("listing %q, want %q", got, want)
			}
			return err
		})
	}
}

// sweep compares everything at the end.
func (c *comparison) sweep() {
	c.what = "everything"
	for _, n := range c.nodes {
		c.check(nil, n)
	}
}
