package fusefs

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// TestAppend: two mounts append to a file in turns. The one opens the file each time. The other has
// it open all the time, and locks it. Both have attributes cached for an hour.
func TestAppend(t *testing.T) {
	hour := func(c *Config) { c.Times = CacheTimes{time.Hour, time.Hour, time.Hour, time.Hour} }
	each(t, func(t *testing.T, s *host, m *mounted) {
		other := s.mount("tcp", m.c.Version(), hour)
		const flags = os.O_WRONLY | os.O_APPEND | os.O_CREATE
		var open [2]*os.File
		if m.c.Version() != client.Version3 {
			for i, m := range []*mounted{m, other} {
				f, err := os.OpenFile(m.path("f"), flags, 0o644)
				must(t, err)
				defer func() { must(t, f.Close()) }()
				open[i] = f
			}
		}
		var want strings.Builder
		for i := range 40 {
			line := fmt.Sprintf("%d %s\n", i, strings.Repeat("x", i*i*i))
			m, f, lock := []*mounted{m, other}[i%2], open[i%2], unix.Flock_t{Type: unix.F_WRLCK}
			if f == nil || i%5 == 0 {
				f, err := os.OpenFile(m.path("f"), flags, 0o644)
				must(t, err)
				_, err = f.WriteString(line)
				must(t, err)
				must(t, f.Close())
			} else {
				must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &lock))
				_, err := f.WriteString(line)
				must(t, err)
				lock.Type = unix.F_UNLCK
				must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &lock))
			}
			want.WriteString(line)
		}
		b, err := os.ReadFile(s.dir + "/f")
		must(t, err)
		if string(b) != want.String() {
			t.Errorf("%d bytes instead of %d, or others", len(b), want.Len())
		}
	})
}

// TestAppendAfterRead: a mount that has read a file appends to it after another mount has appended.
// What it reads then, and what a shared mapping of it shows, is what the server has.
func TestAppendAfterRead(t *testing.T) {
	if serveMapping(t) {
		return
	}
	two(t, func(t *testing.T, s *host, a, b *mounted) {
		want := noise(1, 1000)
		must(t, os.WriteFile(a.path("f"), want, 0o644))
		for i := range 3 {
			holds(t, a.path("f"), want)
			for j, m := range []*mounted{b, a} {
				f, err := os.OpenFile(m.path("f"), os.O_RDWR|os.O_APPEND, 0)
				must(t, err)
				line := noise(byte(10*i+j), 500)
				_, err = f.Write(line)
				must(t, err)
				want = append(want, line...)
				got := make([]byte, len(want))
				if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Errorf("round %d: other bytes than those of the server, %v", i, err)
				}
				mem := mapInChild(t, f, len(want))
				if mem.ask("sum") != hash(want) {
					t.Errorf("round %d: other bytes in the mapping", i)
				}
				mem.ask("put 0 " + hex.EncodeToString(want[:1])) // the whole page is written
				mem.end()
				must(t, f.Close())
			}
			holds(t, s.dir+"/f", want)
		}
	})
}

// TestCacheDropped: until the kernel has used an open(2) that drops what it has cached of a file,
// no other one keeps it.
func TestCacheDropped(t *testing.T) {
	n := &node{}
	n.changes.Add(1)
	first, second := &file{n: n, drops: n.changes.Load()}, &file{n: n}
	second.used()
	if n.kept() {
		t.Error("kept before the kernel has dropped it")
	}
	first.used()
	if !n.kept() {
		t.Error("dropped twice")
	}
	n.changes.Add(1)
	first.used()
	if n.kept() {
		t.Error("the drop of an older version counts")
	}
}
