package top

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/rstored/rstored/cmd/internal/live"
)

// Usable reports whether there is a terminal for Run.
func Usable(in, out *os.File) bool {
	kind := os.Getenv("TERM")
	return kind != "" && kind != "dumb" && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd()))
}

// Screen is top on a terminal.
type Screen struct {
	In, Out *os.File
	Fetch   Fetch
	Count   int // views to show; 0 is no end
	Model   *Model

	saved *term.State // nil: the terminal is as it was
}

// Control sequences: the alternate screen, no cursor, no line wrap; and back.
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// fetchTime bounds the time for an answer.
const fetchTime = 10 * time.Second

type fetched struct {
	sample *live.Sample
	err    error
}

// Run shows the server until a key, a signal, ctx, Count or a panic ends it. In every case it
// restores the terminal.
func (s *Screen) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(ends)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)

	if err := s.open(); err != nil {
		return err
	}
	defer s.close()

	// Run itself panics with the value of a panic in another goroutine, because Run restores the
	// terminal.
	panics := make(chan any, 1)
	guard := func(f func()) {
		defer func() {
			if r := recover(); r != nil {
				select {
				case panics <- fmt.Sprintf("%v\n%s", r, debug.Stack()):
				default:
				}
			}
		}()
		f()
	}
	pressed, hungUp := make(chan string), make(chan struct{})
	go guard(func() {
		defer close(hungUp)
		s.read(ctx, pressed)
	})
	answers := make(chan fetched, 1)
	ask := func() {
		go guard(func() {
			ctx, cancel := context.WithTimeout(ctx, fetchTime)
			defer cancel()
			sample, err := s.Fetch(ctx)
			answers <- fetched{sample, err}
		})
	}

	ask()
	asked, waiting := time.Now(), true // for an answer
	next := time.NewTimer(s.Model.Interval)
	defer next.Stop()
	var before *live.Sample
	views := 0
	for {
		if err := s.draw(); err != nil {
			return err
		}
		select {
		case k := <-pressed:
			was := s.Model.Interval
			if k == "ctrl-z" {
				if err := s.suspend(continued); err != nil {
					return err
				}
			} else if s.Model.Key(k) {
				return nil
			}
			if s.Model.Interval != was {
				next.Reset(time.Until(asked.Add(s.Model.Interval)))
			}
		case a := <-answers:
			waiting = false
			if a.err != nil {
				s.Model.Fail(a.err)
				break
			}
			s.Model.Show(live.Between(before, a.sample))
			if before != nil {
				views++
			}
			before = a.sample
			if s.Count > 0 && views == s.Count {
				return s.draw()
			}
		case <-next.C:
			if !waiting {
				ask()
				asked, waiting = time.Now(), true
			}
			next.Reset(s.Model.Interval)
		case <-resized:
			s.measure()
		case <-hungUp: // the terminal is gone
			return nil
		case p := <-panics:
			panic(p)
		case sig := <-ends:
			s.close()
			signal.Reset(sig)
			if n, ok := sig.(syscall.Signal); ok {
				_ = syscall.Kill(syscall.Getpid(), n) // so that the parent sees the cause
			}
			select { // the process goes on here only if the signal is ignored
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			return fmt.Errorf("ended by a signal: %v", sig)
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Screen) open() error {
	saved, err := term.MakeRaw(int(s.In.Fd()))
	if err != nil {
		return err
	}
	s.saved = saved
	s.measure()
	_, err = s.Out.WriteString(enter)
	return err
}

// close restores the terminal. It may be called more than once.
func (s *Screen) close() {
	if s.saved == nil {
		return
	}
	_, _ = s.Out.WriteString(leave) // an error means that the terminal is gone
	_ = term.Restore(int(s.In.Fd()), s.saved)
	s.saved = nil
}

// suspend gives the terminal to the shell until the shell continues the process.
func (s *Screen) suspend(continued <-chan os.Signal) error {
	s.close()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTSTP); err != nil {
		return err
	}
	// A process whose parent has no job control is not stopped.
	select {
	case <-continued:
	case <-time.After(time.Second / 2):
	}
	return s.open()
}

func (s *Screen) measure() {
	if w, h, err := term.GetSize(int(s.Out.Fd())); err == nil && w > 0 && h > 0 {
		s.Model.Width, s.Model.Height = w, h
	}
}

// draw writes the whole screen at once, each line over what was there.
func (s *Screen) draw() error {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for _, l := range s.Model.Lines() {
		b.WriteString(l + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J")
	_, err := s.Out.WriteString(b.String())
	return err
}

// read sends what is typed, until the terminal is gone or ctx ends.
func (s *Screen) read(ctx context.Context, pressed chan<- string) {
	buf := make([]byte, 256)
	for {
		n, err := s.In.Read(buf)
		for _, k := range keys(buf[:n]) {
			select {
			case pressed <- k:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

var sequences = map[string]string{
	"[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
	"[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
	"[5~": "page-up", "[6~": "page-down", "[Z": "shift-tab",
}

// keys splits one read from the terminal into the names of keys. It leaves out sequences that have
// no name here.
func keys(b []byte) (out []string) {
	for len(b) > 0 {
		switch c := b[0]; {
		case c == 0x1b:
			n := sequence(b[1:])
			if n == 0 {
				out = append(out, "esc")
			} else if k := sequences[string(b[1:1+n])]; k != "" {
				out = append(out, k)
			}
			b = b[1+n:]
			continue
		case c == '\t':
			out = append(out, "tab")
		case c == '\r', c == '\n':
			out = append(out, "enter")
		case c == 0x7f, c == '\b':
			out = append(out, "backspace")
		case c < ' ':
			out = append(out, "ctrl-"+string('a'+rune(c)-1))
		default:
			r, n := utf8.DecodeRune(b)
			if r != utf8.RuneError {
				out = append(out, string(r))
			}
			b = b[n:]
			continue
		}
		b = b[1:]
	}
	return out
}

// sequence is the length of the control sequence that follows ESC; 0 is none (ECMA-48 section 5.4).
func sequence(b []byte) int {
	if len(b) < 2 || b[0] != '[' && b[0] != 'O' {
		return 0
	}
	for i := 1; i < len(b); i++ {
		switch {
		case b[i] >= 0x40 && b[i] <= 0x7e:
			return i + 1
		case b[i] < ' ': // a control character ends an incomplete sequence
			return i
		}
	}
	return len(b)
}
