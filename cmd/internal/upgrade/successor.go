package upgrade

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/handover"
	"golang.org/x/sys/unix"
)

// Successor is the new process, as the old one sees it. The old process owns it: it must call Kill
// or Release.
type Successor struct {
	conn channel
	cmd  *exec.Cmd     // nil on another node
	end  chan struct{} // closed when it has ended
}

// channel is a connection between the two processes.
type channel interface {
	Send(*handover.Part) error
	Receive() (*handover.Part, error)
	SetDeadline(time.Time) error
	Close() error
}

// OnNode is a process on another node, by a connection that the Successor owns from then on. Kill
// closes the connection and leaves the process alone.
func OnNode(conn channel) *Successor { return &Successor{conn: conn} }

// Spawn starts the executable at path as this process was started.
func Spawn(path string) (*Successor, error) {
	conn, theirs, err := handover.Pair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }()
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		// The watchdog watches whichever process is the main one.
		return strings.HasPrefix(v, "WATCHDOG_PID=") || strings.HasPrefix(v, handover.Variable+"=")
	})
	const extra = 3 // the first of ExtraFiles
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", handover.Variable, extra))
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	s := &Successor{conn: conn, cmd: cmd, end: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(s.end)
	}()
	return s, nil
}

// Kill ends the process, and returns when it has ended.
func (s *Successor) Kill() error {
	if s.cmd == nil {
		return s.conn.Close()
	}
	_ = s.cmd.Process.Kill() // it may have ended by itself
	<-s.end
	return s.conn.Close()
}

// Release closes the connection to a process that serves, and leaves the process alone.
func (s *Successor) Release() { _ = s.conn.Close() }

// Await receives one word and its value, within a time.
func (s *Successor) Await(word string, within time.Duration, v any) error {
	if err := s.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	p, err := s.conn.Receive()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it did not answer within %v", within)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET),
		errors.Is(err, unix.EPIPE):
		return errors.New("it ended; its error is in the log")
	case err != nil:
		return err
	}
	p.Close()
	switch {
	case p.Name == wordError:
		return errors.New(string(p.Data))
	case p.Name != word:
		return fmt.Errorf("it said %q instead of %q", p.Name, word)
	case v != nil:
		return Decode(p, v)
	}
	return nil
}

// Prepare waits until the process has done what it can do while this one serves.
func (s *Successor) Prepare(within time.Duration, say Hello) (got Restored, err error) {
	data, err := Encode(say)
	if err != nil {
		return got, err
	}
	if err := s.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return got, err
	}
	if err := s.conn.Send(&handover.Part{Name: WordHello, Version: WordVersion, Data: data}); err != nil {
		return got, errors.New("it ended, or it is not an rstored that can take over; its error is in the log")
	}
	err = s.Await(WordPrepared, within, &got)
	return got, err
}

// PID is the number of the process.
func (s *Successor) PID() int { return s.cmd.Process.Pid }

// HandOver sends the parts of frozen components, and returns when the process has restored them.
func (s *Successor) HandOver(components []Component, within time.Duration) (got Restored, err error) {
	if err := s.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return got, err
	}
	var parts Parts
	defer parts.close()
	for _, r := range components {
		r.Snapshot(&parts)
	}
	if parts.err != nil {
		return got, parts.err
	}
	for _, p := range append(parts.list, &handover.Part{Name: WordRestore}) {
		if err := s.conn.Send(p); err != nil {
			// The process may have sent why it ended.
			return got, fmt.Errorf("the new process takes nothing over: %w",
				cmp.Or(s.Await(WordRestored, time.Second, nil), err))
		}
	}
	if err := s.Await(WordRestored, within, &got); err != nil {
		return got, fmt.Errorf("the new process cannot take over: %w", err)
	}
	return got, nil
}

// Go lets the process serve. From here on this process must not.
func (s *Successor) Go() error { return s.conn.Send(&handover.Part{Name: WordGo}) }
