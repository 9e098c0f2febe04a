package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal with a program on it.
type terminal struct {
	t      *testing.T
	host   *os.File // our end
	line   *os.File // the program's
	before *unix.Termios
	cmd    *exec.Cmd
	exited chan error

	mu   sync.Mutex
	text bytes.Buffer // all that was written
}

func newTerminal(t *testing.T, width, height int, name string, args ...string) *terminal {
	t.Helper()
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	host, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	fail(err)
	t.Cleanup(func() { host.Close() })
	n, err := unix.IoctlGetInt(int(host.Fd()), unix.TIOCGPTN)
	fail(err)
	fail(unix.IoctlSetPointerInt(int(host.Fd()), unix.TIOCSPTLCK, 0))
	line, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	fail(err)
	t.Cleanup(func() { line.Close() })
	p := &terminal{t: t, host: host, line: line, exited: make(chan error, 1)}
	p.size(width, height)
	p.before, err = unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	fail(err)
	p.cmd = exec.Command(name, args...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = line, line, line
	p.cmd.Env = append(os.Environ(), "TERM=xterm")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	fail(p.cmd.Start())
	go func() { p.exited <- p.cmd.Wait() }()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := host.Read(buf)
			p.mu.Lock()
			p.text.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *terminal) size(width, height int) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.host.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Col: uint16(width), Row: uint16(height)}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *terminal) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

var styles = regexp.MustCompile(`\x1b\[[0-9;]*[mK]`)

// screen is the last whole screen, without styles.
func (p *terminal) screen() string {
	text := p.all()
	end := strings.LastIndex(text, "\x1b[J")
	if end < 0 {
		return ""
	}
	begin := strings.LastIndex(text[:end], "\x1b[H")
	return strings.ReplaceAll(styles.ReplaceAllString(text[max(begin, 0):end], ""), "\r\n", "\n")[len("\x1b[H"):]
}

func (p *terminal) press(keys string) {
	p.t.Helper()
	if _, err := p.host.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits until the screen is as it should be.
func (p *terminal) wait(what string, ok func(screen string) bool) {
	p.t.Helper()
	for until := time.Now().Add(60 * time.Second); !ok(p.screen()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			p.t.Fatalf("%s: the screen stays\n%s", what, p.screen())
		}
	}
}

func (p *terminal) shows(pattern string) {
	p.t.Helper()
	p.wait(pattern, regexp.MustCompile(pattern).MatchString)
}

// ended waits for the end, and sees that the terminal is as it was.
func (p *terminal) ended() error {
	p.t.Helper()
	var err error
	select {
	case err = <-p.exited:
	case <-time.After(60 * time.Second):
		_ = p.cmd.Process.Kill()
		p.t.Fatalf("no end; the screen:\n%s", p.screen())
	}
	after, terr := unix.IoctlGetTermios(int(p.line.Fd()), unix.TCGETS)
	if terr != nil || *after != *p.before {
		p.t.Errorf("the terminal is not as it was: %+v, was %+v; %v", after, p.before, terr)
	}
	const leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	for until := time.Now().Add(10 * time.Second); !strings.Contains(p.all(), leave); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			p.t.Errorf("the screen is not left: %q", tail(p.all(), 200))
			break
		}
	}
	return err
}

// TestTop: rstorectl top on a terminal, beside clients at work.
func TestTop(t *testing.T) {
	d := newDaemon(t)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer func() {
		stop()
		work.Wait()
	}()
	for _, transport := range []string{"rdma", "tcp"} {
		c := d.client(transport)
		f, err := c.CreateFile(ctx, "/data/"+transport, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			buf := make([]byte, 128<<10)
			for ctx.Err() == nil {
				_, err := f.WriteAt(buf, 0)
				if err == nil {
					_, err = f.ReadAt(buf, 0)
				}
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
				select { // leave something to the others
				case <-ctx.Done():
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
	}

	p := newTerminal(t, 100, 30, filepath.Join(binDir, "rstorectl"), "--control", d.control, "top", "-d", "200ms")
	const rate = `[0-9.]*[1-9][0-9.]*`
	p.shows(`(?s)every 200ms\ncalls ` + rate + `/s  in ` + rate + ` MB/s  out ` + rate + ` MB/s  mean ` + rate +
		`[um]s.*connections 1 rdma, 1 tcp`)
	p.shows(`(?m)^127\.\S+ +rdma +` + rate + ` +` + rate + ` +` + rate + ` +` + rate + `[um]?s`)
	p.shows(`(?m)^127\.\S+ +tcp +` + rate)
	p.press("2")
	p.shows(`(?m)^/data +write +rdma +` + rate + ` +` + rate + ` +0\.\d`)
	p.press("\t")
	p.shows(`(?m)^nfs3\.READ +tcp +` + rate + ` +\S+ +` + rate)
	p.press("\x1b[D\x1b[D") // from OPS/S to the names
	p.wait("sorted by name", func(s string) bool {
		i, j := strings.Index(s, "\nnfs3.READ "), strings.Index(s, "\nnfs3.WRITE ")
		return i >= 0 && i < j
	})
	p.press("r")
	p.wait("the other way round", func(s string) bool {
		i, j := strings.Index(s, "\nnfs3.READ "), strings.Index(s, "\nnfs3.WRITE ")
		return j >= 0 && j < i
	})
	p.press("/write\r")
	p.wait("rows with a word", func(s string) bool {
		return strings.Contains(s, "/write\n") && strings.Contains(s, "nfs3.WRITE") && !strings.Contains(s, "nfs3.READ")
	})
	p.press("\x1b4")
	p.shows(`(?m)^127\.\S+ +0x[0-9a-f]+ +RTS +\d+ +` + rate + ` +` + rate + ` +` + rate)
	p.size(60, 12)
	p.wait("a smaller screen", func(s string) bool {
		lines := strings.Split(s, "\n")
		wide := 0
		for _, l := range lines {
			wide = max(wide, len(l))
		}
		return len(lines) <= 12 && wide == 60
	})
	p.press("p")
	p.shows(`paused`)
	p.press("?")
	p.shows(`Left Right`)
	p.press("\x1a") // its parent knows no jobs, so that it comes back by itself
	p.wait("left and entered again", func(s string) bool {
		return strings.Count(p.all(), "\x1b[?1049h") == 2 && strings.Contains(s, "paused")
	})
	p.press("q")
	if err := p.ended(); err != nil {
		t.Errorf("the end: %v", err)
	}

	// Without a terminal: text, and as many reports as were asked for.
	out := d.ctl("top", "-n", "2", "-d", "300ms")
	if n := strings.Count(out, "rstored on "); n != 2 || strings.Contains(out, "\x1b") ||
		!regexp.MustCompile(`(?m)^nfs3\.WRITE +rdma +`+rate).MatchString(out) {
		t.Errorf("%d reports:\n%s", n, out)
	}
	var v struct {
		Total struct {
			Out float64 `json:"out_bytes_per_second"`
		}
		QPs []struct{ State string }
	}
	if err := json.Unmarshal([]byte(d.ctl("top", "--json", "-n", "1", "-d", "300ms")), &v); err != nil ||
		v.Total.Out < 1000 || len(v.QPs) == 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestTopRestart: a server that goes away and comes back, and a signal while it is watched.
func TestTopRestart(t *testing.T) {
	d := newDaemon(t)
	p := newTerminal(t, 80, 24, filepath.Join(binDir, "rstorectl"), "--control", d.control, "top", "-d", "100ms")
	p.shows(`every 100ms`)
	d.stop(syscall.SIGTERM)
	p.shows(`no answer: no rstored answers at`)
	d.start()
	p.wait("it answers again", func(s string) bool {
		return strings.Contains(s, "every 100ms") &&
			!strings.Contains(s, "no answer")
	})
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.ended(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("the end: %v", err)
	}
}
