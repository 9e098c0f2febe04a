package simtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

const (
	fileMax  = 1<<20 + 1<<19
	traceMax = 16
)

// names are few, so that operations meet.
var names = []string{"a", "b", "c", "d", "e", "f"}

// node is a file or directory of the model.
type node struct {
	h       client.Handle
	id      uint64
	data    []byte // of a file
	links   int
	entries map[string]*node // of a directory, nil for a file
	parent  *node
}

func (n *node) isDir() bool { return n.entries != nil }

// within reports whether n is d or lies below it.
func (n *node) within(d *node) bool {
	for ; n != nil; n = n.parent {
		if n == d {
			return true
		}
	}
	return false
}

// program does random things in a directory of its own and knows what must
// come of them.
type program struct {
	ctx   context.Context
	c     *client.Client
	rnd   *rand.Rand
	fill  *rand.ChaCha8
	name  string
	root  *node
	trace []string
}

func newProgram(ctx context.Context, c *client.Client, rnd *rand.Rand, name string) *program {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rnd.Uint32())
	}
	return &program{ctx: ctx, c: c, rnd: rnd, fill: rand.NewChaCha8(seed), name: name}
}

// run does n operations, telling of each, and compares the whole tree.
func (p *program) run(n int, done func()) error {
	err := p.begin()
	for i := 0; i < n && err == nil; i++ {
		err = p.step()
		done()
	}
	if err == nil {
		p.note("comparing the whole tree")
		err = p.compareTree(p.root)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; its last operations:\n\t%s", p.name, err, strings.Join(p.trace, "\n\t"))
	}
	return nil
}

func (p *program) note(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf(format, args...))
	if len(p.trace) > traceMax {
		p.trace = p.trace[1:]
	}
}

func (p *program) begin() error {
	p.note("mount")
	top, err := p.c.Mount(p.ctx, "/data")
	if err != nil {
		return err
	}
	p.note("mkdir %s", p.name)
	n, err := p.c.Mkdir(p.ctx, top, p.name, mode(0o755))
	if err != nil {
		return err
	}
	p.root = &node{h: n.Handle, id: n.Attr.FileID, links: 1, entries: map[string]*node{}}
	return nil
}

func mode(m uint32) *blockstore.SetAttr { return &blockstore.SetAttr{Mode: &m} }

func (p *program) step() error {
	steps := []struct {
		weight int
		do     func() error
	}{
		{5, p.create},
		{8, p.write},
		{5, p.read},
		{5, p.rename},
		{3, p.link},
		{4, p.remove},
		{3, p.mkdir},
		{2, p.rmdir},
		{2, p.readdir},
		{3, p.setattr},
		{2, p.lookup},
		{1, p.upload},
	}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	k := p.rnd.IntN(total)
	for _, s := range steps {
		if k -= s.weight; k < 0 {
			return s.do()
		}
	}
	return nil
}

// expect checks the outcome of a call. Statuses beyond the first are as good
// where the RFC leaves it open; OK is success.
func expect(err error, want ...nfs.Status) error {
	for _, s := range want {
		if s == nfs.OK && err == nil || s != nfs.OK && client.IsStatus(err, s) {
			return nil
		}
	}
	return fmt.Errorf("the outcome is %w, want %v", orOK(err), want)
}

var errNone = errors.New("success")

func orOK(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

// all lists the directories and files below d, in an order that the seed alone
// decides.
func all(d *node) (dirs, files []*node) {
	dirs = append(dirs, d)
	for _, name := range names {
		switch n := d.entries[name]; {
		case n == nil:
		case n.isDir():
			ds, fs := all(n)
			dirs, files = append(dirs, ds...), append(files, fs...)
		default:
			files = append(files, n)
		}
	}
	return dirs, files
}

func (p *program) dir() *node {
	dirs, _ := all(p.root)
	return dirs[p.rnd.IntN(len(dirs))]
}

// file picks a file; without one it is nil, and there is nothing to do.
func (p *program) file() *node {
	_, files := all(p.root)
	if len(files) == 0 {
		return nil
	}
	return files[p.rnd.IntN(len(files))]
}

func (p *program) anyName() string { return names[p.rnd.IntN(len(names))] }

// someName is mostly a name that is there.
func (p *program) someName(d *node) string {
	if p.rnd.IntN(4) > 0 {
		for range 8 {
			if name := p.anyName(); d.entries[name] != nil {
				return name
			}
		}
	}
	return p.anyName()
}

// path is for messages.
func (p *program) path(n *node) string {
	if n == p.root {
		return "/"
	}
	dirs, _ := all(p.root)
	for _, d := range dirs {
		for name, m := range d.entries {
			if m == n {
				return strings.TrimSuffix(p.path(d), "/") + "/" + name
			}
		}
	}
	return "?"
}

// length is from 1 byte to 1 MiB, short ones as often as long ones.
func (p *program) length() int {
	k := 1 << p.rnd.IntN(21)
	return min(k+p.rnd.IntN(k), client.TransferMax)
}

func (p *program) create() error {
	d, name := p.dir(), p.anyName()
	how := []blockstore.CreateMode{blockstore.Unchecked, blockstore.Guarded, blockstore.Exclusive}[p.rnd.IntN(3)]
	s := mode(0o644)
	if how == blockstore.Unchecked && p.rnd.IntN(2) == 0 {
		s.Size = new(uint64)
	}
	var verifier [8]byte
	_, _ = p.fill.Read(verifier[:])
	p.note("create %s in %s, mode %d, truncating %v", name, p.path(d), how, s.Size != nil)
	n, err := p.c.Create(p.ctx, d.h, name, how, s, verifier)
	old := d.entries[name]
	if old != nil && (old.isDir() || how != blockstore.Unchecked) {
		if err := expect(err, nfs.ErrExist); err != nil {
			return err
		}
		return p.compareDir(d)
	}
	if err != nil {
		return err
	}
	if old == nil {
		d.entries[name] = &node{h: n.Handle, id: n.Attr.FileID, links: 1}
		return p.compareDir(d)
	}
	if old.id != n.Attr.FileID {
		return fmt.Errorf("create made file %d where %d was", n.Attr.FileID, old.id)
	}
	if s.Size != nil {
		old.data = nil
	}
	return p.compareDir(d)
}

// place puts data into the model.
func (n *node) place(off int, b []byte) {
	n.resize(max(len(n.data), off+len(b)))
	copy(n.data[off:], b)
}

func (n *node) resize(size int) {
	if size <= len(n.data) {
		n.data = n.data[:size:size]
		return
	}
	n.data = append(n.data, make([]byte, size-len(n.data))...)
}

// chunk chooses what to write and where.
func (p *program) chunk(n *node) (off int, b []byte) {
	b = make([]byte, p.length())
	_, _ = p.fill.Read(b)
	most := min(len(n.data)+4096, fileMax-len(b))
	return p.rnd.IntN(most + 1), b
}

func (p *program) write() error {
	n := p.file()
	if n == nil {
		return p.create()
	}
	off, b := p.chunk(n)
	how := []blockstore.Stability{
		blockstore.Unstable, blockstore.Unstable, blockstore.DataSync,
		blockstore.FileSync,
	}[p.rnd.IntN(4)]
	p.note("write %d bytes at %d of %s, stable_how %d", len(b), off, p.path(n), how)
	for done := 0; done < len(b); {
		w, err := p.c.Write(p.ctx, n.h, b[done:], uint64(off+done), how)
		if err != nil {
			return err
		}
		done += w.N
		if w.Committed != blockstore.Unstable {
			continue
		}
		v, err := p.c.Commit(p.ctx, n.h, 0, 0)
		if err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		if v != w.Verifier {
			return fmt.Errorf("the write verifier changed from %x to %x without a restart", w.Verifier, v)
		}
	}
	n.place(off, b)
	return p.compareAround(n, off, len(b))
}

// upload is a write by several requests in flight at once.
func (p *program) upload() error {
	n := p.file()
	if n == nil {
		return p.create()
	}
	off, b := p.chunk(n)
	p.note("upload %d bytes to %d of %s", len(b), off, p.path(n))
	if err := p.c.Upload(p.ctx, n.h, shifted{bytes.NewReader(b), int64(off)}, uint64(off), uint64(len(b)),
		nil); err != nil {
		return err
	}
	n.place(off, b)
	return p.compareAround(n, off, len(b))
}
