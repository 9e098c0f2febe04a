package filecmd

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestProgressLine(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		done, total int64
		all         bool
		perSecond   float64
		limits      string
		want        string
	}{
		{0, 0, false, 0, "", "copying 0 B of 0 B found so far"},
		{mib, 4 * mib, false, 0, "", "copying 25 %, 1.0 MiB of 4.0 MiB found so far"},
		{mib, 4 * mib, false, mib, "", "copying 25 %, 1.0 MiB of 4.0 MiB found so far, 1.0 MiB/s"},
		{mib, 4 * mib, true, mib, "x", "copying 25 %, 1.0 MiB of 4.0 MiB, 1.0 MiB/s, 3s left, x"},
		{5 * mib, 4 * mib, true, mib, "", "copying 100 %, 5.0 MiB of 5.0 MiB, 1.0 MiB/s, 0s left"}, // a file grew
		{-1, 4 * mib, true, 0, "", "copying 0 %, 0 B of 4.0 MiB"},
		{1, 1 << 62, true, 1, "", "copying 0 %, 1 B of 4.0 EiB, 1 B/s"}, // no years
	} {
		if got := progressLine(c.done, c.total, c.all, c.perSecond, c.limits); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestRate(t *testing.T) {
	var r rate
	near := func(got, want float64) {
		t.Helper()
		if math.Abs(got-want) > want/50+1 {
			t.Errorf("%g, want about %g", got, want)
		}
	}
	done := int64(0)
	for at := time.Second; at <= 20*time.Second; at += time.Second {
		done += 1000
		near(r.at(at, done), 1000)
	}
	near(r.at(20*time.Second, done), 1000) // no time has passed
	for at := 21 * time.Second; at <= 60*time.Second; at += time.Second {
		done += 100
		r.at(at, done)
	}
	near(r.perSecond, 100) // the old rate is forgotten
	if r.at(61*time.Second, done-5000) < 0 {
		t.Error("bytes to send again make the rate negative")
	}
}

func TestMeter(t *testing.T) {
	var none *meter // not on a terminal
	none.expect(1)
	none.expectAll()
	none.add(1, nil)
	none.clear()

	var out strings.Builder
	now := time.Unix(1000, 0)
	m := &meter{w: &out, width: func() int { return 30 }, now: func() time.Time { return now }, begun: now}
	m.expect(1 << 20)
	for range 4 {
		now = now.Add(time.Second)
		m.add(1<<18, func() string { return strings.Repeat("x", 100) })
		m.add(0, func() string { t.Error("written again at once"); return "" })
	}
	m.clear()
	lines := strings.Split(out.String(), "\r")
	if len(lines) != 6 || lines[5] != "\x1b[K" || !strings.HasPrefix(lines[1], "copying 25 %, ") ||
		!strings.HasPrefix(lines[4], "copying 100 %, ") {
		t.Errorf("%q", lines)
	}
	for _, l := range lines {
		if len(strings.TrimSuffix(l, "\x1b[K")) >= 30 {
			t.Errorf("%q is as wide as the terminal", l)
		}
	}
}
