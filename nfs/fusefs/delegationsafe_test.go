package fusefs

import (
	"os"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
)

// TestOwnChangeDuringStat: this mount changes the size of a file while a call for the attributes is
// under way. The reply, which the server has made before, is not taken for the file as it is.
func TestOwnChangeDuringStat(t *testing.T) {
	s := newHost(t)
	m := s.mount("tcp", client.Version42)
	must(t, os.WriteFile(m.path("f"), []byte("0123456789"), 0o644))
	f := m.hasDelegation("f", os.O_RDWR)
	defer func() { must(t, f.Close()) }()
	n := m.nodes.find(place{m.nodes.root.id, "f"})
	stat := func(during func()) (uint64, bool) {
		b := m.reading(n)
		a, err := m.c.GetAttr(m.ctx, n.handle)
		must(t, err)
		during()
		m.update(n, &a, b)
		local, _, ok := m.local(n)
		return local.Size, ok
	}
	if size, ok := stat(func() {}); size != 10 || !ok {
		t.Fatalf("size %d, answered here: %t", size, ok)
	}
	if size, ok := stat(func() { must(t, m.setAttr(m.ctx, n, &blockstore.SetAttr{Size: new(uint64(3))})) }); ok {
		t.Errorf("size %d is answered here", size)
	}
	end := n.change()
	if _, ok := stat(end); ok {
		t.Error("answered here although a change has ended meanwhile")
	}
	if size, ok := stat(func() {}); size != 3 || !ok {
		t.Errorf("size %d, answered here: %t", size, ok)
	}
	if _, ok := stat(n.outdated); ok {
		t.Error("answered here after a change of the mode")
	}
}

// TestDelegatedSizes: what the server is told about the size of a file that is delegated for writing.
func TestDelegatedSizes(t *testing.T) {
	s := newHost(t)
	m := s.mount("tcp", client.Version42)
	must(t, os.WriteFile(m.path("f"), []byte("0123456789"), 0o644))
	f := m.hasDelegation("f", os.O_RDWR)
	defer func() { must(t, f.Close()) }()
	check := func(what string, want uint64, pending bool) {
		t.Helper()
		if size, changed := m.Changed(m.delegation("f")); size != want || changed != pending {
			t.Errorf("%s: size %d instead of %d, not sent: %t", what, size, want, changed)
		}
	}
	check("at the grant", 10, false)
	_, err := f.WriteAt(make([]byte, 10), 20)
	must(t, err)
	check("after a write", 30, true)
	must(t, f.Sync())
	check("after a sync", 30, false)
	must(t, f.Truncate(7))
	check("after a truncation", 7, false)
	g, err := os.OpenFile(m.path("f"), os.O_RDWR|os.O_TRUNC, 0)
	must(t, err)
	check("after an open with O_TRUNC", 0, false)
	_, err = g.Write([]byte("abc"))
	must(t, err)
	must(t, g.Close())
	check("after a close", 3, false)
	if m.delegation("f") == nil {
		t.Error("the delegation is gone")
	}
}

// TestForgottenData: the kernel forgets a file whose data was not sent yet. The data is sent before
// the delegation is returned, and who looks the file up again finds it.
func TestForgottenData(t *testing.T) {
	s := newHost(t)
	a, b := s.mount("tcp", client.Version42), s.mount("tcp", client.Version42)
	must(t, os.WriteFile(b.path("f"), []byte("old"), 0o644))
	f := a.hasDelegation("f", os.O_RDWR)
	_, err := f.WriteAt([]byte("new data"), 0)
	must(t, err)
	n := a.nodes.find(place{a.nodes.root.id, "f"})
	n.mu.Lock()
	w := n.w
	n.mu.Unlock()
	if !w.pending() {
		t.Fatal("the data is sent already")
	}
	a.nodes.mu.RLock()
	lookups := n.lookups
	a.nodes.mu.RUnlock()
	a.Forget(n.id, lookups)
	if a.nodes.byFile(n.handle) != n {
		t.Error("a recall does not find the data")
	}
	holds(t, b.path("f"), []byte("new data"))
	waitFor(t, "the node to be removed", func() bool { return a.nodes.byFile(n.handle) == nil })
	must(t, f.Close())
}
