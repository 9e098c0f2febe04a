package nfs4

import (
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// pinner counts the pins of a store.
type pinner struct {
	*store
	pins map[blockstore.Handle]int
	err  error
	fail error // of SetAttr
}

func (p *pinner) Pin(h blockstore.Handle) error {
	if p.err != nil {
		return p.err
	}
	err := p.store.Pin(h)
	if err == nil {
		p.pins[h]++
	}
	return err
}

func (p *pinner) Unpin(h blockstore.Handle) {
	p.store.Unpin(h)
	p.pins[h]--
}

func (p *pinner) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr,
	guard *time.Time,
) (blockstore.Wcc, error) {
	if p.fail != nil {
		return blockstore.Wcc{}, p.fail
	}
	return p.store.SetAttr(c, h, s, guard)
}

func (p *pinner) count() (n int) {
	for _, x := range p.pins {
		n += x
	}
	return n
}

func pinRig(t *testing.T) (*rig, *pinner) {
	p := &pinner{pins: make(map[blockstore.Handle]int)}
	r := newRigOver(t, func(fs blockstore.FS) blockstore.FS {
		p.store = fs.(*store)
		return p
	})
	t.Cleanup(func() { r.s.Close() })
	return r, p
}

// works uses a file that may have no name left.
func (x *sess) works(fh []byte, id state.Stateid, want nfs.Status) {
	x.r.t.Helper()
	for n, o := range map[uint32]args{
		OpRead:    op(OpRead, id, uint64(0), uint32(8)),
		OpWrite:   op(OpWrite, id, uint64(0), uint32(0), []byte("data")),
		OpCommit:  op(OpCommit, uint64(0), uint32(0)),
		OpGetAttr: op(OpGetAttr, BitmapOf(AttrSize)),
		OpSetAttr: op(OpSetAttr, id, attrs(BitmapOf(AttrSize), uint64(4))),
	} {
		if st := x.do(op(OpPutFH, fh), o).ok(OpPutFH).next(n); st != want {
			x.r.t.Errorf("operation %d: %v, want %v", n, st, want)
		}
	}
}

// TestRemovedWhileOpen: a file that another client removes, or replaces, works until the last CLOSE
// of all clients.
func TestRemovedWhileOpen(t *testing.T) {
	for name, remove := range map[string]func(b *sess, dir []byte){
		"removed": func(b *sess, dir []byte) {
			b.do(op(OpPutFH, dir), op(OpRemove, "f")).ok(OpPutFH).ok(OpRemove)
		},
		"replaced": func(b *sess, dir []byte) {
			fh, id := b.make(dir, "g")
			b.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
			b.do(op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "g", "f")).ok(OpPutFH).ok(OpSaveFH).ok(OpRename)
		},
	} {
		r, p := pinRig(t)
		a, b, c := r.session(2, "a"), r.session(1, "b"), r.client40("c", 1)
		dir := a.handle("one")
		fh, id := a.make(dir, "f")
		_, old := c.open(state.Both, 0, "o", "f")
		remove(b, dir)
		a.works(fh, id, nfs.OK)
		a.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
		c.on(fh, op(OpWrite, old.id, uint64(0), uint32(0), []byte("data"))).ok(OpWrite)
		c.on(fh, op(OpClose, c.next("o"), old.id)).ok(OpClose)
		a.works(fh, state.Anonymous, nfs.ErrStale)
		if n := p.count(); n != 0 {
			t.Errorf("%s: %d pins are left", name, n)
		}
	}
}

// TestPins: each open, and each delegation, pins its file once, from when it is made until it ends,
// however that is.
func TestPins(t *testing.T) {
	r, p := pinRig(t)
	cl := newCallee(t)
	a := r.called("a", cl)
	dir := a.handle("one")
	is := func(when string, want int) {
		t.Helper()
		if n := p.count(); n != want {
			t.Errorf("%s: %d pins, want %d", when, n, want)
		}
	}
	r.back = nil
	b := r.session(2, "b")
	fh := b.file("f")
	b.openFH(fh, state.Read, "o").ok(OpOpen)
	is("open", 1)
	b.openFH(fh, state.Both, "o").ok(OpOpen)
	is("opened again", 1)
	b.openFH(fh, state.Read, "other").ok(OpOpen)
	is("opened by another owner", 2)
	r.s.State().Evict(b.client)
	is("evicted", 0)

	b = r.session(2, "b2")
	fh, id := b.make(dir, "g")
	b.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
	is("closed", 0)
	q := a.openFH(fh, state.Read, "o").ok(OpOpen)
	id, _, _ = q.opened()
	if q.delegKind != delegRead {
		t.Fatal("no delegation")
	}
	is("delegated", 2)
	a.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
	is("delegated and closed", 1)
	r.succeed(cl)
	is("handed over", 1)
	a.do(op(OpPutFH, fh), op(OpDelegReturn, q.deleg)).ok(OpPutFH).ok(OpDelegReturn)
	is("returned", 0)

	q = a.openFH(fh, state.Both, "o").ok(OpOpen)
	q.opened()
	r.s.State().DropExport(1)
	is("no longer exported", 0)

	p.fail = errors.New("no truncation")
	b.do(op(OpPutFH, dir), openCreateOp(state.Both, "o", "g", CreateUnchecked,
		attrs(BitmapOf(AttrSize), uint64(0)))).ok(OpPutFH).next(OpOpen)
	is("an OPEN that failed after all", 0)
	p.fail = nil

	p.err = blockstore.ErrJukebox
	b.openFH(fh, state.Read|WantNoDeleg, "o").ok(OpOpen)
	is("no room", 0)
	if n := r.s.Faults()[CountUnpinned]; n != 1 {
		t.Errorf("%d opens are counted", n)
	}
	p.err = blockstore.ErrStale
	if st := b.openFH(fh, state.Read|WantNoDeleg, "o2").next(OpOpen); st != nfs.ErrStale {
		t.Errorf("OPEN of a file that is gone: %v", st)
	}
	if st := b.do(op(OpPutFH, dir), openOp(state.Read, 0, "o2", "g")).ok(OpPutFH).next(OpOpen); st != nfs.ErrJukebox {
		t.Errorf("OPEN of a name whose file went meanwhile: %v", st)
	}
}
