package fusefs

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// TestStableBeforeOthers: data is stable before another mount can write the same bytes. So a server
// that restarts is not sent it again over the other mount's data.
func TestStableBeforeOthers(t *testing.T) {
	lock := func(f *os.File, typ int16) error {
		return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: typ})
	}
	const size = 3 << 20 // several chunks
	for _, recall := range []bool{false, true} {
		s := newHost(t)
		plain := func(c *Config) { c.NoDelegations = !recall }
		a, b := s.mount("tcp", client.Version42, plain), s.mount("tcp", client.Version42, plain)
		must(t, os.WriteFile(b.path("f"), []byte("old"), 0o644))
		f, err := os.OpenFile(a.path("f"), os.O_RDWR, 0)
		must(t, err)
		if recall {
			must(t, f.Close())
			f = a.hasDelegation("f", os.O_RDWR)
		} else {
			must(t, lock(f, unix.F_WRLCK))
		}
		_, err = f.WriteAt(noise(1, size), 0)
		must(t, err)
		if !recall {
			must(t, lock(f, unix.F_UNLCK))
		}
		g, err := os.OpenFile(b.path("f"), os.O_RDWR, 0)
		must(t, err)
		if !recall {
			must(t, lock(g, unix.F_WRLCK))
		}
		want := noise(2, size)
		_, err = g.WriteAt(want, 0)
		must(t, err)
		must(t, g.Sync())
		s.stop()
		s.start()
		must(t, f.Close())
		holds(t, s.dir+"/f", want)
		_ = g.Close()
	}
}

// TestStableBeforeTruncate: a file that was truncated does not grow again when the server restarts.
func TestStableBeforeTruncate(t *testing.T) {
	for _, v := range []client.Version{client.Version3, client.Version42} {
		s := newHost(t)
		m := s.mount("tcp", v)
		f, err := os.Create(m.path("f"))
		must(t, err)
		data := noise(1, 3<<20)
		_, err = f.Write(data)
		must(t, err)
		_, err = f.Stat() // the server has it, unstable
		must(t, err)
		must(t, syscall.Ftruncate(int(f.Fd()), 10))
		s.stop()
		s.start()
		must(t, f.Close())
		holds(t, s.dir+"/f", data[:10])
	}
}
