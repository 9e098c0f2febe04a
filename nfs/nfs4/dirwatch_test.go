package nfs4

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// watcher is a store that tells of changes by others as the test wants it.
type watcher struct {
	blockstore.FS
	err     error
	nobody  bool
	changed func()
	ended   int
}

func (w *watcher) WatchDir(_ blockstore.Handle, changed func()) (func(), error) {
	if w.err != nil || w.nobody {
		return nil, w.err
	}
	w.changed = changed
	return func() { w.ended++ }, nil
}

// TestDirWatched: a change by the host recalls a directory, and the watch ends with the delegation.
// A store that cannot tell of such changes delegates nothing.
func TestDirWatched(t *testing.T) {
	r := newRig(t)
	t.Cleanup(r.s.Close)
	w := &watcher{FS: r.fs}
	if err := r.table.Replace([]*nfs.Export{{ID: 1, Pseudo: "/one", FS: w}}); err != nil {
		t.Fatal(err)
	}
	cl := newCallee(t)
	a := r.called("a", cl)
	dir := a.handle("one")
	if _, ok := a.delegDir(a.handle(), allNotices); ok {
		t.Error("a directory that leads to exports is delegated")
	}
	w.err = blockstore.ErrNotSupp
	if _, ok := a.delegDir(dir, allNotices); ok || r.s.State().Delegations().Now != 0 {
		t.Error("delegated without a watch")
	}
	w.err = blockstore.ErrStale
	a.do(op(OpPutFH, dir), op(OpGetDirDelegation, true, allNotices, uint64(1), 0, uint64(1), 0, Bitmap{}, Bitmap{})).
		ok(OpPutFH).fails(OpGetDirDelegation, nfs.ErrStale)
	w.err, w.nobody = nil, true
	id, ok := a.delegDir(dir, allNotices)
	if !ok {
		t.Fatal("not delegated")
	}
	a.do(op(OpPutFH, dir), op(OpDelegReturn, id)).ok(OpPutFH).ok(OpDelegReturn)
	w.nobody = false
	if id, ok = a.delegDir(dir, allNotices); !ok {
		t.Fatal("not delegated")
	}
	done := make(chan struct{})
	go func() { w.changed(); close(done) }()
	for end := time.Now().Add(10 * time.Second); cl.recalls() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not recalled")
		}
	}
	a.do(op(OpPutFH, dir), op(OpDelegReturn, id)).ok(OpPutFH).ok(OpDelegReturn)
	<-done
	if w.ended != 1 {
		t.Errorf("ended %d times", w.ended)
	}
}

// TestDirSucceeded: after an upgrade the delegation of a watched directory is recalled, with and
// without notifications, as nobody has seen what the host did meanwhile. A change by another client
// waits for its return.
func TestDirSucceeded(t *testing.T) {
	for _, notices := range []Bitmap{{}, allNotices} {
		r := newRig(t)
		w := &watcher{FS: r.fs}
		if err := r.table.Replace([]*nfs.Export{{ID: 1, Pseudo: "/one", FS: w, Clients: []nfs.ClientRule{{
			CIDR: netip.MustParsePrefix("10.0.0.1/32"), Squash: nfs.NoRootSquash,
		}}}}); err != nil {
			t.Fatal(err)
		}
		other := r.session(2, "other")
		dir := other.handle("one")
		cl := newCallee(t)
		a := r.called("a", cl)
		id, ok := a.delegDir(dir, notices)
		if !ok {
			t.Fatal("not delegated")
		}
		r.succeed(cl)
		for end := time.Now().Add(10 * time.Second); cl.recalls() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not recalled")
			}
		}
		if got := cl.recall[0]; got.id != id || !bytes.Equal(got.fh, dir) {
			t.Errorf("recalled %+v", got)
		}
		create := op(OpCreate, 2, "new", attrs(Bitmap{}))
		if notices.empty() {
			other.do(op(OpPutFH, dir), create).ok(OpPutFH).fails(OpCreate, nfs.ErrJukebox)
		}
		a.do(op(OpPutFH, dir), op(OpDelegReturn, id)).ok(OpPutFH).ok(OpDelegReturn)
		other.do(op(OpPutFH, dir), create).ok(OpPutFH).ok(OpCreate)
	}
}
