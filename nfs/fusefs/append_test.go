package fusefs

import (
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
