package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMountProcessKilled: a service manager starts the process of a mount again after each kill. It
// mounts at the same place, over what the killed one left. Programs see ENOTCONN on what they had
// open, open it again, and go on. What fsync(2) has acknowledged is there.
func TestMountProcessKilled(t *testing.T) {
	d := newDaemon(t)
	d.mount("tcp", "") // skips without FUSE
	dir := t.TempDir()
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: t.TempDir() + "/notify", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = manager.Close() }()
	var cmd *exec.Cmd
	var said bytes.Buffer
	start := func() {
		t.Helper()
		said.Reset()
		cmd = exec.Command(filepath.Join(binDir, "rstorectl"), "mount", "--foreground", d.url("rdma", ""), dir)
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+manager.LocalAddr().String())
		cmd.Stderr = &said
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		msg := make([]byte, 1000)
		_ = manager.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := manager.Read(msg); err != nil || !strings.HasPrefix(string(msg[:n]), "READY=1") {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("the service manager hears %q, %v: %s", msg[:n], err, said.String())
		}
	}
	start()
	t.Cleanup(func() {
		_, _, _ = d.try(30*time.Second, "umount", "--force", dir)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})

	// The program writes records, and counts those that fsync has acknowledged.
	acked, reopened := make(chan int, 1000), 0
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var f *os.File
		for i := 0; ; {
			select {
			case <-stop:
				_ = f.Close()
				return
			default:
			}
			var err error
			if f == nil {
				if f, err = os.OpenFile(dir+"/records", os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
					f = nil
					time.Sleep(5 * time.Millisecond)
					continue
				}
			}
			if _, err = fmt.Fprintf(f, "%07d\n", i); err == nil {
				err = f.Sync()
			}
			if err == nil {
				i++
				acked <- i
				continue
			}
			// EIO: the kernel was handing the request to the process when it was killed.
			if !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.EIO) {
				t.Errorf("a program of a mount whose process was killed sees: %v", err)
			}
			_ = f.Close()
			f = nil
			reopened++
			// A record that was not acknowledged may be there or not.
			for f == nil {
				if f, err = os.OpenFile(dir+"/records", os.O_WRONLY, 0); err == nil {
					_, err = f.Seek(int64(i)*8, 0)
				}
				if err != nil {
					f = nil
					time.Sleep(5 * time.Millisecond)
				}
			}
		}
	}()
	last := 0
	for range 4 {
		for range 20 {
			last = <-acked
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		start()
	}
	for range 20 {
		last = <-acked
	}
	close(stop)
	<-ended
	for len(acked) > 0 {
		last = <-acked
	}
	if reopened == 0 {
		t.Error("no kill was noticed")
	}
	b, err := os.ReadFile(filepath.Join(d.export, "records"))
	if err != nil || len(b) < last*8 {
		t.Fatalf("%d bytes of %d records, %v", len(b), last, err)
	}
	for i := range last {
		if got := string(b[i*8:][:8]); got != fmt.Sprintf("%07d\n", i) {
			t.Fatalf("record %d is %q", i, got)
		}
	}
}
