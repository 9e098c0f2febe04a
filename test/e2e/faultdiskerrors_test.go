package e2e

import (
	"bytes"
	"errors"
	"fmt"
	iofs "io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// mount puts it over a directory for the time of the test.
func (s *sick) mount(t *testing.T, dir string) {
	root := &fs.LoopbackRoot{Path: t.TempDir()}
	root.RootNode = &sickNode{fs.LoopbackNode{RootData: root}, s}
	server, err := fs.Mount(dir, root.RootNode, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, AllowOther: true, FsName: "rstored-test",
	}})
	if err != nil {
		t.Skipf("a file system in user space: %v", err)
	}
	t.Cleanup(func() {
		unmount(t, dir)
		server.Wait()
	})
}

// TestFaultDiskErrors: EIO of READ, WRITE and sync is told to who asked, as often as it
// happens, a failed sync changes the verifier, so that nobody takes his data for stored,
// and it is over when the disk is well again.
func TestFaultDiskErrors(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		var s sick
		d := newDaemonOn(t, func(d *daemon) { s.mount(t, d.export) })
		c := d.client(transport)
		h := file(t, c, "f")
		block := bytes.Repeat([]byte("rstored "), 8<<10)
		w, err := c.Write(patient(t), h, block, 0, blockstore.Unstable)
		if err != nil {
			t.Fatal(err)
		}
		verifier := w.Verifier
		if v, err := c.Commit(patient(t), h, 0, 0); err != nil || v != verifier {
			t.Fatalf("COMMIT of a disk that is well: %v, same verifier %v", err, v == verifier)
		}
		got := make([]byte, len(block))

		s.read.Store(true)
		for range 2 {
			if _, _, err := c.Read(patient(t), h, got, 0); !errors.Is(err, blockstore.ErrIO) {
				t.Errorf("READ: %v", err)
			}
		}
		s.read.Store(false)
		if n, _, err := c.Read(patient(t), h, got, 0); err != nil || !bytes.Equal(got[:n], block[:n]) {
			t.Errorf("READ of a disk that is well again: %v", err)
		}

		s.write.Store(true)
		for _, how := range []blockstore.Stability{blockstore.Unstable, blockstore.FileSync} {
			if _, err := c.Write(patient(t), h, block, 0, how); !errors.Is(err, blockstore.ErrIO) {
				t.Errorf("WRITE, stability %v: %v", how, err)
			}
		}
		s.write.Store(false)

		if w, err = c.Write(patient(t), h, block, 0, blockstore.Unstable); err != nil {
			t.Fatal(err)
		}
		verifier = w.Verifier
		s.sync.Store(true)
		if v, err := c.Commit(patient(t), h, 0, 0); !errors.Is(err, blockstore.ErrIO) {
			t.Errorf("COMMIT: %v, %x", err, v)
		}
		if _, err := c.Write(patient(t), h, block, 0, blockstore.FileSync); !errors.Is(err, blockstore.ErrIO) {
			t.Errorf("stable WRITE: %v", err)
		}
		s.sync.Store(false)
		v, err := c.Commit(patient(t), h, 0, 0)
		if err != nil || v == verifier {
			t.Errorf("COMMIT after one that failed: %v, the verifier says that nothing was lost: %v", err, v == verifier)
		}
		d.logged("the file system of an export fails")
		d.logged("a sync to disk failed; the write verifier was changed")
	})
}

// TestFaultConfig: a configuration or an export table that is broken changes nothing while the
// daemon runs, and keeps it from starting, and either says the line.
func TestFaultConfig(t *testing.T) {
	dir := t.TempDir()
	conf, table := filepath.Join(dir, "rstored.yaml"), filepath.Join(dir, "exports")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	good := "exports_file: " + table + "\nlog_level: info\n"
	write(conf, good)
	write(table, dir+" *(ro)\n")
	d := newDaemon(t, "--config", conf)
	c := d.client("rdma")
	h := file(t, c, "f")
	for _, bad := range []struct{ name, file, text, says string }{
		{"setting", conf, good + "no_such_setting: 1\n", "no_such_setting"},
		{"yaml", conf, good + "\tlog_level: [\n", "this is not YAML"},
		{"value", conf, "exports_file: " + table + "\nlog_level: loud\n", "loud"},
		{"option", table, dir + " *(ro)\n/srv *(rw,no_such_option)\n", table + ":2"},
		{"empty", conf, "", ""}, // nothing wrong with that one: what it had is gone
	} {
		t.Run(bad.name, func(t *testing.T) {
			was, err := os.ReadFile(bad.file)
			if err != nil {
				t.Fatal(err)
			}
			defer write(bad.file, string(was))
			before := d.ctl("export", "list")
			write(bad.file, bad.text)
			_, said, err := d.try(20*time.Second, "reload")
			if bad.says == "" {
				if err != nil {
					t.Errorf("reload: %v, %s", err, said)
				}
				return
			}
			if err == nil || !strings.Contains(said, bad.says) {
				t.Errorf("reload: %v, says %q, want %q in it", err, said, bad.says)
			}
			d.logged("control: request failed")
			if after := d.ctl("export", "list"); after != before {
				t.Errorf("exports before:\n%safter:\n%s", before, after)
			}
			if _, err := c.Write(patient(t), h, []byte("x"), 0, blockstore.FileSync); err != nil {
				t.Errorf("a client meanwhile: %v", err)
			}
			out, err := exec.Command(filepath.Join(binDir, "rstored"), "--config", conf, "--state-dir", t.TempDir(), "--control",
				filepath.Join(t.TempDir(), "c")).CombinedOutput()
			if err == nil || !strings.Contains(string(out), bad.says) {
				t.Errorf("start: %v, says %q, want %q in it", err, out, bad.says)
			}
		})
	}
}

// TestFaultStateReadOnly: with a state directory that cannot be written any more clients go on, new
// ones of version 4 that could not be remembered have to wait, changes by rstorectl are refused and
// not half done, and all is well when it can be written again.
func TestFaultStateReadOnly(t *testing.T) {
	for _, broken := range []syscall.Errno{syscall.EROFS, syscall.ENOSPC} {
		t.Run(broken.Error(), func(t *testing.T) {
			s := sick{cached: true}
			d := newDaemonOn(t, func(d *daemon) { s.mount(t, d.state) })
			c := d.client("rdma")
			h := file(t, c, "f")
			f, err := d.clientOf(client.Version42, "tcp").Open(patient(t), "/data/f")
			if err != nil {
				t.Fatal(err)
			}
			more := t.TempDir()
			before := d.ctl("export", "list")

			s.change.Store(int32(broken))
			if _, err := c.Write(patient(t), h, []byte("stored"), 0, blockstore.FileSync); err != nil {
				t.Errorf("version 3: %v", err)
			}
			b := make([]byte, 6)
			if _, err := f.ReadAt(b, 0); err != nil || string(b) != "stored" {
				t.Errorf("version 4.2, a file that was open: %q, %v", b, err)
			}
			_, said, err := d.try(20*time.Second, "export", "add", more, "--pseudo", "/more")
			if err == nil || !strings.Contains(said, broken.Error()) {
				t.Errorf("export add: %v, %q", err, said)
			}
			if after := d.ctl("export", "list"); after != before {
				t.Errorf("a change that could not be saved was made:\n%s", after)
			}
			late := make(chan error, 1)
			go func() {
				_, err := d.clientOf(client.Version42, "tcp").Open(patient(t), "/data/f")
				late <- err
			}()
			d.logged("could not be remembered")
			s.change.Store(0)
			if err := <-late; err != nil {
				t.Errorf("a client of version 4.2 that is new: %v", err)
			}
			d.logged("can be written again")
			d.ctl("export", "add", more, "--pseudo", "/more")
		})
	}
}

// TestFaultStateTruncated: what is damaged in the state directory is either not needed, and said
// so, or the daemon does not start, names the file and says what to do. It never serves one export
// under the handles of another.
func TestFaultStateTruncated(t *testing.T) {
	d := newDaemon(t)
	f, err := d.clientOf(client.Version42, "tcp").CreateFile(patient(t), "/data/f", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	more := t.TempDir()
	d.ctl("export", "add", more, "--pseudo", "/more")
	d.stop(syscall.SIGKILL)
	saved := filepath.Join(t.TempDir(), "state")
	if err := os.CopyFS(saved, os.DirFS(d.state)); err != nil {
		t.Fatal(err)
	}
	var files []string
	_ = filepath.WalkDir(saved, func(p string, e iofs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(saved, p); err == nil && e.Type().IsRegular() && e.Name() != "lock" {
			files = append(files, rel)
		}
		return err
	})
	// What it has to say of a file of which a third is left.
	says := map[string]string{
		"state.json": "is damaged", "handle.key": "remove it", "clients.db": "cannot be reclaimed",
	}
	for _, name := range files {
		for _, left := range []float64{0, 0.3, 0.7} {
			t.Run(fmt.Sprintf("%s/%g", strings.ReplaceAll(name, "/", "_"), left), func(t *testing.T) {
				if err := os.RemoveAll(d.state); err != nil {
					t.Fatal(err)
				}
				if err := os.CopyFS(d.state, os.DirFS(saved)); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(d.state, name)
				fi, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(path, int64(left*float64(fi.Size()))); err != nil {
					t.Fatal(err)
				}
				d.t = t
				code, said := d.tryStart()
				defer d.stop(syscall.SIGTERM)
				t.Logf("exit code %d, %s", code, tail(said, 800))
				if !strings.Contains(said, says[filepath.Base(name)]) && left == 0.3 {
					t.Errorf("it does not say %q", says[filepath.Base(name)])
				}
				switch {
				case code > 1:
					t.Errorf("it ended by exit code %d", code)
				case code == 1 && !strings.Contains(said, path):
					t.Error("it does not name the file")
				case code == 0:
					b := make([]byte, 4)
					if n, err := d.read("/data/f", b); err == nil && string(b[:n]) != "kept" {
						t.Errorf("the file is %q", b[:n])
					}
				}
			})
		}
	}
	d.t = t
}

// read reads the beginning of a file by a client of its own.
func (d *daemon) read(name string, b []byte) (int, error) {
	c := d.client("tcp")
	f, err := c.Resolve(patient(d.t), name)
	if err != nil {
		return 0, err
	}
	n, _, err := c.Read(patient(d.t), f.Handle, b, 0)
	return n, err
}

// TestFaultMemory: with the least memory for RDMA calls wait for each other, and none fails; a
// connection for which there is no floor is refused and says why, and is let in when others
// have gone.
func TestFaultMemory(t *testing.T) {
	d := newDaemon(t, "--memory", "16M")
	const clients, files, size = 4, 12, 1 << 20
	var work sync.WaitGroup
	for i := range clients {
		c := d.client("rdma")
		for j := range files {
			work.Go(func() {
				h := file(t, c, fmt.Sprintf("f%d-%d", i, j))
				data := bytes.Repeat([]byte{byte(i*files + j)}, size)
				for range 4 {
					if w, err := c.Write(patient(t), h, data, 0, blockstore.Unstable); err != nil || w.N != size {
						t.Errorf("WRITE: %d bytes, %v", w.N, err)
						return
					}
					got := make([]byte, size)
					if n, _, err := c.Read(patient(t), h, got, 0); err != nil || !bytes.Equal(got[:n], data) {
						t.Errorf("READ: %d bytes, %v", n, err)
						return
					}
				}
			})
		}
	}
	work.Wait()
	if t.Failed() {
		return
	}
	s := d.stats()
	for deadline := time.Now().Add(30 * time.Second); s["memory.bulk"] != 0 && time.Now().Before(deadline); s = d.stats() {
		time.Sleep(time.Millisecond) // until the last reply is acknowledged
	}
	if s["memory.peak"] > s["memory.limit"] || s["memory.limit"] != 16<<20 || s["memory.bulk"] != 0 {
		t.Errorf("%v bytes were taken of %v, and %v of data are still", s["memory.peak"], s["memory.limit"], s["memory.bulk"])
	} else if n, ok := counter(s, "rpcrdma_waited_for_memory"); !ok || n == 0 {
		t.Error("nobody waited for memory: this shows nothing")
	}

	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	var many []rpc.Client
	for range 400 {
		var c rpc.Client
		if c, err = rpcrdma.Dial(patient(t), dev, netip.AddrPortFrom(d.addr, 20049), rpcrdma.ClientConfig{}); err != nil {
			break
		}
		many = append(many, c)
	}
	if err == nil || len(many) < 64 {
		t.Errorf("%d connections in 16 MiB, then: %v", len(many), err)
	}
	d.logged("no memory for messages")
	for _, c := range many {
		_ = c.Close()
	}
	c := d.client("rdma")
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err := c.Null(patient(t)); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
