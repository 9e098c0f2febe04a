package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// TestUpgradeRemoved: a file that a client of version 4 has open, and that the host or another
// client removes, works until it is closed, over upgrades too, and then leaves no descriptor
// behind.
func TestUpgradeRemoved(t *testing.T) {
	d := newDaemon(t)
	t.Cleanup(func() {
		if _, pid := d.serving(); pid != d.cmd.Process.Pid {
			d.successor = pid
		}
	})
	one, two := d.clientOf(client.Version42, "rdma"), d.clientOf(client.Version41, "tcp")
	ctx := patient(t)
	open := func(name string) *client.File {
		t.Helper()
		made, err := two.CreateFile(ctx, name, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		if err := made.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := one.OpenShare(ctx, name, client.ShareRead|client.ShareWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	files := map[string]*client.File{"host": open("/data/host"), "client": open("/data/client")}
	works := func(when string) {
		t.Helper()
		for name, f := range files {
			if _, err := f.WriteAt([]byte(when), 0); err != nil {
				t.Errorf("%s, %s: write: %v", when, name, err)
			}
			if err := f.Sync(); err != nil {
				t.Errorf("%s, %s: sync: %v", when, name, err)
			}
			b := make([]byte, len(when))
			if _, err := f.ReadAt(b, 0); err != nil || string(b) != when {
				t.Errorf("%s, %s: read %q, %v", when, name, b, err)
			}
		}
	}
	works("open")
	if err := os.Remove(filepath.Join(d.export, "host")); err != nil {
		t.Fatal(err)
	}
	root, err := two.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if err := two.Remove(ctx, root.Handle, "client"); err != nil {
		t.Fatal(err)
	}
	works("removed")
	for range 2 {
		d.takeOver("upgrade")
		works("upgraded")
	}
	_, pid := d.serving()
	if open := deleted(t, pid, d.export); len(open) < len(files) {
		t.Errorf("of the files without a name only %q are open", open)
	}
	for name, f := range files {
		if err := f.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		if _, err := two.GetAttr(ctx, f.Node().Handle); !client.IsStatus(err, nfs.ErrStale) {
			t.Errorf("%s: closed: %v", name, err)
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := deleted(t, pid, d.export)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("descriptors are left: %q", left)
		}
	}
}

// deleted are the descriptors of a process that are of files below dir without a name.
func deleted(t *testing.T, pid int, dir string) (out []string) {
	t.Helper()
	list, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(list) == 0 {
		t.Fatalf("descriptors of process %d: %d, %v", pid, len(list), err)
	}
	for _, fd := range list {
		to, err := os.Readlink(fd)
		if err == nil && strings.HasPrefix(to, dir+"/") && strings.HasSuffix(to, " (deleted)") {
			out = append(out, to)
		}
	}
	return out
}
