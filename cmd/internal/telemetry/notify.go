package telemetry

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Notifier reports to the service manager by the sd_notify protocol. Without
// one it does nothing.
type Notifier struct{ socket string }

// NewNotifier takes the manager's socket from the environment.
func NewNotifier() *Notifier { return &Notifier{socket: os.Getenv("NOTIFY_SOCKET")} }

// Ready says that the daemon serves, with a line for status displays.
func (n *Notifier) Ready(status string) error { return n.send("READY=1", "STATUS="+status) }

// Reloading says that a reload began; Ready ends it.
func (n *Notifier) Reloading() error {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return err
	}
	return n.send("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", ts.Nano()/1000))
}

// MainPID tells systemd which process is the main one. systemd then accepts messages of that one.
func (n *Notifier) MainPID(pid int) error { return n.send(fmt.Sprintf("MAINPID=%d", pid)) }

// Stopping says that the daemon is draining.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1", "STATUS=draining") }

// Status is a line for status displays.
func (n *Notifier) Status(status string) error { return n.send("STATUS=" + status) }

// Starting is Status for a start that goes on: the manager waits at least this much longer for
// Ready.
func (n *Notifier) Starting(status string, wait time.Duration) error {
	return n.send("STATUS="+status, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", wait.Microseconds()))
}

// PingWatchdog is what the manager waits for as often as WatchdogInterval says.
func (n *Notifier) PingWatchdog() error { return n.send("WATCHDOG=1") }

// WatchdogInterval is how long the manager waits for PingWatchdog before it ends the process; 0 is
// for ever.
func (n *Notifier) WatchdogInterval() time.Duration {
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	if err != nil || us <= 0 || n.socket == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

// Stores says whether the manager keeps descriptors. systemd 254 and later tell by a
// variable how many; without one nobody knows, and what is sent in vain is closed there.
func (n *Notifier) Stores() bool { return n.socket != "" && os.Getenv("FDSTORE") != "0" }

// StoreFD has the manager keep a copy of a descriptor for the next process. It is not
// watched for errors, as one of UDP has them and is good all the same.
func (n *Notifier) StoreFD(name string, fd int) error {
	return n.sendWith(unix.UnixRights(fd), "FDSTORE=1", "FDNAME="+name, "FDPOLL=0")
}

// RemoveFD has the manager close the descriptors of that name, and waits until it has: only then
// can their addresses be had again.
func (n *Notifier) RemoveFD(name string) error {
	if err := n.send("FDSTOREREMOVE=1", "FDNAME="+name); err != nil || n.socket == "" {
		return err
	}
	return n.barrier()
}

// barrierWait bounds the wait for the manager, in milliseconds.
const barrierWait = 2000

// barrier waits until the manager has processed all earlier messages: it then closes its end of the
// pipe that this message carries (sd_notify_barrier(3)).
func (n *Notifier) barrier() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer func() { _ = unix.Close(ends[0]) }()
	err := n.sendWith(unix.UnixRights(ends[1]), "BARRIER=1")
	_ = unix.Close(ends[1])
	if err != nil {
		return err
	}
	for {
		switch k, err := unix.Poll([]unix.PollFd{{Fd: int32(ends[0])}}, barrierWait); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case k == 0:
			return errors.New("the service manager does not answer")
		default:
			return nil
		}
	}
}

func (n *Notifier) send(lines ...string) error { return n.sendWith(nil, lines...) }

func (n *Notifier) sendWith(rights []byte, lines ...string) error {
	if n.socket == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	// A name that begins with @ is in the abstract namespace, here as in the variable.
	return unix.Sendmsg(fd, []byte(strings.Join(lines, "\n")), rights, &unix.SockaddrUnix{Name: n.socket},
		unix.MSG_NOSIGNAL)
}
