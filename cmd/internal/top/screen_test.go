package top

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/live"
)

// TestPanic: the terminal is put back when what asks the server panics, and the panic is not lost.
func TestPanic(t *testing.T) {
	host, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	n, err := unix.IoctlGetInt(int(host.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(host.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	line, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	t.Setenv("TERM", "xterm")
	if !Usable(line, line) || Usable(line, host) != Usable(host, line) {
		t.Error("a terminal that is none")
	}
	before, err := unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewModel("", "")
	if err != nil {
		t.Fatal(err)
	}
	raw := false
	s := &Screen{In: line, Out: line, Model: m, Fetch: func(context.Context) (*live.Sample, error) {
		now, err := unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
		raw = err == nil && *now != *before
		panic("no such luck")
	}}
	said := func() (r any) {
		defer func() { r = recover() }()
		return s.Run(t.Context())
	}()
	if !strings.Contains(fmt.Sprint(said), "no such luck") || !strings.Contains(fmt.Sprint(said), "screen_test.go") {
		t.Errorf("Run ends with %v", said)
	}
	after, err := unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	if err != nil || *after != *before || !raw {
		t.Errorf("the terminal: %+v, was %+v; %v, raw before %v", after, before, err, raw)
	}
	buf := make([]byte, 1<<16)
	got := ""
	for !strings.Contains(got, leave) {
		k, err := host.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got += string(buf[:k])
	}
	if !strings.HasPrefix(got, enter) {
		t.Errorf("%q", got)
	}
}
