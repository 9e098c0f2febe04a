package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func (r *Run) path(name string) string { return filepath.Join(r.Dir, name) }

// keep copies what explains a failure.
func (r *Run) keep(to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	var names []string
	for _, pattern := range []string{"*.log", "*.pcap?", "share/*.dmesg", "share/keep.*", "share/did.*"} {
		found, err := filepath.Glob(r.path(pattern))
		if err != nil {
			return err
		}
		names = append(names, found...)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(name)), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// process is one that the run has started. It is the leader of its own group, so
// that its children end with it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// start starts a program in the run's namespace.
func (r *Run) start(name string, out *os.File, args ...string) (*process, error) {
	cmd := exec.Command("ip", append([]string{"netns", "exec", r.ns}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{out}
	// A test that is killed takes them along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal is bound to the thread, which must stay.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if err := cmd.Wait(); err != nil {
			p.err = fmt.Errorf("%s: %w", name, err)
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// stop ends the process and what it has started.
func (p *process) stop(sig syscall.Signal) error {
	defer func() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }()
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
		return p.err
	case <-time.After(15 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		return errors.New("did not end in 15 seconds")
	}
}

// until waits for a condition while a process lives.
func (r *Run) until(ctx context.Context, p *process, what string, f func() bool) error {
	var ended chan struct{}
	if p != nil {
		ended = p.done
	}
	for !f() {
		select {
		case <-ended:
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(p.err, errors.New(lastLines(r.log.Name(), 3))))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// output runs a command; a failure's output is part of the error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// lastLines are the last lines of a file that are not empty.
func lastLines(name string, n int) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
