package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// try runs rstorectl against the daemon.
func (d *daemon) try(limit time.Duration, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(binDir, "rstorectl"), append([]string{"--control", d.control}, args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: d.as}
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	err = c.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("no end within %v", limit)
	}
	return o.String(), e.String(), err
}

// ctl runs rstorectl and fails the test if it fails.
func (d *daemon) ctl(args ...string) string {
	d.t.Helper()
	o, e, err := d.try(4*time.Minute, args...)
	if err != nil {
		d.t.Fatalf("rstorectl %s: %v\n%s%s", strings.Join(args, " "), err, tail(o, 2000), tail(e, 4000))
	}
	return o
}

// url names a path of the first export over a transport, rdma or tcp.
func (d *daemon) url(transport, path string) string {
	port := "20049"
	if transport == "tcp" {
		port = "2049"
	}
	return fmt.Sprintf("nfs+%s://%s:%s/data/%s", transport, d.addr, port, strings.TrimPrefix(path, "/"))
}

// client is a Go client of the daemon, in this process, of version 3, whose reply cache
// outlives the daemon.
func (d *daemon) client(transport string) *client.Client {
	d.t.Helper()
	return d.clientOf(client.Version3, transport)
}

func (d *daemon) clientOf(version client.Version, transport string) *client.Client {
	d.t.Helper()
	dial := func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, d.addr.String()+":2049") }
	if transport == "rdma" {
		dev, err := roce.Open(roce.Config{})
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { _ = dev.Close() })
		dial = func(ctx context.Context) (rpc.Client, error) {
			return rpcrdma.Dial(ctx, dev, netip.AddrPortFrom(d.addr, 20049), rpcrdma.ClientConfig{})
		}
	}
	c := client.New(client.Config{
		Version: version,
		Peer:    d.addr.String(), Dial: dial,
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
	})
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

// stats is the daemon's statistics as JSON, flattened to dotted keys.
func (d *daemon) stats() map[string]float64 {
	d.t.Helper()
	var v any
	if err := json.Unmarshal([]byte(d.ctl("-o", "json", "stats")), &v); err != nil {
		d.t.Fatalf("stats is not JSON: %v", err)
	}
	flat := map[string]float64{}
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, w := range v {
				walk(strings.TrimPrefix(prefix+"."+k, "."), w)
			}
		case float64:
			flat[prefix] = v
		}
	}
	walk("", v)
	return flat
}

// counter sums the statistics whose last key is name.
func counter(stats map[string]float64, name string) (sum float64, ok bool) {
	for k, v := range stats {
		if k == name || strings.HasSuffix(k, "."+name) {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// node is what a copy has to keep of one object.
type node struct {
	mode   fs.FileMode
	size   int64
	mtime  int64 // seconds
	nlink  uint64
	target string
	sum    string
}

// scan describes a tree by relative path.
func scan(t *testing.T, root string) map[string]node {
	t.Helper()
	out := map[string]node{}
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		fi, err := e.Info()
		if err != nil {
			return err
		}
		n := node{mode: fi.Mode(), nlink: uint64(fi.Sys().(*syscall.Stat_t).Nlink)}
		switch {
		case fi.Mode().IsRegular():
			n.size, n.mtime = fi.Size(), fi.ModTime().Unix()
			n.sum = sumFile(t, p)
		case fi.Mode()&fs.ModeSymlink != 0:
			n.target, err = os.Readlink(p)
			n.mode = fs.ModeSymlink
		case fi.IsDir():
			n.nlink = 0 // not a thing that a copy keeps
		}
		out[rel] = n
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sumFile is a SHA-256 of what is not zero in a file, and where, so that holes
// cost nothing and count as zeros.
func sumFile(t *testing.T, p string) string {
	t.Helper()
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	buf, zero := make([]byte, 1<<16), make([]byte, 1<<16)
	for at := int64(0); ; {
		at, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return hex.EncodeToString(h.Sum(nil))
		}
		if err != nil {
			t.Fatal(err)
		}
		at &^= int64(len(buf) - 1)
		n, err := f.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			fmt.Fprintf(h, "%d:%d:", at, n)
			_, _ = h.Write(buf[:n])
		}
		at += int64(len(buf))
	}
}

// sameTree reports the differences between two trees.
func sameTree(t *testing.T, want, got string) {
	t.Helper()
	a, b := scan(t, want), scan(t, got)
	bad := 0
	for rel, w := range a {
		g, ok := b[rel]
		if rel == "." {
			continue
		}
		if !ok {
			t.Errorf("%q is missing from the copy", rel)
		} else if g != w {
			t.Errorf("%q differs:\n want %+v\n  got %+v", rel, w, g)
		} else {
			continue
		}
		if bad++; bad > 20 {
			t.Fatal("and more")
		}
	}
	for rel := range b {
		if _, ok := a[rel]; !ok {
			t.Errorf("%q is in the copy only", rel)
		}
	}
}

func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}
