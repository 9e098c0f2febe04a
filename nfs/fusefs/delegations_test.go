package fusefs

import (
	"bytes"
	"encoding/hex"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
)

// hasDelegation opens a file until the mount has its delegation: a server grants none before it
// knows that the client answers callbacks.
func (m *mounted) hasDelegation(name string, flags int) *os.File {
	m.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		f, err := os.OpenFile(m.path(name), flags, 0)
		must(m.t, err)
		if m.delegation(name) != nil {
			return f
		}
		must(m.t, f.Close())
		if time.Now().After(end) {
			m.t.Fatal("the server grants no delegation")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (m *mounted) delegation(name string) *client.Delegation {
	n := m.nodes.find(place{m.nodes.root.id, name})
	if n == nil {
		return nil
	}
	return m.c.Delegation(n.handle)
}

// overEach runs a test over each transport.
func overEach(t *testing.T, f func(t *testing.T, s *host, transport string)) {
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) { f(t, newHost(t), transport) })
	}
}

func holds(t *testing.T, name string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes instead of %d, %v", name, len(got), len(want), err)
	}
}

// TestDelegatedOpens: opens and attributes of a file that is delegated need no call, and another
// mount that writes recalls the delegation and is seen by the next open.
func TestDelegatedOpens(t *testing.T) {
	overEach(t, func(t *testing.T, s *host, transport string) {
		a := s.mount(transport, client.Version42, func(c *Config) { c.Times.RegMin, c.Times.RegMax = 0, 0 })
		b := s.mount("tcp", client.Version41)
		must(t, os.WriteFile(b.path("f"), []byte("one"), 0o644))
		must(t, a.hasDelegation("f", os.O_RDONLY).Close())
		holds(t, a.path("f"), []byte("one")) // the attributes are read once under the delegation
		local := a.Stats().Local
		for range 5 {
			f, err := os.Open(a.path("f"))
			must(t, err)
			_, err = f.Stat()
			must(t, err)
			must(t, f.Close())
		}
		if n := a.Stats().Local - local; n < 10 {
			t.Errorf("%d of 5 opens and 5 stats were answered here", n)
		}
		for _, data := range []string{"two", "", "four and more"} {
			must(t, os.WriteFile(b.path("f"), []byte(data), 0o644))
			holds(t, a.path("f"), []byte(data))
		}
		if n := a.c.Stats().Recalled; n != 1 {
			t.Errorf("%d delegations were recalled", n)
		}
	})
}

// TestDelegatedWrites: data that a mount has not sent is part of the size that another one sees,
// and is written back when another one reads the file.
func TestDelegatedWrites(t *testing.T) {
	overEach(t, func(t *testing.T, s *host, transport string) {
		a, b := s.mount(transport, client.Version42), s.mount("tcp", client.Version42)
		must(t, os.WriteFile(b.path("f"), []byte("old"), 0o644))
		f := a.hasDelegation("f", os.O_RDWR)
		if d := a.delegation("f"); !d.Write() {
			t.Fatal("it is for reading")
		}
		data := noise(5, 10_000)
		_, err := f.WriteAt(data, 0)
		must(t, err)
		if st, err := b.c.GetAttr(b.ctx, a.delegation("f").Handle()); err != nil || st.Size != uint64(len(data)) {
			t.Errorf("the other mount sees %d bytes, %v", st.Size, err)
		}
		holds(t, b.path("f"), data)
		if a.delegation("f") != nil {
			t.Error("the delegation was not returned")
		}
		_, err = f.WriteAt(data, int64(len(data)))
		must(t, err)
		must(t, f.Close())
		holds(t, b.path("f"), append(data, data...))
	})
}

// TestDelegatedMapping: pages that a program has changed through a shared mapping are written back
// when another mount reads the file.
func TestDelegatedMapping(t *testing.T) {
	if serveMapping(t) {
		return
	}
	s := newHost(t)
	a, b := s.mount("rdma", client.Version42), s.mount("tcp", client.Version42)
	want := make([]byte, 20_000)
	must(t, os.WriteFile(b.path("f"), want, 0o644))
	f := a.hasDelegation("f", os.O_RDWR)
	defer func() { _ = f.Close() }()
	mem := mapInChild(t, f, len(want))
	copy(want[9000:], "through the mapping")
	mem.ask("put 9000 " + hex.EncodeToString([]byte("through the mapping")))
	holds(t, b.path("f"), want)
	copy(want[9000:], "once more")
	mem.ask("put 9000 " + hex.EncodeToString([]byte("once more")))
	mem.ask("sync")
	must(t, f.Sync())
	holds(t, b.path("f"), want)
	mem.end()
}

// TestDelegatedNames: a file that is removed or replaced leaves nothing at the server that keeps
// its space. The attributes follow what this mount does to a file that it has the delegation of.
func TestDelegatedNames(t *testing.T) {
	s := newHost(t)
	a := s.mount("rdma", client.Version42)
	for _, name := range []string{"removed", "replaced", "linked"} {
		must(t, os.WriteFile(a.path(name), []byte(name), 0o644))
		must(t, a.hasDelegation(name, os.O_RDONLY).Close())
	}
	must(t, os.WriteFile(a.path("new"), []byte("new"), 0o644))
	must(t, os.Remove(a.path("removed")))
	must(t, os.Rename(a.path("new"), a.path("replaced")))
	links := func(want int) {
		t.Helper()
		var st syscall.Stat_t
		must(t, syscall.Stat(a.path("linked"), &st))
		if int(st.Nlink) != want {
			t.Errorf("%d links instead of %d", st.Nlink, want)
		}
	}
	links(1)
	must(t, os.Link(a.path("linked"), a.path("link")))
	links(2)
	must(t, os.Remove(a.path("link")))
	links(1)
	must(t, os.Chmod(a.path("linked"), 0o600))
	if info, err := os.Stat(a.path("linked")); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	waitFor(t, "the removed files to be closed", func() bool { return s.four.State().Counts().Opens <= 1 })
}

// TestDelegationRestart: a server that is killed gives the delegations back. What was written
// before and is cached still arrives, and what was made stable was there all the time.
func TestDelegationRestart(t *testing.T) {
	overEach(t, func(t *testing.T, s *host, transport string) {
		a := s.mount(transport, client.Version42)
		must(t, os.WriteFile(a.path("f"), nil, 0o644))
		f := a.hasDelegation("f", os.O_RDWR)
		stable, cached := noise(1, 5000), noise(2, 7000)
		_, err := f.Write(stable)
		must(t, err)
		must(t, f.Sync())
		_, err = f.Write(cached)
		must(t, err)
		s.stop()
		if got, err := os.ReadFile(s.dir + "/f"); err != nil || !bytes.HasPrefix(got, stable) {
			t.Errorf("fsync'ed data is not there: %d bytes, %v", len(got), err)
		}
		s.start()
		must(t, f.Close())
		holds(t, s.dir+"/f", append(stable, cached...))
		if st := a.c.Stats(); st.Redelegated != 1 || st.LostDelegations != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestDelegationRevoked: a mount whose state the server has ended loses its delegation. If another
// mount has changed the file since, what was cached is lost: fsync(2) fails with EIO, the log says
// so, and the other mount's data stays. If nobody has, it is written. The file works on in both
// cases.
func TestDelegationRevoked(t *testing.T) {
	for _, changed := range []bool{false, true} {
		s := newHost(t)
		var log lockedLog
		a := s.mount("tcp", client.Version42, func(c *Config) {
			c.Log, c.Times = slog.New(slog.NewTextHandler(&log, nil)), CacheTimes{}
		})
		b := s.mount("tcp", client.Version42)
		must(t, os.WriteFile(b.path("f"), []byte("old"), 0o644))
		f := a.hasDelegation("f", os.O_RDWR)
		_, err := f.WriteAt([]byte("dirty"), 0)
		must(t, err)
		s.evict()
		if changed {
			must(t, os.WriteFile(b.path("f"), []byte("another's"), 0o644))
			_, _ = os.Stat(a.path("f")) // looks the name up, which shows the other mount's version
			errno(t, f.Sync(), syscall.EIO)
			if text := log.String(); !strings.Contains(text, "data could not be written") {
				t.Errorf("the log says %q", text)
			}
			holds(t, s.dir+"/f", []byte("another's"))
		} else {
			must(t, f.Sync())
			holds(t, s.dir+"/f", []byte("dirty"))
		}
		_, err = f.WriteAt([]byte("more"), 0)
		must(t, err)
		must(t, f.Close())
		if changed {
			holds(t, b.path("f"), []byte("moreher's"))
		} else {
			holds(t, b.path("f"), []byte("morey"))
		}
	}
}

// evict ends the state of the clients that have delegations.
func (s *host) evict() {
	s.t.Helper()
	n := 0
	for _, c := range s.four.State().Clients(time.Now()) {
		if c.Delegations > 0 && s.four.State().Evict(c.ID) {
			n++
		}
	}
	if n != 1 {
		s.t.Fatalf("%d clients are evicted", n)
	}
}

// lockedLog is a log of a test.
type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
