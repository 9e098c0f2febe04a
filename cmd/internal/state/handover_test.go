package state

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
)

// TestHandover: a directory goes to another holder, or comes back, and nobody else gets it
// meanwhile.
func TestHandover(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first := open(t, dir)
	must(t, first.Journal().Add("a"))
	lock, err := duplicate(first.lock)
	must(t, err)
	must(t, first.release())
	must(t, first.resume())
	must(t, first.Journal().Add("b"))
	must(t, first.release())
	changed := make(chan error, 2)
	go func() { changed <- first.Journal().Add("c") }()
	go func() { changed <- first.PutPort(Port{"tcp", "127.0.0.1:1"}, false) }()

	second, err := inherit(dir, lock, nil, nil)
	must(t, err)
	if _, err := Open(context.Background(), dir, nil); !errors.Is(err, ErrBusy) {
		t.Fatalf("a third: %v", err)
	}
	owners, err := second.Journal().Owners()
	must(t, err)
	if !slices.Equal(owners, []string{"a", "b"}) {
		t.Fatalf("owners %q", owners)
	}
	if added, _ := first.Ports(); len(added) != 0 {
		t.Fatalf("ports %v", added)
	}
	select {
	case err := <-changed:
		t.Fatalf("the first changes something: %v", err)
	default:
	}
	second.journal.gate.Unlock()
	must(t, second.Journal().Add("d"))
	if _, err := second.ExportID(&config.Export{Path: "/a", Pseudo: "/a"}); err != nil {
		t.Fatal(err)
	}
	must(t, second.Close())

	// The second has ended, and the first goes on.
	must(t, first.resume())
	must(t, <-changed)
	must(t, <-changed)
	owners, err = first.Journal().Owners()
	must(t, err)
	if !slices.Equal(owners, []string{"a", "b", "c", "d"}) {
		t.Fatalf("owners %q", owners)
	}
	must(t, first.Close())
}
