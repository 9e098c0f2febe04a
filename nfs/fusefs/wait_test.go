package fusefs

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestFatal: signals that a program handles, ignores or blocks do not end it, nor do those that
// stop it.
func TestFatal(t *testing.T) {
	const none, names = "SigPnd:\t0000000000000000\n", "Name:\tx\nSigQ:\t1/95\n"
	for _, c := range []struct {
		what, status string
		want         bool
	}{
		{"nothing", names + none, false},
		{"SIGKILL", names + "SigPnd:\t0000000000000100\nSigCgt:\tfffffffe7fc1feff\n", true},
		{"SIGURG, handled", names + "SigPnd:\t0000000000400000\nSigCgt:\t0000000000400000\n", false},
		{"SIGINT, ignored", names + "ShdPnd:\t0000000000000002\nSigIgn:\t0000000000000002\n", false},
		{"SIGUSR1, blocked", names + "ShdPnd:\t0000000000000200\nSigBlk:\t0000000000000200\n", false},
		{"SIGQUIT", names + "ShdPnd:\t0000000000000004\nSigIgn:\t0000000000000002\n", true},
		{"SIGTSTP", names + "ShdPnd:\t0000000000080000\n", false},
	} {
		if got := fatal([]byte(c.status)); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// TestFatalToday: the kernel's file has the form that fatal reads.
func TestFatalToday(t *testing.T) {
	if dies(uint32(os.Getpid())) {
		t.Error("this process is not about to end")
	}
	if !dies(0) {
		t.Error("a thread that is not to be seen cannot be waited for")
	}
	// A process that is stopped keeps what it gets.
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(c.Process.Pid, nil, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	if dies(uint32(c.Process.Pid)) {
		t.Error("a process that is stopped is not about to end")
	}
	if err := c.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if !dies(uint32(c.Process.Pid)) {
		t.Error("a process with SIGQUIT is about to end")
	}
}
