package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestServerKilledDuringPut kills the server again and again while a large
// file is being stored; the client goes on and the file is whole.
func TestServerKilledDuringPut(t *testing.T) {
	long(t, "stores 512 MiB with restarts of the server")
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
			for range 512 {
				_, _ = rnd.Read(buf)
				if _, err := f.Write(buf); err != nil {
					t.Fatal(err)
				}
			}
			f.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
			defer cancel()
			put := exec.CommandContext(ctx, filepath.Join(binDir, "rstorectl"), "--control", d.control, "put", src, d.url(transport, "big"))
			out := &limited{}
			put.Stdout, put.Stderr = out, out
			if err := put.Start(); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- put.Wait() }()
			kills := 0
			for finished := false; !finished; {
				select {
				case err := <-done:
					if err != nil {
						t.Fatalf("put: %v\n%s", err, out.b)
					}
					finished = true
				case <-time.After(time.Duration(200+rand.IntN(300)) * time.Millisecond):
					if kills < 3 {
						d.stop(syscall.SIGKILL)
						kills++
						d.start()
					}
				}
			}
			if kills == 0 {
				t.Error("the put ended before the server could be killed once")
			}
			t.Logf("%d kills", kills)
			if sumFile(t, src) != sumFile(t, filepath.Join(d.export, "big")) {
				t.Error("the stored file differs from the source")
			}
		})
	}
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
