package simtest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// shifted reads as if its bytes began at off.
type shifted struct {
	r   *bytes.Reader
	off int64
}

func (s shifted) ReadAt(p []byte, off int64) (int, error) { return s.r.ReadAt(p, off-s.off) }

// compareAround reads back what was written and a little on both sides of it.
func (p *program) compareAround(n *node, off, size int) error {
	if err := p.compareAttr(n); err != nil {
		return err
	}
	from := max(off-100, 0)
	return p.compareRange(n, from, off+size+100-from)
}

func (p *program) compareAttr(n *node) error {
	a, err := p.c.GetAttr(p.ctx, n.h)
	switch {
	case n.links == 0:
		return expect(err, nfs.ErrStale)
	case err != nil:
		return fmt.Errorf("getattr: %w", err)
	case a.FileID != n.id:
		return fmt.Errorf("the file ID is %d, want %d", a.FileID, n.id)
	case n.isDir():
		return nil
	case a.Size != uint64(len(n.data)) || int(a.NLink) != n.links:
		return fmt.Errorf("size %d and %d links, want %d and %d", a.Size, a.NLink, len(n.data), n.links)
	}
	return nil
}

func (p *program) compareRange(n *node, off, size int) error {
	want := n.data[min(off, len(n.data)):min(off+size, len(n.data))]
	got := make([]byte, size)
	// What the server does not place must stay as it is.
	const canary = 0xa5
	for i := range got {
		got[i] = canary
	}
	k := 0
	for k < size {
		r, eof, err := p.c.Read(p.ctx, n.h, got[k:min(size, k+client.TransferMax)], uint64(off+k))
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		k += r
		if eof != (off+k >= len(n.data)) {
			return fmt.Errorf("a read of %d bytes at %d of %d says end of file %v", r, off+k-r, len(n.data), eof)
		}
		if eof {
			break
		}
		if r == 0 {
			return fmt.Errorf("a read at %d of %d returned nothing", off+k, len(n.data))
		}
	}
	if k != len(want) {
		return fmt.Errorf("%d bytes read at %d, want %d", k, off, len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d is %#x, want %#x", off+i, got[i], want[i])
		}
	}
	for i := k; i < size; i++ {
		if got[i] != canary {
			return fmt.Errorf("a read of %d bytes touched byte %d behind them", k, i-k)
		}
	}
	return nil
}

func (p *program) read() error {
	n := p.file()
	if n == nil {
		return p.create()
	}
	off, size := p.rnd.IntN(len(n.data)+100), p.length()
	p.note("read %d bytes at %d of %s", size, off, p.path(n))
	return p.compareRange(n, off, size)
}

func (p *program) rename() error {
	from, to := p.dir(), p.dir()
	fromName, toName := p.someName(from), p.anyName()
	p.note("rename %s in %s to %s in %s", fromName, p.path(from), toName, p.path(to))
	err := p.c.Rename(p.ctx, from.h, fromName, to.h, toName)
	moved, victim := from.entries[fromName], to.entries[toName]
	want := []nfs.Status{nfs.OK}
	switch {
	case moved == nil:
		want[0] = nfs.ErrNoEnt
	case moved.isDir() && to.within(moved):
		want[0] = nfs.ErrInval
	case victim != nil && victim.isDir() && from.within(victim):
		want[0] = nfs.ErrNotEmpty
	case victim == nil || victim == moved:
	case moved.isDir() && !victim.isDir():
		want = []nfs.Status{nfs.ErrNotDir, nfs.ErrExist}
	case !moved.isDir() && victim.isDir():
		want = []nfs.Status{nfs.ErrIsDir, nfs.ErrExist}
	case len(victim.entries) > 0:
		want[0] = nfs.ErrNotEmpty
	}
	if err := expect(err, want...); err != nil {
		return err
	}
	if want[0] == nfs.OK && victim != moved {
		if victim != nil {
			victim.links--
		}
		delete(from.entries, fromName)
		to.entries[toName] = moved
		if moved.isDir() {
			moved.parent = to
		}
		if victim != nil {
			if err := p.compareAttr(victim); err != nil {
				return fmt.Errorf("what was renamed over: %w", err)
			}
		}
	}
	if err := p.compareDir(from); err != nil {
		return err
	}
	return p.compareDir(to)
}

func (p *program) link() error {
	n, d, name := p.file(), p.dir(), p.anyName()
	if n == nil {
		return p.create()
	}
	p.note("link %s to %s in %s", p.path(n), name, p.path(d))
	err := p.c.Link(p.ctx, n.h, d.h, name)
	if d.entries[name] != nil {
		if err := expect(err, nfs.ErrExist); err != nil {
			return err
		}
	} else {
		if err != nil {
			return err
		}
		d.entries[name] = n
		n.links++
	}
	if err := p.compareAttr(n); err != nil {
		return err
	}
	return p.compareDir(d)
}

func (p *program) remove() error {
	d := p.dir()
	name := p.someName(d)
	n := d.entries[name]
	p.note("remove %s in %s", name, p.path(d))
	err := p.c.Remove(p.ctx, d.h, name)
	want := nfs.OK
	switch {
	case n == nil:
		want = nfs.ErrNoEnt
	case n.isDir():
		want = nfs.ErrIsDir
	}
	return p.unlinked(d, name, expect(err, want), want)
}

func (p *program) rmdir() error {
	d := p.dir()
	name := p.someName(d)
	n := d.entries[name]
	p.note("rmdir %s in %s", name, p.path(d))
	err := p.c.Rmdir(p.ctx, d.h, name)
	want := nfs.OK
	switch {
	case n == nil:
		want = nfs.ErrNoEnt
	case !n.isDir():
		want = nfs.ErrNotDir
	case len(n.entries) > 0:
		want = nfs.ErrNotEmpty
	}
	return p.unlinked(d, name, expect(err, want), want)
}

// unlinked takes the name from the model if the call was to take it.
func (p *program) unlinked(d *node, name string, err error, st nfs.Status) error {
	if err != nil {
		return err
	}
	if st == nfs.OK {
		n := d.entries[name]
		delete(d.entries, name)
		n.links--
		if err := p.compareAttr(n); err != nil {
			return err
		}
	}
	return p.compareDir(d)
}

func (p *program) mkdir() error {
	d, name := p.dir(), p.anyName()
	p.note("mkdir %s in %s", name, p.path(d))
	n, err := p.c.Mkdir(p.ctx, d.h, name, mode(0o755))
	if d.entries[name] != nil {
		if err := expect(err, nfs.ErrExist); err != nil {
			return err
		}
		return p.compareDir(d)
	}
	if err != nil {
		return err
	}
	d.entries[name] = &node{h: n.Handle, id: n.Attr.FileID, links: 1, entries: map[string]*node{}, parent: d}
	return p.compareDir(d)
}

func (p *program) setattr() error {
	n := p.file()
	if n == nil {
		return p.create()
	}
	size := p.rnd.IntN(fileMax)
	if p.rnd.IntN(2) == 0 {
		size = p.rnd.IntN(len(n.data) + 1)
	}
	size64 := uint64(size)
	p.note("setattr %s, size %d", p.path(n), size)
	if err := p.c.SetAttr(p.ctx, n.h, &blockstore.SetAttr{Size: &size64}, nil); err != nil {
		return err
	}
	old := len(n.data)
	n.resize(size)
	return p.compareAround(n, min(old, size), 100)
}

func (p *program) lookup() error {
	d := p.dir()
	name := p.someName(d)
	p.note("lookup %s in %s", name, p.path(d))
	n, err := p.c.Lookup(p.ctx, d.h, name)
	want := d.entries[name]
	if want == nil {
		return expect(err, nfs.ErrNoEnt)
	}
	if err == nil && n.Attr.FileID != want.id {
		err = fmt.Errorf("lookup found %d, want %d", n.Attr.FileID, want.id)
	}
	return err
}

func (p *program) readdir() error {
	d := p.dir()
	p.note("readdir %s", p.path(d))
	return p.compareDir(d)
}

// compareDir compares a directory with the model: names, identities, sizes.
func (p *program) compareDir(d *node) error {
	var got []string
	err := p.c.ReadDir(p.ctx, d.h, func(e *client.Entry) error {
		got = append(got, e.Name)
		n := d.entries[e.Name]
		switch {
		case n == nil:
			return fmt.Errorf("the name %q should not be there", e.Name)
		case e.FileID != n.id:
			return fmt.Errorf("%q is %d, want %d", e.Name, e.FileID, n.id)
		case e.Attr != nil && !n.isDir() && e.Attr.Size != uint64(len(n.data)):
			return fmt.Errorf("%q has %d bytes, want %d", e.Name, e.Attr.Size, len(n.data))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("readdir of %s: %w", p.path(d), err)
	}
	slices.Sort(got)
	if u := slices.Compact(slices.Clone(got)); len(u) != len(got) || len(got) != len(d.entries) {
		return fmt.Errorf("%s has the names %q, want %d of them", p.path(d), got, len(d.entries))
	}
	return nil
}

// compareTree compares everything below d.
func (p *program) compareTree(d *node) error {
	if err := p.compareDir(d); err != nil {
		return err
	}
	for _, name := range names {
		n := d.entries[name]
		if n == nil {
			continue
		}
		var err error
		if n.isDir() {
			err = p.compareTree(n)
		} else if err = p.compareAttr(n); err == nil {
			err = p.compareRange(n, 0, len(n.data)+1)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.path(n), err)
		}
	}
	return nil
}
