package filecmd

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// slowFS takes a while for each READ and WRITE.
type slowFS struct {
	blockstore.FS
	pause time.Duration
}

// ReadAt implements blockstore.FS.
func (s slowFS) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool, error) {
	time.Sleep(s.pause)
	return s.FS.ReadAt(c, h, p, off, nowait)
}

// WriteAt implements blockstore.FS.
func (s slowFS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int,
	blockstore.Stability, blockstore.Wcc, error,
) {
	time.Sleep(s.pause)
	return s.FS.WriteAt(c, h, p, off, how)
}

// TestSpent: the time of a copy goes to the calls while the server is slow, and to files of this
// host as well. Calls of an earlier copy over the same connection do not count.
func TestSpent(t *testing.T) {
	const pause, size = 20 * time.Millisecond, 3<<20 + 1
	r := newRig(t)
	r.store.FS = slowFS{r.store.FS, pause}
	for _, version := range []client.Version{client.Version3, client.Version42} {
		d := &dial.Dialer{Version: version}
		u := &run{tool: &tool{g: &cli.Globals{Err: &r.said, Quiet: true}}, ctx: context.Background(), dialer: d}
		src := r.write("src", random(size, 3), 0o644)
		back := filepath.Join(r.dir, "back")
		for _, c := range []struct{ from, to string }{{src, r.url + "/file"}, {r.url + "/file", back}} {
			dst, err := u.find(c.to, true, true)
			if err != nil {
				t.Fatal(err)
			}
			k, err := u.copyOne(c.from, dst, &copyFlags{jobs: 1}, true)
			if err != nil || u.failed > 0 {
				t.Fatal(err, r.said.String())
			}
			here, there := time.Duration(k.spent.here.Load()), k.spent.there()
			if there < 4*pause || here <= 0 || k.spent.shares() == "" {
				t.Errorf("%s: %v in files, %v in calls, %q", c.to, here, there, k.spent.shares())
			}
			if again := newSpent(k.src, k.dst); again.there() != 0 || again.shares() != "" {
				t.Errorf("a new copy begins with %v in calls", again.there())
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if s := shares(time.Second, 3*time.Second); s != "75 % of the time in calls, 25 % in files of this host" {
		t.Errorf("%q", s)
	}
}
