package state

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/lease"
)

// TestCommonLock: a process that takes no lease does not start beside nodes that share the
// directory. A process of a program that locked the common file alone still runs on this node, so
// its lease is not taken from it at once; when it has ended, the lease is.
func TestCommonLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	must(t, os.Mkdir(dir, 0o700))
	node := func(name string) *Sharing {
		return &Sharing{Node: name, Term: time.Hour, Lost: func(err error) { t.Error(err) }}
	}
	a, err := Open(t.Context(), dir, node("a"))
	must(t, err)
	if _, err := Open(t.Context(), dir, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("a process without a lease: %v", err)
	}

	// The process of a is killed: its lease stays. A process of the old program has the common file.
	closeAll(a.lock, a.common)
	must(t, a.journal.db.Close())
	old, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	must(t, err)
	must(t, unix.Flock(int(old.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	// waits reports that a second process of the node does not get the lease.
	waits := func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		again := node("a")
		again.Waiting = func(lease.Record) { cancel() }
		_, err := Open(ctx, dir, again)
		return errors.Is(err, context.Canceled)
	}
	if !waits() {
		t.Fatal("a second process of the node has the lease")
	}

	// It hands over to a process of this program, which has its own lock from then on.
	own, common, err := node("a").own(dir, old)
	must(t, err)
	if common != old {
		t.Error("the common file was not handed over")
	}
	if !waits() {
		t.Fatal("a second process has the lease beside the one that was handed over to")
	}
	same, common, err := node("a").own(dir, own)
	must(t, err)
	if same != own || common == nil {
		t.Error("the lock of the node was not handed over")
	}
	closeAll(own, common, old)
	second, err := Open(t.Context(), dir, node("a"))
	must(t, err)
	if second.Lease().Unclean {
		t.Error("the lease of an ended process of the node counts as another node's")
	}
	must(t, second.Close())
}
