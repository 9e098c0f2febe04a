package filecmd

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

// meter shows the progress of a copy on a terminal, in one line that it writes again and again. Its
// methods may be called from any goroutine, and on nil.
type meter struct {
	w     io.Writer
	width func() int // columns of the terminal
	now   func() time.Time

	done, total atomic.Int64 // bytes
	all         atomic.Bool  // total has all files
	shown       atomic.Int64 // when the line was written, in nanoseconds since 1970

	mu    sync.Mutex // of the terminal, and of what follows
	begun time.Time
	rate  rate
}

// Times of the display.
const (
	showEvery = 200 * time.Millisecond
	// rateWindow is the time over which the rate is smoothed.
	rateWindow = 5 * time.Second
	// leftMax is the longest time left that is shown.
	leftMax = 100 * time.Hour
)

// newMeter returns a meter on w, or nil if w is no terminal.
func newMeter(w io.Writer) *meter {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &meter{w: w, begun: time.Now(), now: time.Now, width: func() int {
		n, _, err := term.GetSize(int(f.Fd()))
		if err != nil || n < 2 {
			return 80
		}
		return n
	}}
}

// expect adds the bytes of a file to the total. A negative number removes a file that has failed.
func (m *meter) expect(n int64) {
	if m != nil {
		m.total.Add(n)
	}
}

// expectAll says that the total is complete.
func (m *meter) expectAll() {
	if m != nil {
		m.all.Store(true)
	}
}

// add counts bytes that were copied. A negative number takes back bytes that must be sent again.
// limits returns what limits the copy.
func (m *meter) add(n int, limits func() string) {
	if m == nil {
		return
	}
	m.done.Add(int64(n))
	last, now := m.shown.Load(), m.now()
	if now.UnixNano()-last < int64(showEvery) || !m.shown.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	done := m.done.Load()
	perSecond := m.rate.at(now.Sub(m.begun), done)
	line := progressLine(done, m.total.Load(), m.all.Load(), perSecond, limits())
	if most := m.width() - 1; len(line) > most { // a full line would wrap
		line = line[:most]
	}
	m.print("\r" + line + "\x1b[K")
}

// clear takes the meter off the terminal, for a message or at the end.
func (m *meter) clear() {
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.print("\r\x1b[K")
	}
}

// print writes to the terminal. It ignores errors, because the copy does not depend on the display.
func (m *meter) print(s string) { _, _ = io.WriteString(m.w, s) }

// progressLine is the progress in words: the share, the bytes, the rate in bytes a second, the time
// left, and what limits the copy. The total grows until all files are known.
func progressLine(done, total int64, all bool, perSecond float64, limits string) string {
	done = max(done, 0)
	total = max(total, done)
	parts := make([]string, 0, 4)
	of := fmt.Sprintf("%s of %s", amount(uint64(done)), amount(uint64(total)))
	if total > 0 {
		of = fmt.Sprintf("%d %%, %s", 100*done/total, of)
	}
	if !all {
		of += " found so far"
	}
	parts = append(parts, "copying "+of)
	if perSecond >= 1 {
		parts = append(parts, amount(uint64(perSecond))+"/s")
		if left := float64(total-done) / perSecond; all && left < leftMax.Seconds() {
			parts = append(parts, time.Duration(left*float64(time.Second)).Round(time.Second).String()+" left")
		}
	}
	if limits != "" {
		parts = append(parts, limits)
	}
	return strings.Join(parts, ", ")
}

// rate is a rate over the last seconds. The zero value is a rate at the begin of a copy.
type rate struct {
	when      time.Duration
	done      int64
	perSecond float64
}

// at takes the number of bytes at a time after the begin, and returns bytes a second.
func (r *rate) at(when time.Duration, done int64) float64 {
	took := when - r.when
	if took <= 0 {
		return r.perSecond
	}
	now := max(float64(done-r.done)/took.Seconds(), 0)
	// While the copy is younger than the window, this is the mean since its begin.
	weight := float64(took) / float64(min(when, rateWindow))
	r.perSecond += min(weight, 1) * (now - r.perSecond)
	r.when, r.done = when, done
	return r.perSecond
}
