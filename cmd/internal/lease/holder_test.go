package lease

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func config(dir, node string, lost *atomic.Pointer[error]) Config {
	return Config{Dir: dir, Node: node, Term: 400 * time.Millisecond, Lost: func(err error) { lost.Store(&err) }}
}

func take(t *testing.T, cfg Config) *Holder {
	t.Helper()
	h, err := Take(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestHolder: the first node serves, the second waits while the first renews, and serves as soon as
// the first has released the lease.
func TestHolder(t *testing.T) {
	dir := t.TempDir()
	var lost atomic.Pointer[error]
	a := take(t, config(dir, "a", &lost))
	if !a.Serving() {
		t.Error("a does not serve")
	}
	cfg := config(dir, "b", &lost)
	var waits string
	cfg.Waiting = func(r Record) { waits = r.Node }
	ctx, cancel := context.WithTimeout(t.Context(), 3*cfg.Term)
	defer cancel()
	if _, err := Take(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) || waits != "a" {
		t.Errorf("b: %v, waits for %q", err, waits)
	}
	if !a.Serving() {
		t.Error("a does not serve after renewals")
	}
	if err := a.Release(); err != nil {
		t.Fatal(err)
	}
	if a.Serving() {
		t.Error("a serves after its release")
	}
	b := take(t, config(dir, "b", &lost))
	if s := b.Status(); s.Epoch != 2 || s.Node != "b" || !b.Serving() {
		t.Errorf("%+v", s)
	}
	if r, err := Peek(dir); err != nil || r.Node != "b" || r.Epoch != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := b.Release(); err != nil {
		t.Fatal(err)
	}
	if p := lost.Load(); p != nil {
		t.Error(*p)
	}
	if l, _ := filepath.Glob(filepath.Join(dir, "*")); len(l) != 2 {
		t.Errorf("files %q", l)
	}
}

// TestExpire: a holder that does not renew any more can still release the lease. If it does not,
// another node has the lease after the term and a quarter.
func TestExpire(t *testing.T) {
	dir := t.TempDir()
	var lost atomic.Pointer[error]
	a := take(t, config(dir, "a", &lost))
	a.Expire()
	if err := a.Release(); err != nil {
		t.Fatal(err)
	}
	b := take(t, config(dir, "b", &lost))
	if b.Unclean || lost.Load() != nil {
		t.Error("a has not released the lease")
	}
	b.Expire()
	began := now()
	a = take(t, config(dir, "a", new(atomic.Pointer[error])))
	defer a.Release()
	if !a.Unclean {
		t.Error("b has released the lease")
	}
	// The pause between two looks at the lease counts, too.
	if took := now() - began; took < a.cfg.Term || took > 3*a.cfg.Term {
		t.Errorf("a has the lease after %v, with a term of %v", took, a.cfg.Term)
	}
	if p := lost.Load(); p == nil || !strings.Contains((*p).Error(), "not renewed") {
		t.Errorf("b has lost the lease, and says %v", p)
	}
}

// TestTakenAway: a holder whose renewals do not reach the storage stops within its term, and
// another node takes over. One that sees the file of another node stops at once.
func TestTakenAway(t *testing.T) {
	dir := t.TempDir()
	var lost atomic.Pointer[error]
	a := take(t, config(dir, "a", &lost))
	a.file.Close() // every write fails from here on
	before := now()
	b := take(t, config(dir, "b", new(atomic.Pointer[error])))
	defer b.Release()
	if a.Serving() || !b.Serving() || now()-before < a.cfg.Term/2 {
		t.Errorf("a serves %v, b serves %v, after %v", a.Serving(), b.Serving(), now()-before)
	}
	if lost.Load() == nil {
		t.Error("a was not told")
	}

	dir = t.TempDir()
	lost.Store(nil)
	a = take(t, config(dir, "a", &lost))
	f, err := claim(dir, Record{Epoch: 2, Node: "b"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for end := time.Now().Add(a.cfg.Term / 2); a.Serving() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if a.Serving() {
		t.Error("a serves although b has claimed")
	}
	if _, err := claim(dir, Record{Epoch: 2, Node: "c"}); !errors.Is(err, os.ErrExist) {
		t.Errorf("two nodes claim one epoch: %v", err)
	}
}

// TestSameNode: a process that replaces one of its own node that has ended waits for nothing.
func TestSameNode(t *testing.T) {
	dir := t.TempDir()
	var lost atomic.Pointer[error]
	cfg := config(dir, "a", &lost)
	cfg.Term = time.Hour
	a := take(t, cfg)
	defer a.Release()
	looks := 0
	cfg.Wake = closed
	cfg.Alone = func() bool { looks++; return looks > 2 } // the process before is still about to end
	b := take(t, cfg)
	if s := b.Status(); s.Epoch != 2 || looks != 3 {
		t.Errorf("%+v after %d looks", s, looks)
	}
	if err := b.Release(); err != nil {
		t.Fatal(err)
	}
}

// closed wakes at once, always.
var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// TestAbandon: a process that may not take the lease releases that of an ended process of its node,
// and another node has it at once. It does not release what another node has.
func TestAbandon(t *testing.T) {
	dir := t.TempDir()
	var lost atomic.Pointer[error]
	cfg := config(dir, "a", &lost)
	cfg.Term = time.Hour
	defer take(t, cfg).Release()
	cfg.Alone, cfg.May, cfg.Abandon = func() bool { return true }, func() bool { return false }, true
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() {
		_, err := Take(ctx, cfg)
		waits <- err
	}()
	b := config(dir, "b", &lost)
	b.Term, b.Wake = time.Hour, closed
	h := take(t, b)
	if s := h.Status(); s.Epoch != 2 || h.Unclean {
		t.Errorf("%+v, unclean %v", s, h.Unclean)
	}
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Take(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if r, err := Peek(dir); err != nil || r.Node != "b" || r.Released {
		t.Errorf("%+v, %v", r, err)
	}
	if err := h.Release(); err != nil {
		t.Error(err)
	}
}

// TestReleaseTo: a lease that was released to a node is that node's at once, also if it takes none
// by itself. Another node gets it when that one is gone.
func TestReleaseTo(t *testing.T) {
	dir := t.TempDir()
	var lost atomic.Pointer[error]
	long := strings.Repeat("b", 64)
	a := take(t, config(dir, strings.Repeat("a", 64), &lost))
	if err := a.ReleaseTo(long, strings.Repeat("f", 16)); err != nil {
		t.Fatal(err)
	}
	cfg := config(dir, "c", &lost)
	cfg.May = func() bool { return false }
	ctx, cancel := context.WithTimeout(t.Context(), 2*cfg.Term)
	defer cancel()
	if _, err := Take(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a node that may not claim: %v", err)
	}
	cfg.Node = long
	b := take(t, cfg)
	if r := b.Before; r.Token != strings.Repeat("f", 16) || b.Unclean {
		t.Errorf("claimed over %+v, unclean %v", r, b.Unclean)
	}
	if err := b.ReleaseTo("nobody", ""); err != nil {
		t.Fatal(err)
	}
	c := take(t, config(dir, "c", &lost))
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	if p := lost.Load(); p != nil {
		t.Error(*p)
	}
}

// TestLateClaim: a claim that was stopped before its link, and continues after others have claimed
// several times, fails, although the file of its epoch is gone by then.
func TestLateClaim(t *testing.T) {
	dir := t.TempDir()
	for epoch := uint64(1); epoch <= 7; epoch++ {
		f, err := claim(dir, Record{Epoch: epoch, Node: "b"})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	for _, epoch := range []uint64{1, 5, 6, 7} {
		if f, err := claim(dir, Record{Epoch: epoch, Node: "a"}); !errors.Is(err, os.ErrExist) {
			t.Errorf("epoch %d is claimed although epoch 7 has a file: %v", epoch, err)
			_ = f.Close()
		}
	}
	if l, _ := filepath.Glob(filepath.Join(dir, "*")); len(l) != 2 {
		t.Errorf("files %q", l)
	}
}

// TestSameName: a node of the same name by mistake, or after its host was booted again, waits as
// any other.
func TestSameName(t *testing.T) {
	e := Engine{Node: "a", Boot: "2", Term: time.Second}
	e.Read(0, 0, Record{Epoch: 3, Node: "a", Boot: "1"}, true)
	if _, ok := e.Replace(); ok {
		t.Error("replaces a process of another boot")
	}
	if _, ok := e.Claim(); ok {
		t.Error("claims at once")
	}
}

// TestDamagedFile: a lease file that cannot be read is an error, not a reason to claim.
func TestDamagedFile(t *testing.T) {
	for _, content := range []string{"", "{", `{"epoch":4,"node":"a"}`} {
		dir := t.TempDir()
		b := make([]byte, recordLen)
		for i := range b {
			b[i] = ' '
		}
		copy(b, content)
		if content == "" {
			b = nil
		}
		if err := os.WriteFile(filepath.Join(dir, "lease.3"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Take(t.Context(), config(dir, "b", new(atomic.Pointer[error]))); err == nil {
			t.Errorf("%q: claimed", content)
		}
	}
}
