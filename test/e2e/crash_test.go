package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
)

// TestServerKilledDuringPut kills the server again and again while a large
// file is being stored; the client goes on and the file is whole.
func TestServerKilledDuringPut(t *testing.T) {
	const size = 384 << 20
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			d := newDaemon(t)
			src := filepath.Join(t.TempDir(), "big")
			f, err := os.Create(src)
			if err != nil {
				t.Fatal(err)
			}
			rnd := rand.NewChaCha8([32]byte{1})
			buf := make([]byte, 1<<20)
			for range size >> 20 {
				_, _ = rnd.Read(buf)
				if _, err := f.Write(buf); err != nil {
					t.Fatal(err)
				}
			}
			f.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
			defer cancel()
			put := exec.CommandContext(ctx, filepath.Join(binDir, "rstorectl"), "--control", d.control, "put", src,
				d.url(transport, "big"))
			out := &limited{}
			put.Stdout, put.Stderr = out, out
			if err := put.Start(); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- put.Wait() }()
			dst := filepath.Join(d.export, "big")
			for _, at := range []int64{size / 16, size / 4, size / 2} { // far enough from the end to come before it
				at += rand.Int64N(size / 8)
				for stored(dst) < at {
					select {
					case err := <-done:
						t.Fatalf("put ended with %d bytes stored: %v\n%s", stored(dst), err, out.b)
					case <-time.After(time.Millisecond):
					}
				}
				d.stop(syscall.SIGKILL)
				d.start()
			}
			if err := <-done; err != nil {
				t.Fatalf("put: %v\n%s", err, out.b)
			}
			if sumFile(t, src) != sumFile(t, dst) {
				t.Error("the stored file differs from the source")
			}
		})
	}
}

// stored gives the size in bytes of the named file, and 0 if it does not exist.
func stored(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}

type limited struct{ b []byte }

func (l *limited) Write(p []byte) (int, error) {
	if len(l.b) < 1<<16 {
		l.b = append(l.b, p...)
	}
	return len(p), nil
}

// TestExportSurvivesRestart: what rstorectl adds is still there after a kill.
func TestExportSurvivesRestart(t *testing.T) {
	d := newDaemon(t)
	more := t.TempDir()
	if err := os.WriteFile(filepath.Join(more, "hello"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.ctl("export", "add", more, "--pseudo", "/more")
	url := fmt.Sprintf("nfs+rdma://%s:20049/more/hello", d.addr)
	if got := d.ctl("cat", url); got != "hello\n" {
		t.Errorf("cat gave %q", got)
	}
	d.stop(syscall.SIGKILL)
	d.start()
	if got := d.ctl("cat", url); got != "hello\n" {
		t.Errorf("after a restart cat gave %q", got)
	}
	d.ctl("export", "remove", "/more")
	if _, _, err := d.try(30*time.Second, "cat", url); err == nil {
		t.Error("an export that was removed can still be read")
	}
}

// TestServerKilledDuringChanges kills the server while clients rename, make, link
// and remove without a pause. A change that was made and not answered before the
// kill is asked for again after it; done twice, it would be an error.
func TestServerKilledDuringChanges(t *testing.T) {
	for _, version := range []client.Version{client.Version3, client.Version41, client.Version42} {
		for _, transport := range []string{"rdma", "tcp"} {
			t.Run(fmt.Sprintf("%v/%s", version, transport), func(t *testing.T) { killedDuringChanges(t, version, transport) })
		}
	}
}

func killedDuringChanges(t *testing.T, version client.Version, transport string) {
	d := newDaemon(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := d.clientOf(version, transport)
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	const workers, kills = 8, 12
	stop := make(chan struct{})
	var rounds atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			name := func(s string) string { return fmt.Sprintf("%s-%d", s, w) }
			for {
				select {
				case <-stop:
					return
				default:
				}
				var f *client.Node
				for _, step := range []struct {
					what string
					do   func() error
				}{
					{"create", func() (err error) {
						f, err = c.Create(ctx, root.Handle, name("file"), blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
						return err
					}},
					{"create exclusively", func() error {
						_, err := c.Create(ctx, root.Handle, name("excl"), blockstore.Exclusive, &blockstore.SetAttr{},
							[8]byte{byte(rounds.Load()), byte(w), 1})
						return err
					}},
					{"rename", func() error { return c.Rename(ctx, root.Handle, name("file"), root.Handle, name("moved")) }},
					{"rename back", func() error { return c.Rename(ctx, root.Handle, name("moved"), root.Handle, name("file")) }},
					{"link", func() error { return c.Link(ctx, f.Handle, root.Handle, name("link")) }},
					{"mkdir", func() error {
						_, err := c.Mkdir(ctx, root.Handle, name("dir"), &blockstore.SetAttr{})
						return err
					}},
					{"symlink", func() error {
						_, err := c.Symlink(ctx, root.Handle, name("sym"), "target", &blockstore.SetAttr{})
						return err
					}},
					{"remove link", func() error { return c.Remove(ctx, root.Handle, name("link")) }},
					{"remove symlink", func() error { return c.Remove(ctx, root.Handle, name("sym")) }},
					{"remove what was created exclusively", func() error { return c.Remove(ctx, root.Handle, name("excl")) }},
					{"rmdir", func() error { return c.Rmdir(ctx, root.Handle, name("dir")) }},
					{"remove", func() error { return c.Remove(ctx, root.Handle, name("file")) }},
				} {
					if err := step.do(); err != nil {
						t.Errorf("client %d, round %d, %s: %v", w, rounds.Load(), step.what, err)
						return
					}
				}
				rounds.Add(1)
			}
		})
	}
	for range kills {
		time.Sleep(time.Duration(50+rand.IntN(150)) * time.Millisecond)
		d.stop(syscall.SIGKILL)
		d.start()
	}
	time.Sleep(100 * time.Millisecond)
	close(stop)
	wg.Wait()
	if left, err := os.ReadDir(d.export); err != nil || len(left) != 0 {
		t.Errorf("%d names are left, %v", len(left), err)
	}
	t.Logf("%d rounds, %d calls sent again", rounds.Load(), c.Stats().Resent)
	if c.Stats().Resent == 0 {
		t.Error("no call was in flight at any kill")
	}
}
