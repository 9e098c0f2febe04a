package nfs3

import (
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// delegated are files delegated to others.
type delegated struct {
	t     *testing.T
	write []lock.File
	all   []lock.File
	held  map[lock.File]int
	told  []nfs.DirEvent
}

func (g *delegated) BeginDirChange(f lock.File, _ nfs.DirEvent) (begun, ok bool) {
	return g.BeginChange(f)
}

func (g *delegated) DirChanged(f lock.File, e nfs.DirEvent) {
	if g.held[f] == 0 {
		g.t.Errorf("%+v outside of the change", e)
	}
	g.told = append(g.told, e)
}

func (g *delegated) Free(f lock.File, change, _ bool) bool {
	return !slices.Contains(g.write, f) && (!change || !slices.Contains(g.all, f))
}

func (g *delegated) Delegating() bool { return true }

func (g *delegated) BeginChange(f lock.File) (begun, ok bool) {
	if !g.Free(f, true, true) {
		return false, false
	}
	g.held[f]++
	return true, true
}

func (g *delegated) EndChange(f lock.File) {
	if g.held[f]--; g.held[f] < 0 {
		g.t.Error("not held")
	}
}

// delegating makes a rig whose delegations are g, with the files "f" and "other" in its root.
func delegating(t *testing.T) (r *rig, g *delegated, root, fh []byte) {
	r, g = newRig(t), &delegated{t: t, held: make(map[lock.File]int)}
	r.srv.Close()
	r.srv = rpc.NewServer(rpc.ServerConfig{
		Programs: Programs(nfs.Config{Exports: r.table, Codec: r.codec, Counters: &r.count, Delegations: g}), Workers: 2,
	})
	t.Cleanup(r.srv.Close)
	root = r.root()
	fh = r.file(root, "f", "content")
	r.file(root, "other", "o")
	return r, g, root, fh
}

// TestDelegatedToOthers: JUKEBOX for what a delegation stands against, and nothing done.
func TestDelegatedToOthers(t *testing.T) {
	size := uint64(2)
	for _, c := range []struct {
		name string
		proc uint32
		args func(root, fh []byte) func(*xdr.Encoder)
		read bool // goes on beside a read delegation
		free bool // is not concerned at all
	}{
		{"GETATTR", ProcGetAttr, func(_, fh []byte) func(*xdr.Encoder) { return fhArgs(fh) }, true, false},
		{"READ", ProcRead, func(_, fh []byte) func(*xdr.Encoder) { return fhArgs(fh, 0, 0, 10) }, true, false},
		{"ACCESS", ProcAccess, func(_, fh []byte) func(*xdr.Encoder) { return fhArgs(fh, 1) }, true, true},
		{"LOOKUP", ProcLookup, func(root, _ []byte) func(*xdr.Encoder) { return dirArgs(root, "f") }, true, true},
		{"WRITE", ProcWrite, func(_, fh []byte) func(*xdr.Encoder) { return writeArgs(fh) }, false, false},
		{"SETATTR", ProcSetAttr, func(_,
			fh []byte,
		) func(*xdr.Encoder) {
			return setArgs(fh, &blockstore.SetAttr{Size: &size})
		}, false, false},
		{"CREATE over it", ProcCreate, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "f", words(CreateUnchecked), sattr(&blockstore.SetAttr{Size: &size}))
		}, false, false},
		{"CREATE beside it", ProcCreate, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "h", words(CreateUnchecked), sattr(&blockstore.SetAttr{Size: &size}))
		}, false, true},
		{"REMOVE", ProcRemove, func(root, _ []byte) func(*xdr.Encoder) { return dirArgs(root, "f") }, false, false},
		{"RENAME away", ProcRename, func(root, _ []byte) func(*xdr.Encoder) {
			return func(e *xdr.Encoder) { dirArgs(root, "f")(e); dirArgs(root, "g")(e) }
		}, false, false},
		{"RENAME over it", ProcRename, func(root, _ []byte) func(*xdr.Encoder) {
			return func(e *xdr.Encoder) { dirArgs(root, "other")(e); dirArgs(root, "f")(e) }
		}, false, false},
		{"LINK", ProcLink, func(root, fh []byte) func(*xdr.Encoder) {
			return func(e *xdr.Encoder) { EncodeHandle(e, fh); dirArgs(root, "g")(e) }
		}, false, false},
	} {
		for _, write := range []bool{false, true} {
			r, g, root, fh := delegating(t)
			id, h, err := r.codec.Parse(fh)
			if err != nil {
				t.Fatal(err)
			}
			f := lock.File{Export: id, Handle: h}
			g.all = []lock.File{f}
			if write {
				g.write = g.all
			}
			want := nfs.ErrJukebox
			if c.free || c.read && !write {
				want = nfs.OK
			}
			before, _ := r.fs.GetAttr(nil, h)
			if st, _ := r.nfs(c.proc, c.args(root, fh)); st != want {
				t.Errorf("%s, write %v: %v instead of %v", c.name, write, st, want)
			}
			if after, _ := r.fs.GetAttr(nil, h); want != nfs.OK && (after.Ctime != before.Ctime || after.NLink != before.NLink) {
				t.Errorf("%s, write %v: done all the same", c.name, write)
			}
			g.all, g.write = nil, nil
			if want != nfs.OK {
				if st, _ := r.nfs(c.proc, c.args(root, fh)); st != nfs.OK {
					t.Errorf("%s, write %v, returned: %v", c.name, write, st)
				}
			}
			for f, n := range g.held {
				if n != 0 {
					t.Errorf("%s: %v is held %d times", c.name, f, n)
				}
			}
		}
	}
}

// TestHeldInPanic: what a call holds it does not keep when it goes wrong.
func TestHeldInPanic(t *testing.T) {
	r := newRig(t)
	g := &delegated{t: t, held: make(map[lock.File]int)}
	r.srv.Close()
	r.srv = rpc.NewServer(rpc.ServerConfig{
		Programs: Programs(nfs.Config{Exports: r.table, Codec: r.codec, Counters: &r.count, Delegations: g}), Workers: 2,
	})
	t.Cleanup(r.srv.Close)
	fh := r.file(r.root(), "f", "content")
	s := &server{Config: nfs.Config{Delegations: g, Counters: &r.count, Exports: r.table, Codec: r.codec}}
	s.ops.New = func() any { return &op{s: s} }
	_, h, _ := r.codec.Parse(fh)
	serve := s.serve(func(o *op) rpc.Status {
		o.x = r.table.ByID(1)
		if st := o.beginChange(h); st != nfs.OK || g.held[o.file(h)] != 1 {
			t.Errorf("%v, held %v", st, g.held)
		}
		panic("as the test wants it")
	})
	func() {
		defer func() { _ = recover() }()
		serve(&rpc.Call{}, true)
	}()
	for _, n := range g.held {
		if n != 0 {
			t.Errorf("held %d times", n)
		}
	}
}

// TestDirDelegated: changes of a directory that is delegated are JUKEBOX, and nothing is done.
// Those that are made are told.
func TestDirDelegated(t *testing.T) {
	var none blockstore.SetAttr
	link := func(root, fh []byte) func(*xdr.Encoder) {
		return func(e *xdr.Encoder) { EncodeHandle(e, fh); dirArgs(root, "g")(e) }
	}
	for _, c := range []struct {
		name string
		proc uint32
		args func(root, fh []byte) func(*xdr.Encoder)
		told []nfs.DirEvent // empty: it changes nothing
	}{
		{"CREATE", ProcCreate, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "g", words(CreateUnchecked), sattr(&none))
		}, []nfs.DirEvent{{Added: "g"}}},
		{"CREATE of what is there", ProcCreate, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "f", words(CreateUnchecked), sattr(&none))
		}, nil},
		{"MKDIR", ProcMkdir, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "g", sattr(&none))
		}, []nfs.DirEvent{{Added: "g"}}},
		{"LINK", ProcLink, link, []nfs.DirEvent{{Added: "g"}}},
		{"REMOVE", ProcRemove, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "f")
		}, []nfs.DirEvent{{Removed: "f"}}},
		{"RENAME", ProcRename, func(root, _ []byte) func(*xdr.Encoder) {
			return func(e *xdr.Encoder) { dirArgs(root, "f")(e); dirArgs(root, "g")(e) }
		}, []nfs.DirEvent{{Removed: "f", Added: "g"}}},
		{"RENAME over another", ProcRename, func(root, _ []byte) func(*xdr.Encoder) {
			return func(e *xdr.Encoder) { dirArgs(root, "f")(e); dirArgs(root, "other")(e) }
		}, []nfs.DirEvent{{Removed: "f", Added: "other", Replaced: true}}},
	} {
		r, g, root, fh := delegating(t)
		g.told = nil
		id, h, err := r.codec.Parse(root)
		if err != nil {
			t.Fatal(err)
		}
		if g.all = []lock.File{{Export: id, Handle: h}}; c.told != nil {
			before, _ := r.fs.GetAttr(nil, h)
			if st, _ := r.nfs(c.proc, c.args(root, fh)); st != nfs.ErrJukebox {
				t.Errorf("%s: %v", c.name, st)
			}
			if after, _ := r.fs.GetAttr(nil, h); after.Ctime != before.Ctime || len(g.told) > 0 {
				t.Errorf("%s: done all the same, told %v", c.name, g.told)
			}
			g.all = nil
		}
		if st, _ := r.nfs(c.proc, c.args(root, fh)); st != nfs.OK {
			t.Errorf("%s, returned: %v", c.name, st)
		}
		if !slices.Equal(g.told, c.told) {
			t.Errorf("%s: told %+v instead of %+v", c.name, g.told, c.told)
		}
		for f, n := range g.held {
			if n != 0 {
				t.Errorf("%s: %v is held %d times", c.name, f, n)
			}
		}
	}
}
