package reconcile

import (
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// TestSetExportEdits: one rule and one option change, the rest stays, and a refused change leaves
// all as it was, also over a restart.
func TestSetExportEdits(t *testing.T) {
	r := newRig(t, "a(rw) 10.0.0.0/8(ro)")
	edit := func(d config.ExportEdit) error {
		_, err := r.SetExport("/a", control.ExportPatch{ExportEdit: d})
		return err
	}
	if err := edit(config.ExportEdit{
		AddClients: []config.Client{{Host: "10.0.0.7", Squash: config.NoRootSquash}},
		Options:    []string{"direct", "sec=sys", "fsid=9"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := edit(config.ExportEdit{RemoveClients: []string{"10.9.9.9"}}); err == nil {
		t.Error("a rule was removed that there is not")
	}
	r.stop()
	r.start()
	e := r.Exports()[0]
	const want = "10.0.0.0/8(ro,root_squash,sec=sys) 10.0.0.7/32(rw,no_root_squash,sec=sys)"
	var got []string
	for _, c := range e.Clients {
		got = append(got, c.String())
	}
	if s := strings.Join(got, " "); s != want || !slices.Equal(e.Options(), []string{"direct", "fsid=9"}) {
		t.Errorf("%s, options %q, want %s", s, e.Options(), want)
	}
}

// TestRevertExports: what was removed at run time comes back, and what was added and changed goes.
func TestRevertExports(t *testing.T) {
	r := newRig(t, "a(rw)", "b(rw)")
	if err := r.RemoveExport("/b"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.AddExport(r.config("c(rw)").Exports[0]); err != nil {
		t.Fatal(err)
	}
	ro := true
	if _, err := r.SetExport("/a", control.ExportPatch{ReadOnly: &ro}); err != nil {
		t.Fatal(err)
	}
	r.want("after the changes", "/a ro", "/c")
	if err := r.RevertExports(true); err != nil {
		t.Fatal(err)
	}
	r.want("when removals are ended", "/a ro", "/b", "/c")
	if err := r.RevertExports(false); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.start()
	r.want("when all is ended", "/a", "/b")
	if e := r.Exports()[0]; e.ReadOnly {
		t.Error("/a is still read-only")
	}
}

// TestRootStays: an export that is added before the one at "/" does not move "/", also over a
// restart. The setting root does, and the removal of the export.
func TestRootStays(t *testing.T) {
	r := newRig(t, "a(rw)")
	root := func(want string) {
		t.Helper()
		var got []string
		for _, e := range r.Exports() {
			if slices.Contains(e.Aliases, "/") {
				got = append(got, e.Pseudo)
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("at / is %q, want %q", s, want)
		}
	}
	root("/a")
	cfg := r.config("b(rw)", "a(rw)")
	for range 2 {
		r.stop()
		r.settings = cfg
		r.start()
		root("/a")
	}
	cfg.Root = "/b"
	if err := r.ApplyExports(false); err != nil {
		t.Fatal(err)
	}
	root("/b")
	cfg.Root = ""
	if err := r.ApplyExports(false); err != nil {
		t.Fatal(err)
	}
	root("/a")
	if err := r.RemoveExport("/a"); err != nil {
		t.Fatal(err)
	}
	root("/b")
}
