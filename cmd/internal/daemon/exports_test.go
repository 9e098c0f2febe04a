package daemon

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// speak makes a client of a version.
func speak(t *testing.T, cfg *config.Config, v client.Version) *client.Client {
	t.Helper()
	dial := func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, cfg.TCPListen[0]) }
	c := client.New(client.Config{Version: v, Cred: &rpc.Cred{Flavor: rpc.AuthSys}, Dial: dial})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestLiveRules changes the rules of mounts: they hold at the next call.
func TestLiveRules(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "exports")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	line := func(opts string) { write("# table\n" + dir + " *(insecure,no_root_squash," + opts + ")\n") }
	line("rw")
	cfg := testConfig(t, filepath.Join(t.TempDir())+"=/other")
	cfg.RDMAListen = nil
	own := cfg.Exports
	reread := func() (*config.Config, error) {
		list, warnings, err := config.ReadExports(file)
		if err != nil {
			return nil, err
		}
		next := *cfg
		next.Exports, next.Warnings = append(slices.Clone(own), list...), warnings
		return &next, nil
	}
	first, err := reread()
	if err != nil {
		t.Fatal(err)
	}
	d, _ := startDaemon(t, first)
	defer stopDaemon(t, d)
	d.Load = reread
	ctx := t.Context()
	for _, v := range []client.Version{client.Version3, client.Version42} {
		line("rw")
		if err := d.Reload(); err != nil {
			t.Fatal(err)
		}
		c := speak(t, cfg, v)
		root, err := c.Resolve(ctx, dir)
		if err != nil {
			t.Fatalf("%v: %v", v, err)
		}
		put := func(name string) error {
			h, err := c.Create(ctx, root.Handle, name, blockstore.Unchecked, &blockstore.SetAttr{}, [8]byte{})
			if err == nil {
				_, err = c.Write(ctx, h.Handle, []byte("x"), 0, blockstore.Unstable)
			}
			return err
		}
		if err := put("one"); err != nil {
			t.Fatalf("%v: %v", v, err)
		}
		line("ro")
		if err := d.Reload(); err != nil {
			t.Fatal(err)
		}
		if err := put("two"); !client.IsStatus(err, nfs.ErrROFS) {
			t.Errorf("%v: read-only, and a file is made: %v", v, err)
		}
		// A bad table changes nothing, and says its line.
		line("rw,nonsense")
		if err := d.Reload(); err == nil || !strings.Contains(err.Error(), file+":2: ") {
			t.Errorf("a bad table: %v", err)
		}
		if _, err := c.GetAttr(ctx, root.Handle); err != nil {
			t.Errorf("%v: after a bad table: %v", v, err)
		}
		line("rw,transport=rdma")
		if err := d.Reload(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.GetAttr(ctx, root.Handle); !client.IsStatus(err, nfs.ErrAcces) {
			t.Errorf("%v: without access: %v", v, err)
		}
	}
}

// TestNestedExports has exports and mounts below an export. It needs root, to mount.
func TestNestedExports(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	dir := t.TempDir()
	for _, p := range []string{"a/mnt", "a/plain", "sub/own"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mnt := filepath.Join(dir, "a/mnt")
	mountIt := func() {
		t.Helper()
		if err := unix.Mount("tmpfs", mnt, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("cannot mount: %v", err)
		}
		if err := os.WriteFile(filepath.Join(mnt, "inside"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mountIt()
	defer func() { _ = unix.Unmount(mnt, unix.MNT_DETACH) }()
	cfg := testConfig(t, dir+"=/top(crossmnt,no_root_squash)",
		filepath.Join(dir, "sub/own")+"=/top/sub/own(no_root_squash,fsid=4711)")
	cfg.RDMAListen = nil
	d, _ := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	if err := os.WriteFile(filepath.Join(dir, "sub/own/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, v := range []client.Version{client.Version3, client.Version42} {
		c := speak(t, cfg, v)
		seen := make(map[uint64]string)
		for _, p := range []string{"/top", "/top/a/mnt", "/top/sub/own"} {
			n, err := c.Resolve(ctx, "/top")
			for _, name := range strings.Split(strings.Trim(strings.TrimPrefix(p, "/top"), "/"), "/") {
				if name != "" && err == nil {
					n, err = c.Lookup(ctx, n.Handle, name)
				}
			}
			if err != nil {
				t.Errorf("%v: %s: %v", v, p, err)
				continue
			}
			a, err := c.GetAttr(ctx, n.Handle)
			if err != nil {
				t.Errorf("%v: %s: %v", v, p, err)
				continue
			}
			if o, twice := seen[a.FSID]; twice {
				t.Errorf("%v: %s and %s are one file system, %d", v, o, p, a.FSID)
			}
			seen[a.FSID] = p
		}
		if v == client.Version3 && seen[4711] != "/top/sub/own" {
			t.Errorf("%v: fsid: %v", v, seen)
		}
		if _, err := c.Resolve(ctx, "/top/a/mnt/inside"); err != nil {
			t.Errorf("%v: a file below a mount: %v", v, err)
		}
	}
	origin := func() string {
		for _, e := range d.Exports() {
			if e.Path == mnt {
				return e.Origin
			}
		}
		return ""
	}
	if got := origin(); got != control.OriginMount {
		t.Errorf("origin %q", got)
	}
	// What is unmounted goes away, and comes back, by itself.
	eventually := func(what, want string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); origin() != want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: origin %q", what, origin())
			}
		}
	}
	if err := unix.Unmount(mnt, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	eventually("unmounted", "")
	mountIt()
	eventually("mounted", control.OriginMount)
}
