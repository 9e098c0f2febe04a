package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
)

// version builds rstored as another version.
func version(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rstored")
	build := exec.Command("go", "build", "-C", "../..", "-ldflags",
		"-X github.com/rstored/rstored/cmd/internal/cli.version="+name, "-o", path, "./cmd/rstored")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building version %s: %v\n%s", name, err, out)
	}
	return path
}

// replace puts a program in place of another, as a package manager does.
func replace(t *testing.T, program, by string) {
	t.Helper()
	b, err := os.ReadFile(by)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program+".new", b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(program+".new", program); err != nil {
		t.Fatal(err)
	}
}

// serving is the version and the process that serve.
func (d *daemon) serving() (version string, pid int) {
	d.t.Helper()
	var s struct {
		Version string `json:"version"`
		PID     int    `json:"pid"`
	}
	if err := json.Unmarshal([]byte(d.ctl("-o", "json", "status")), &s); err != nil {
		d.t.Fatal(err)
	}
	return s.Version, s.PID
}

// takeOver is ctl for what has another process take over. On a slow host the calls in progress may
// need more time than there is for them: then nothing has changed, and it is tried again.
func (d *daemon) takeOver(args ...string) string {
	d.t.Helper()
	for n := 1; ; n++ {
		o, e, err := d.try(4*time.Minute, args...)
		if err == nil {
			return o
		}
		if n == 20 || !strings.Contains(e, "take too long") && !strings.Contains(e, "in the middle of messages") {
			d.t.Fatalf("rstorectl %s: %v\n%s%s", strings.Join(args, " "), err, tail(o, 2000), tail(e, 4000))
		}
		d.t.Logf("%s", e)
	}
}

// connections are those that the daemon has, with the times when they were made.
func (d *daemon) connections() map[string]time.Time {
	d.t.Helper()
	var list []struct {
		Address string    `json:"address"`
		Since   time.Time `json:"since"`
	}
	if err := json.Unmarshal([]byte(d.ctl("-o", "json", "clients")), &list); err != nil {
		d.t.Fatal(err)
	}
	out := make(map[string]time.Time)
	for _, c := range list {
		out[c.Address] = c.Since
	}
	return out
}

// TestUpgrade has two versions take over from each other, five times, while clients of versions 3
// and 4.2 write and read over RDMA and TCP: no connection is made anew, and what is read is what
// was written. A program that cannot take over leaves everything as it is.
func TestUpgrade(t *testing.T) {
	builds := map[string]string{"v1.1.1": version(t, "v1.1.1"), "v1.1.2": version(t, "v1.1.2")}
	program := filepath.Join(t.TempDir(), "rstored")
	replace(t, program, builds["v1.1.1"])
	d := newDaemonOf(t, program)
	t.Cleanup(func() {
		if _, pid := d.serving(); pid != d.cmd.Process.Pid {
			d.successor = pid
		}
	})

	var stop atomic.Bool
	var work sync.WaitGroup
	var rounds atomic.Int64
	for _, transport := range []string{"rdma", "tcp"} {
		for _, v := range []client.Version{client.Version3, client.Version42} {
			c := d.clientOf(v, transport)
			name := fmt.Sprintf("/data/%s-%v", transport, v)
			f, err := c.CreateFile(t.Context(), name, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			work.Go(func() {
				buf, got := make([]byte, 1<<20), make([]byte, 1<<20)
				rnd := rand.NewChaCha8([32]byte{byte(len(transport)), byte(v)})
				for !stop.Load() {
					n := 1 + int(rnd.Uint64()%uint64(len(buf)))
					_, _ = rnd.Read(buf[:n])
					off := int64(rnd.Uint64() % (4 << 20))
					if _, err := f.WriteAt(buf[:n], off); err != nil {
						t.Errorf("%s: writing: %v", name, err)
						return
					}
					if _, err := f.ReadAt(got[:n], off); err != nil || !bytes.Equal(got[:n], buf[:n]) {
						t.Errorf("%s: %d bytes at %d are not what was written (%v)", name, n, off, err)
						return
					}
					rounds.Add(1)
				}
			})
		}
	}
	defer work.Wait()
	defer stop.Store(true)

	before := d.connections()
	_, pid := d.serving()
	upgraded := func(want string) {
		t.Helper()
		v, now := d.serving()
		if v != want || now == pid {
			t.Fatalf("version %s, process %d serves; want %s, and not %d", v, now, want, pid)
		}
		pid = now
		// Those of before are there, as they were.
		after := d.connections()
		for a, since := range before {
			if !after[a].Equal(since) {
				t.Errorf("the connection of %s, made at %v, is of %v now", a, since, after[a])
			}
		}
	}
	settle := func() {
		for n := rounds.Load() + 20; rounds.Load() < n && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
	}
	for i, want := range []string{"v1.1.2", "v1.1.1", "v1.1.2", "v1.1.1", "v1.1.2"} {
		settle()
		replace(t, program, builds[want])
		if i%2 == 0 {
			out := d.takeOver("-o", "json", "upgrade")
			t.Logf("%s", strings.Join(strings.Fields(out), " "))
			var u struct {
				Old     string  `json:"old_version"`
				New     string  `json:"new_version"`
				Pause   float64 `json:"pause_ms"`
				RDMA    int     `json:"rdma_connections"`
				TCP     int     `json:"tcp_connections"`
				Dropped int     `json:"dropped_connections"`
			}
			if err := json.Unmarshal([]byte(out), &u); err != nil {
				t.Fatal(err)
			}
			if u.Dropped != 0 || u.RDMA+u.TCP != len(before) || !strings.HasPrefix(u.New, want) || u.Pause <= 0 {
				t.Errorf("%+v; there were %d connections", u, len(before))
			}
		} else {
			d.takeOver("reload")
		}
		upgraded(want)
	}

	t.Run("programs that cannot take over", func(t *testing.T) {
		v, pid := d.serving()
		for _, c := range []struct{ what, text, want string }{
			{"one that ends", "#!/bin/sh\nexit 1\n", "ended"},
			{"one of another kind", "no program at all", "exec format error"},
		} {
			settle()
			other := filepath.Join(t.TempDir(), "other")
			if err := os.WriteFile(other, []byte(c.text), 0o755); err != nil {
				t.Fatal(err)
			}
			replace(t, program, other)
			if _, text, err := d.try(time.Minute, "upgrade"); err == nil || !strings.Contains(text, c.want) ||
				!strings.Contains(text, v+" goes on") {
				t.Errorf("%s: %v, %s", c.what, err, text)
			}
			if now, p := d.serving(); now != v || p != pid {
				t.Errorf("%s: version %s, process %d serves", c.what, now, p)
			}
		}
		after := d.connections()
		for a, since := range before {
			if !after[a].Equal(since) {
				t.Errorf("the connection of %s, made at %v, is of %v now", a, since, after[a])
			}
		}
	})
	settle()
}

// TestUpgradeLimited upgrades while calls of clients over RDMA and TCP wait for their limits: those
// fail no upgrade, and no connection and no call is lost.
func TestUpgradeLimited(t *testing.T) {
	narrow := t.TempDir()
	d := newDaemon(t, "--export", narrow+"=/narrow(rw,no_root_squash,bandwidth=2M)")
	t.Cleanup(func() {
		if _, pid := d.serving(); pid != d.cmd.Process.Pid {
			d.successor = pid
		}
	})
	var stop atomic.Bool
	var work sync.WaitGroup
	var rounds [2]atomic.Int64
	for i, transport := range []string{"rdma", "tcp"} {
		c := d.client(transport)
		for j := range 3 { // half a second for each call
			f, err := c.CreateFile(t.Context(), fmt.Sprintf("/narrow/%s-%d", transport, j), 0o644)
			if err != nil {
				t.Fatal(err)
			}
			work.Go(func() {
				buf := bytes.Repeat([]byte{byte(j)}, 1<<20)
				for !stop.Load() {
					if _, err := f.WriteAt(buf, 0); err != nil {
						t.Errorf("%s: %v", transport, err)
						return
					}
					rounds[i].Add(1)
				}
			})
		}
	}
	defer work.Wait()
	defer stop.Store(true)
	before := d.connections()
	for waited := false; !waited && !t.Failed(); time.Sleep(time.Millisecond) {
		now := d.stats()
		over, _ := counter(now, "rpcrdma_waited_for_limit")
		paused, _ := counter(now, "tcp_paused")
		waited = over > 0 && paused > 0
	}
	_, was := d.serving()
	d.takeOver("upgrade")
	if _, now := d.serving(); now == was {
		t.Errorf("process %d serves as before", now)
	}
	after := d.connections()
	for a, since := range before {
		if !after[a].Equal(since) {
			t.Errorf("the connection of %s, made at %v, is of %v now", a, since, after[a])
		}
	}
	for i := range rounds {
		for n := rounds[i].Load() + 2; rounds[i].Load() < n && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
	}
}
