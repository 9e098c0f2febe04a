// Command unit runs a service as systemd runs the unit of rstored, for tests of two nodes on a host
// whose systemd has one of them at most: it starts the service again after a failure, and keeps its
// listening sockets meanwhile (FileDescriptorStoreMax).
//
//	unit DIRECTORY PROGRAM [ARGUMENT...]
//
// DIRECTORY/pid has the number of the service's process. SIGTERM stops the service. The command ends
// when the service has ended without a failure, or by SIGTERM.
package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// restart is RestartSec of the drop-in in docs/ha.md.
const restart = 100 * time.Millisecond

// badConfig is RestartPreventExitStatus of the unit.
const badConfig = 78

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: unit DIRECTORY PROGRAM [ARGUMENT...]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "unit:", err)
		os.Exit(1)
	}
}

// store has the descriptors of the service, by their names.
type store struct {
	mu  sync.Mutex
	fds map[string]*os.File
}

func run(dir string, command []string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	name := filepath.Join(dir, "notify")
	_ = os.Remove(name)
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	s := &store{fds: make(map[string]*os.File)}
	go s.receive(l)
	var stopped atomic.Bool
	for {
		cmd := s.command(command, name)
		if err := cmd.Start(); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
			return err
		}
		ended := make(chan struct{})
		go func() {
			select {
			case <-stop:
				stopped.Store(true)
				_ = cmd.Process.Signal(syscall.SIGTERM)
			case <-ended:
			}
		}()
		err := cmd.Wait()
		close(ended)
		if code := cmd.ProcessState.ExitCode(); err == nil || stopped.Load() || code == badConfig {
			return nil
		}
		select {
		case <-stop:
			return nil
		case <-time.After(restart):
		}
	}
}

// command is the next process. A shell sets LISTEN_PID, which is its own number.
func (s *store) command(command []string, notify string) *exec.Cmd {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := exec.Command("sh", append([]string{"-c", `[ "$LISTEN_FDS" = 0 ] || export LISTEN_PID=$$; exec "$@"`, "sh"},
		command...)...)
	var names []string
	for name, f := range s.fds {
		names = append(names, name)
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify, "FDSTORE=512", fmt.Sprintf("LISTEN_FDS=%d", len(names)),
		"LISTEN_FDNAMES="+strings.Join(names, ":"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// receive carries out the messages of the service (sd_notify(3)).
func (s *store) receive(l *net.UnixConn) {
	b, oob := make([]byte, 64<<10), make([]byte, 4096)
	for {
		n, m, _, _, err := l.ReadMsgUnix(b, oob)
		if err != nil {
			return
		}
		var fds []int
		if list, err := syscall.ParseSocketControlMessage(oob[:m]); err == nil {
			for i := range list {
				got, _ := syscall.ParseUnixRights(&list[i])
				fds = append(fds, got...)
			}
		}
		said := make(map[string]string)
		for _, line := range strings.Split(string(b[:n]), "\n") {
			k, v, _ := strings.Cut(line, "=")
			said[k] = v
		}
		s.mu.Lock()
		if len(fds) == 1 && said["FDSTORE"] == "1" {
			syscall.CloseOnExec(fds[0])
			s.drop(said["FDNAME"])
			s.fds[said["FDNAME"]] = os.NewFile(uintptr(fds[0]), said["FDNAME"])
			fds = nil
		}
		if said["FDSTOREREMOVE"] == "1" {
			s.drop(said["FDNAME"])
		}
		s.mu.Unlock()
		for _, fd := range fds { // a barrier: its end is closed
			_ = syscall.Close(fd)
		}
	}
}

func (s *store) drop(name string) {
	if f := s.fds[name]; f != nil {
		_ = f.Close()
		delete(s.fds, name)
	}
}
