// Package ceph tests the daemon in front of a CephFS: "make test-ceph".
package ceph

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// gateway is a daemon that exports the filesystem fs at /fs.
type gateway struct {
	t        *testing.T
	programs string
	address  string
	dir      string
	args     []string
	log      bytes.Buffer
	cmd      *exec.Cmd
}

// cluster builds the daemon with CephFS, and the control tool. It skips a test without a cluster.
func cluster(t *testing.T) (programs string) {
	t.Helper()
	if os.Getenv("RSTORED_CEPH") == "" {
		t.Skip("RSTORED_CEPH is not set: there is no cluster (make test-ceph)")
	}
	dir := t.TempDir()
	c := exec.Command("go", "build", "-tags", "cephfs", "-o", dir+"/", "./cmd/rstored", "./cmd/rstorectl")
	c.Dir = "../.."
	c.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

func start(t *testing.T, programs, address string, args ...string) *gateway {
	t.Helper()
	g := &gateway{t: t, programs: programs, address: address, dir: t.TempDir(), args: args}
	t.Cleanup(func() {
		// The MDS waits for a client that was killed, and the next test would, too.
		if g.cmd.ProcessState == nil {
			_ = g.cmd.Process.Signal(syscall.SIGTERM)
			_ = g.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("%s:\n%s", address, g.log.String())
		}
	})
	g.run()
	return g
}

// run starts the daemon, again with the state directory of before, and waits until it answers.
func (g *gateway) run() {
	g.t.Helper()
	control := filepath.Join(g.dir, "control")
	g.cmd = exec.Command(filepath.Join(g.programs, "rstored"), append([]string{
		"--export", "ceph:fs/ *(rw,no_root_squash)", "--state-dir",
		filepath.Join(g.dir, "state"), "--rdma-listen", g.address + ":20049", "--tcp-listen", g.address + ":2049",
		"--control", control, "--lease-time", "20s", "--grace-time", "20s",
	}, g.args...)...)
	g.cmd.Stdout, g.cmd.Stderr = &g.log, &g.log
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if exec.Command(filepath.Join(g.programs, "rstorectl"), "--control", control, "status").Run() == nil {
			return
		}
		if time.Now().After(end) {
			g.t.Fatal("the daemon does not answer")
		}
	}
}

func (g *gateway) stop() {
	if g.cmd.ProcessState == nil {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
	}
}

// fs is the export as a client of a version and a transport sees it.
func (g *gateway) fs(version client.Version, transport string) *client.FS {
	g.t.Helper()
	d := &dial.Dialer{Version: version}
	g.t.Cleanup(func() { _ = d.Close() })
	fs, err := d.FS(g.t.Context(), "nfs+"+transport+"://"+g.address+"/fs")
	if err != nil {
		g.t.Fatal(err)
	}
	return fs
}

// TestGateways: what is written through one gateway is read through another one, and after the
// first was killed. Versions 3, 4.1 and 4.2, over RDMA and TCP.
func TestGateways(t *testing.T) {
	bin := cluster(t)
	a, b := start(t, bin, "127.0.0.2"), start(t, bin, "127.0.0.3")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	files := make(map[string][]byte)
	for _, v := range []client.Version{client.Version3, client.Version41, client.Version42} {
		for _, transport := range []string{"rdma", "tcp"} {
			fs := a.fs(v, transport)
			dir := v.String() + transport
			if err := fs.MkdirAll(dir+"/deep", 0o755); err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				p := make([]byte, r.IntN(9<<20))
				for k := range p {
					p[k] = byte(r.Uint32())
				}
				name := fmt.Sprint(dir, "/deep/", i)
				if err := fs.WriteFile(name, p, 0o644); err != nil {
					t.Fatal(err)
				}
				if err := fs.Rename(name, name+"-renamed"); err != nil {
					t.Fatal(err)
				}
				files[name+"-renamed"] = p
			}
		}
	}
	check := func(g *gateway, when string) {
		t.Helper()
		for _, v := range []client.Version{client.Version3, client.Version41, client.Version42} {
			for _, transport := range []string{"rdma", "tcp"} {
				fs := g.fs(v, transport)
				for name, want := range files {
					if got, err := fs.ReadFile(name); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s, version %v over %s: %s has %d bytes, want %d, %v", when, v, transport, name, len(got), len(want),
							err)
					}
				}
			}
		}
	}
	check(b, "through the other gateway")
	a.stop()
	check(b, "after a kill of the first gateway")
	if err := b.fs(client.Version42, "rdma").RemoveAll("."); err == nil {
		t.Error("the root was removed")
	}
}
