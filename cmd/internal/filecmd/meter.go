package filecmd

import (
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// meter shows the progress of a copy on a terminal. The total is not known
// before the walk has ended, so it counts up.
type meter struct {
	bar  *progressbar.ProgressBar
	what string
	at   atomic.Int64 // when the description was made, in nanoseconds since start
	from time.Time
}

// newMeter returns a meter on w, or nil if w is no terminal.
func newMeter(w io.Writer, what string) *meter {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &meter{what: what, from: time.Now(), bar: progressbar.NewOptions64(-1,
		progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what), progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSpinnerType(14),
		progressbar.OptionClearOnFinish(),
	)}
}

// describeEvery is how often the description is made again.
const describeEvery = time.Second

// add counts bytes; a negative number are some that have to be sent again. limits says what limits
// the copy. The display is a courtesy: its errors are nobody's.
func (m *meter) add(n int, limits func() string) {
	last, now := m.at.Load(), int64(time.Since(m.from))
	if now-last >= int64(describeEvery) && m.at.CompareAndSwap(last, now) {
		m.bar.Describe(m.what + ", " + limits())
	}
	_ = m.bar.Add(n)
}

// clear takes the meter off the terminal, for a message.
func (m *meter) clear() { _ = m.bar.Clear() }

// finish ends the display.
func (m *meter) finish() { _ = m.bar.Finish() }
