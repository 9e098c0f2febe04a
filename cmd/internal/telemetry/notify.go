package telemetry

import (
	"fmt"
	"net"
	"os"
	"strings"

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

// Stopping says that the daemon is draining.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1", "STATUS=draining") }

func (n *Notifier) send(lines ...string) error {
	if n.socket == "" {
		return nil
	}
	addr := n.socket
	if strings.HasPrefix(addr, "@") { // abstract namespace
		addr = "\x00" + addr[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addr, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_, err = c.Write([]byte(strings.Join(lines, "\n")))
	return err
}
