package nfs4

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
)

// TestDenialsAreAudited: who is refused an export is written down, with what, and not each time.
func TestDenialsAreAudited(t *testing.T) {
	r := newRig(t)
	var b strings.Builder
	r.s.cfg.Audit = slog.New(slog.NewTextHandler(&b, nil))
	x := r.session(2, "one")
	one := x.handle("one")
	lines := func(want int, parts ...string) {
		t.Helper()
		if n := strings.Count(b.String(), "nfs4_denied"); n != want {
			t.Errorf("%d lines, want %d: %s", n, want, b.String())
		}
		for _, p := range parts {
			if !strings.Contains(b.String(), p) {
				t.Errorf("no %s in %s", p, b.String())
			}
		}
		b.Reset()
	}
	lines(0)
	r.peer, r.uid = stranger, 1000
	for range 100 {
		if _, st := x.tryHandle("one"); st != nfs.ErrNoEnt {
			t.Fatal(st)
		}
	}
	lines(1, "client=192.0.2.1:", "path=/one", "result=NOENT", "uid=1000")
	for range 100 {
		x.do(op(OpPutFH, one), op(OpAccess, uint32(1))).ok(OpPutFH).fails(OpAccess, nfs.ErrAcces)
	}
	lines(1, "client=192.0.2.1:", "path=/one", "result=ACCES")
	r.now = r.now.Add(refusedEvery)
	_, _ = x.tryHandle("one")
	lines(1)
	// What is remembered has a bound.
	var d denials
	for i := range 3 * refusedMax {
		if !d.fresh(denial{host: netip.MustParseAddr("192.0.2.1"), path: fmt.Sprint(i)}, time.Unix(0, 0)) ||
			len(d.seen) > refusedMax {
			t.Fatalf("%d are remembered after %d", len(d.seen), i)
		}
	}
}
