package telemetry

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/config"
)

// TestNotify: the datagrams are those that sd_notify(3) describes.
func TestNotify(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	n := NewNotifier()
	for _, tc := range []struct {
		send func() error
		want string
	}{
		{func() error { return n.Ready("serving 2 exports") }, `^READY=1\nSTATUS=serving 2 exports$`},
		{n.Reloading, `^RELOADING=1\nMONOTONIC_USEC=[0-9]+$`},
		{n.Stopping, `^STOPPING=1\nSTATUS=draining$`},
	} {
		if err := tc.send(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 256)
		k, err := l.Read(b)
		if err != nil || !regexp.MustCompile(tc.want).Match(b[:k]) {
			t.Errorf("got %q, %v; want %s", b[:k], err, tc.want)
		}
	}
	if err := n.StoreFD("tcp.2049", int(os.Stdin.Fd())); err != nil {
		t.Fatal(err)
	}
	b, oob := make([]byte, 256), make([]byte, unix.CmsgSpace(4))
	k, ok, _, _, err := l.ReadMsgUnix(b, oob)
	if err != nil || string(b[:k]) != "FDSTORE=1\nFDNAME=tcp.2049\nFDPOLL=0" {
		t.Errorf("got %q, %v", b[:k], err)
	}
	if msgs, err := unix.ParseSocketControlMessage(oob[:ok]); err != nil || len(msgs) != 1 {
		t.Errorf("control messages %v, %v", msgs, err)
	} else if fds, err := unix.ParseUnixRights(&msgs[0]); err != nil || len(fds) != 1 {
		t.Errorf("descriptors %v, %v", fds, err)
	} else {
		_ = unix.Close(fds[0])
	}
	// A removal is over when the manager has seen it.
	removed := make(chan error, 1)
	go func() { removed <- n.RemoveFD("tcp.2049") }()
	for _, want := range []string{"FDSTOREREMOVE=1\nFDNAME=tcp.2049", "BARRIER=1"} {
		select {
		case err := <-removed:
			t.Fatalf("before %s was read: %v", want, err)
		default:
		}
		if k, err := l.Read(b); err != nil || string(b[:k]) != want { // what comes with it is closed
			t.Errorf("got %q, %v; want %q", b[:k], err, want)
		}
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	t.Setenv("WATCHDOG_USEC", "30000000")
	if d := n.WatchdogInterval(); d != 30*time.Second {
		t.Errorf("the watchdog waits %v", d)
	}
	t.Setenv("WATCHDOG_PID", "1")
	if d := n.WatchdogInterval(); d != 0 {
		t.Errorf("the watchdog of another process is ours: %v", d)
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if err := NewNotifier().Ready("x"); err != nil {
		t.Errorf("without a manager: %v", err)
	}
}

// TestSampled: lines with one message, as strangers can cause, do not fill the log, and are
// counted. Others are written.
func TestSampled(t *testing.T) {
	l, err := NewLog("warn", config.LogJSON)
	if err != nil {
		t.Fatal(err)
	}
	const lines = 5000
	for i := range lines {
		l.Slog("rpcrdma").Warn("connection refused", "peer", i)
	}
	l.Slog("rpcrdma").Warn("another message")
	got := strings.Count(string(l.Recent()), "connection refused")
	if got < sampleFirst || got > lines/4 || uint64(got)+l.Suppressed() != lines {
		t.Errorf("%d of %d lines were written, %d are said to be left out", got, lines, l.Suppressed())
	}
	if !strings.Contains(string(l.Recent()), "another message") {
		t.Error("another message was not written")
	}
}

func TestLevels(t *testing.T) {
	l, err := NewLog("warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	s := l.Slog("roce")
	if s.Enabled(t.Context(), 0) {
		t.Error("info is enabled at level warn")
	}
	if err := l.Level.UnmarshalText([]byte("debug")); err != nil || !s.Enabled(t.Context(), -4) {
		t.Errorf("debug is not enabled after the change: %v", err)
	}
	if _, err := NewLog("loud", "json"); err == nil {
		t.Error("level loud was accepted")
	}
}
