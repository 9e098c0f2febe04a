package exports

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// mounted is a store that loses what it has by Release.
type mounted struct {
	slow
	locked                     error
	released, resumed, retired int
}

func (m *mounted) Retire()                             { m.retired++ }
func (m *mounted) Releasable() error                   { return m.locked }
func (m *mounted) Release() error                      { m.released++; return m.locked }
func (m *mounted) Resume() error                       { m.resumed++; return nil }
func (*mounted) Settle() error                         { return nil }
func (*mounted) Handover() ([]byte, []*os.File, error) { return nil, nil, nil }
func (*mounted) Restore([]byte, []*os.File) error      { return nil }

func exportOf(name string, fs blockstore.FS) *Export {
	e := &Export{store: newGate(fs, nil)}
	e.Pseudo, e.ID = name, uint32(len(name))
	return e
}

// TestFreezeAsksAll: a store that cannot be released keeps all others from being released.
func TestFreezeAsksAll(t *testing.T) {
	a, b := new(mounted), &mounted{locked: errors.New("files are locked")}
	s := New(Config{})
	s.list.Store(&[]*Export{exportOf("/a", a), exportOf("/bb", b)})
	thaw, err := s.Freeze(upgrade.Files)
	if err == nil || !strings.Contains(err.Error(), "/bb: files are locked") || a.released+b.released > 0 {
		t.Errorf("%v; released %d and %d times", err, a.released, b.released)
	}
	if thaw != nil {
		t.Error("nothing is to be thawed")
	}
	b.locked = nil
	if thaw, err = s.Freeze(upgrade.Files); err != nil || a.released != 1 || b.released != 1 {
		t.Fatalf("%v; released %d and %d times", err, a.released, b.released)
	}
	if err := thaw(); err != nil || a.resumed != 1 || b.resumed != 1 {
		t.Errorf("%v; resumed %d and %d times", err, a.resumed, b.resumed)
	}
}

// TestRetire: a store that is retired is told so at once, and the next one of its export waits until
// the last call inside has ended, but not for ever.
func TestRetire(t *testing.T) {
	log, err := telemetry.NewLog("error", "json")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Log: log})
	m := &mounted{slow: slow{inside: make(chan struct{}), release: make(chan struct{})}}
	e := exportOf("/a", m)
	inner := make(chan error, 1)
	go func() {
		_, err := e.store.Commit(nil, blockstore.Handle{}, 0, 0)
		inner <- err
	}()
	<-m.inside
	s.retire(e, false)
	if m.retired != 1 {
		t.Error("the store does not know that it is retired")
	}
	s.awaitClosed(e.ID+1, time.Hour)
	s.awaitClosed(e.ID, time.Millisecond)
	awaited := make(chan bool)
	go func() {
		s.awaitClosed(e.ID, time.Hour)
		awaited <- m.closed
	}()
	close(m.release)
	if err := <-inner; err != nil {
		t.Error(err)
	}
	if !<-awaited {
		t.Error("the next store did not wait")
	}
	s.awaitClosed(e.ID, time.Hour)
}
