package telemetry

import (
	"bytes"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
)

// TestRecent: the last lines are kept, as many as fit, of every logger and at its level.
func TestRecent(t *testing.T) {
	l, err := NewLog("info", config.LogJSON)
	if err != nil {
		t.Fatal(err)
	}
	l.Debug("not this")
	l.Slog("room").Info("one", "key", 7)
	l.Always.With(zap.String("who", "me")).Info("two")
	l.Warn("long" + strings.Repeat("x", 2*lineMax))
	lines := strings.SplitAfter(string(l.Recent()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], `"logger":"room","msg":"one","key":7`) ||
		!strings.Contains(lines[1], `"msg":"two","who":"me"`) || len(lines[2]) != lineMax+1 {
		t.Errorf("%.3000q", lines)
	}
	r := new(ring)
	for i := range 3 * ringMax / 1000 {
		r.add(append(bytes.Repeat([]byte{byte('a' + i%26)}, 999), '\n'))
	}
	got := r.bytes()
	if n := len(got); n > ringMax || n < ringMax-1000 || len(r.lines) > 3*ringMax/1000 {
		t.Errorf("%d bytes in %d lines", n, len(r.lines))
	}
	if last := got[len(got)-2]; last != byte('a'+(3*ringMax/1000-1)%26) {
		t.Errorf("the last is %c", last)
	}
}
