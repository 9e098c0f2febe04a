package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

var reached = regexp.MustCompile(`reached at ([0-9.]+:[0-9]+)`)

// bridge runs rstorectl bridge in front of the daemon's RDMA port and returns where it listens.
func (d *daemon) bridge(args ...string) string {
	d.t.Helper()
	c := exec.Command(filepath.Join(binDir, "rstorectl"),
		append([]string{"bridge", d.url("rdma", ""), "--listen", "127.0.0.1:0"}, args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := c.StderrPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.bridged = c.Process
	said := bufio.NewReader(stderr)
	var rest bytes.Buffer
	read := make(chan struct{})
	d.t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		<-read
		if err := c.Wait(); err != nil {
			d.t.Errorf("rstorectl bridge: %v\n%s", err, rest.String())
		}
	})
	var at string
	for at == "" {
		line, err := said.ReadString('\n')
		if err != nil {
			close(read)
			d.t.Fatalf("rstorectl bridge ended: %s", line)
		}
		if m := reached.FindStringSubmatch(line); m != nil {
			at = m[1]
		}
	}
	go func() {
		defer close(read)
		_, _ = io.Copy(&rest, said)
	}()
	return at
}

// clientAt is a Go client of a version that connects to an address over TCP.
func clientAt(t *testing.T, version client.Version, addr string) *client.Client {
	t.Helper()
	c := client.New(client.Config{
		Version: version, Peer: addr, Dial: func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, addr) },
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestBridge: clients of every version that the Go client speaks write and read through the bridge.
func TestBridge(t *testing.T) {
	d := newDaemon(t)
	at := d.bridge()
	for _, v := range []client.Version{client.Version3, client.Version41, client.Version42} {
		t.Run(v.String(), func(t *testing.T) {
			ctx := t.Context()
			c := clientAt(t, v, at)
			name := fmt.Sprintf("file%v", v)
			data := make([]byte, 3<<20+5)
			_, _ = rand.NewChaCha8([32]byte{byte(v)}).Read(data)
			f, err := c.CreateFile(ctx, "/data/"+name, 0o640)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := f.WriteAt(data, 0); n != len(data) || err != nil {
				t.Fatalf("%d bytes written: %v", n, err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(d.export, name)); err != nil || !bytes.Equal(got, data) {
				t.Errorf("the file has %d other bytes: %v", len(got), err)
			}
			if f, err = c.Open(ctx, "/data/"+name); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(data))
			if n, err := f.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) || n != len(data) || !bytes.Equal(got, data) {
				t.Errorf("%d bytes read, which are others: %v", n, err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestBridge40: version 4.0, whose client the tests do not have, as one compound that has to be
// executed once.
func TestBridge40(t *testing.T) {
	d := newDaemon(t)
	at := d.bridge()
	c, err := tcp.Dial(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mkdir := func() (st nfs.Status) {
		err := c.Call(t.Context(), &rpc.Request{
			XID: 7, Prog: nfs4.Program, Vers: nfs4.Version, Proc: nfs4.ProcCompound,
			Cred: &rpc.Cred{Flavor: rpc.AuthSys, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
			Args: func(e *xdr.Encoder) {
				e.String("tag")
				e.Uint32(0)
				e.Uint32(4)
				e.Uint32(nfs4.OpPutRootFH)
				e.Uint32(nfs4.OpLookup)
				e.String("data")
				e.Uint32(nfs4.OpCreate)
				e.Uint32(2)
				e.String("dir")
				e.Uint32(0)
				e.Uint32(0)
				e.Uint32(nfs4.OpGetFH)
			},
			Res: func(d *xdr.Decoder) error { st = nfs.Status(d.Uint32()); return d.Err() },
		})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	for range 2 {
		if st := mkdir(); st != nfs.OK {
			t.Errorf("CREATE of a directory: %v", st)
		}
	}
	if _, err := os.Stat(filepath.Join(d.export, "dir")); err != nil {
		t.Error(err)
	}
}

// freeze stops a process and waits until all its threads stand still. They go on at SIGCONT.
func freeze(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
	if err != nil || len(tasks) == 0 {
		t.Fatal("it has no threads: ", err)
	}
	for _, task := range tasks {
		for {
			b, err := os.ReadFile(task)
			if err != nil || bytes.Contains(b, []byte(") T ")) {
				break // stopped, or ended
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// TestBridgeBrokenConnection breaks the client's TCP connection in the middle of each call: the
// client has sent the call, and either the bridge or the server stands still. The client connects
// again, from another port, and sends the call again. No call is executed twice.
func TestBridgeBrokenConnection(t *testing.T) {
	for _, v := range []client.Version{client.Version3, client.Version41, client.Version42} {
		t.Run(v.String(), func(t *testing.T) {
			d := newDaemon(t)
			at := d.bridge()
			var conn atomic.Pointer[net.TCPConn] // the client's newest
			c := client.New(client.Config{
				Version: v, Peer: at, Cred: &rpc.Cred{Flavor: rpc.AuthSys, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
				Dial: func(ctx context.Context) (rpc.Client, error) {
					n, err := new(net.Dialer).DialContext(ctx, "tcp", at)
					if err != nil {
						return nil, &rpc.ConnError{Peer: at, Err: err}
					}
					conn.Store(n.(*net.TCPConn))
					return tcp.NewClient(n), nil
				},
			})
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			root, err := c.Resolve(ctx, "/data")
			if err != nil {
				t.Fatal(err)
			}
			var file *client.Node
			for _, who := range []string{"bridge", "server"} {
				still := d.bridged
				if who == "server" {
					still = d.cmd.Process
				}
				for _, step := range []struct {
					what string
					do   func() error
				}{
					{"mkdir", func() error { _, err := c.Mkdir(ctx, root.Handle, "dir", &blockstore.SetAttr{}); return err }},
					{"rename", func() error { return c.Rename(ctx, root.Handle, "dir", root.Handle, "moved") }},
					{"rmdir", func() error { return c.Rmdir(ctx, root.Handle, "moved") }},
					{"create", func() (err error) {
						file, err = c.Create(ctx, root.Handle, "file", blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
						return err
					}},
					{"link", func() error { return c.Link(ctx, file.Handle, root.Handle, "link") }},
					{"remove", func() error { return c.Remove(ctx, root.Handle, "link") }},
					{"remove the file", func() error { return c.Remove(ctx, root.Handle, "file") }},
				} {
					freeze(t, still)
					resent := c.Stats().Resent
					done := make(chan error, 1)
					go func() { done <- step.do() }()
					time.Sleep(100 * time.Millisecond)
					if err := conn.Load().SetLinger(0); err != nil { // so that the peer gets an RST
						t.Error(err)
					}
					_ = conn.Load().Close()
					time.Sleep(50 * time.Millisecond)
					if err := still.Signal(syscall.SIGCONT); err != nil {
						t.Fatal(err)
					}
					if err := <-done; err != nil {
						t.Errorf("the %s stood still, %s: %v", who, step.what, err)
					}
					if c.Stats().Resent == resent {
						t.Errorf("the %s stood still, %s: it was not sent again", who, step.what)
					}
				}
			}
		})
	}
}

// TestBridgeVersion: with --nfs-version the bridge passes on that version alone.
func TestBridgeVersion(t *testing.T) {
	d := newDaemon(t)
	at := d.bridge("--nfs-version", "4.1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := clientAt(t, client.Version41, at).Open(ctx, "/data/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("version 4.1: %v", err)
	}
	for _, v := range []client.Version{client.Version3, client.Version42} {
		if _, err := clientAt(t, v, at).Open(ctx, "/data/none"); err == nil || errors.Is(err, os.ErrNotExist) ||
			ctx.Err() != nil {
			t.Errorf("version %v: %v", v, err)
		}
	}
}

// TestBridgeRecall: a delegation of version 4.2 is recalled through the bridge, on the connection
// of the client.
func TestBridgeRecall(t *testing.T) {
	d := newDaemon(t)
	at := d.bridge()
	other := d.clientOf(client.Version42, "tcp")
	f, err := other.CreateFile(t.Context(), "/data/delegated", 0o666)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	k := newCaller42(t, at)
	k.join()
	fh, open, deleg := k.open("delegated")
	opened := make(chan error, 1)
	go func() {
		g, err := other.OpenShare(t.Context(), "/data/delegated", client.ShareRead|client.ShareWrite, 0)
		if err == nil {
			err = g.Close()
		}
		opened <- err
	}()
	select {
	case id := <-k.recalls:
		if !bytes.Equal(id, deleg) {
			t.Errorf("%x was recalled, not %x", id, deleg)
		}
	case <-time.After(time.Minute):
		t.Fatal("it was not recalled")
	}
	k.do(3, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpPutFH)
		e.Opaque(fh)
		e.Uint32(nfs4.OpClose)
		e.Uint32(0)
		e.Fixed(open)
		e.Uint32(nfs4.OpDelegReturn)
		e.Fixed(deleg)
	})
	if err := <-opened; err != nil {
		t.Error(err)
	}
}
