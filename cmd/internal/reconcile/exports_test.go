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
