package ceph

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// node is a daemon of a cluster.
func node(t *testing.T, programs, name, address string) *gateway {
	t.Helper()
	return start(t, programs, address, "--cluster-pool", "data/"+t.Name(), "--ha-node", name, "--cluster-timeout", "4s")
}

// ctl runs rstorectl for a daemon.
func (g *gateway) ctl(args ...string) (string, error) {
	c := exec.Command(filepath.Join(g.programs, "rstorectl"),
		append([]string{"--control", filepath.Join(g.dir, "control")}, args...)...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// settled waits until the cluster has so many nodes and no grace period.
func (g *gateway) settled(nodes int) {
	g.t.Helper()
	out := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var s struct {
			Recovery uint64            `json:"recovery"`
			Grace    bool              `json:"grace"`
			Nodes    []json.RawMessage `json:"nodes"`
		}
		var err error
		if out, err = g.ctl("cluster", "status", "--output", "json"); err != nil {
			g.t.Fatalf("%v\n%s", err, out)
		}
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			g.t.Fatalf("%v\n%s", err, out)
		}
		if s.Recovery == 0 && !s.Grace && len(s.Nodes) == nodes {
			return
		}
	}
	g.t.Fatalf("the cluster does not settle with %d nodes: %s", nodes, out)
}

// refused checks that a lock is taken, or that nobody gets it because of a grace period.
func refused(t *testing.T, f *client.File, when string) {
	t.Helper()
	if err := f.TryLock(0, 10, true); !errors.Is(err, nfs.ErrDenied) && !errors.Is(err, nfs.ErrGrace) {
		t.Fatalf("%s a lock of another client is granted: %v", when, err)
	}
}

// TestTakeover: a node is killed, its address moves to another one, and its client reclaims there.
// Before that nobody gets the lock, and afterwards neither.
func TestTakeover(t *testing.T) {
	bin := cluster(t)
	const moving = "127.0.0.9"
	a, b := node(t, bin, "a", moving), node(t, bin, "b", "127.0.0.3")
	b.settled(2)
	fa, fb := open(t, a.fs(client.Version42, "rdma"), "taken"), open(t, b.fs(client.Version42, "tcp"), "taken")
	if err := fa.TryLock(0, 10, true); err != nil {
		t.Fatal(err)
	}
	refused(t, fb, "at first")
	a.stop()
	begun := time.Now()
	for _, port := range [][]string{{"rdma", ":20049"}, {"tcp", ":2049"}} {
		if out, err := b.ctl("port", "add", port[0], moving+port[1]); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := fa.WriteAt([]byte("after"), 0) // it reclaims
		done <- err
	}()
	for waits := true; waits; {
		refused(t, fb, "during the takeover")
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("the client cannot go on: %v", err)
			}
			waits = false
		case <-time.After(200 * time.Millisecond):
		}
	}
	t.Logf("the client goes on after %v", time.Since(begun))
	b.settled(1)
	t.Logf("the grace period is over after %v", time.Since(begun))
	if err := fb.TryLock(0, 10, true); !errors.Is(err, nfs.ErrDenied) {
		t.Fatalf("the lock that was reclaimed is not there: %v", err)
	}
	if err := fa.Unlock(0, 10); err != nil {
		t.Fatal(err)
	}
	if err := fb.TryLock(0, 10, true); err != nil {
		t.Fatalf("a lock that is free: %v", err)
	}
	// The node comes back at another address, without a grace period: it has no clients.
	node(t, bin, "a", "127.0.0.2").settled(2)
}

// lockV3 asks the lock manager of a node for the first ten bytes of a file, as a host with NFS
// version 3 does.
func (g *gateway) lockV3(handle []byte, reclaim bool) nlm.Stat {
	g.t.Helper()
	c, err := tcp.Dial(g.t.Context(), g.address+":2049")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	st := nlm.Failed
	if err := c.Call(g.t.Context(), &rpc.Request{
		Prog: nlm.Program, Vers: nlm.Version, Proc: nlm.ProcLock,
		Args: func(e *xdr.Encoder) {
			e.Opaque([]byte("cookie"))
			e.Bool(false)
			e.Bool(true)
			nlm.EncodeLock(e, &nlm.Lock{Caller: "host", Handle: handle, Owner: []byte("1@host"), SVID: 1, Length: 10})
			e.Bool(reclaim)
			e.Uint32(1)
		},
		Res: func(d *xdr.Decoder) error {
			d.Opaque(100)
			st = nlm.Stat(d.Uint32())
			return d.Err()
		},
	}); err != nil {
		g.t.Fatal(err)
	}
	return st
}

// TestDrainWithVersion3: a node whose client has nothing but a lock of version 3 is drained. Nobody
// gets the lock meanwhile, and the client reclaims it at the other node.
func TestDrainWithVersion3(t *testing.T) {
	bin := cluster(t)
	a, b := node(t, bin, "a", "127.0.0.2"), node(t, bin, "b", "127.0.0.3")
	b.settled(2)
	fb := open(t, b.fs(client.Version42, "tcp"), "drained")
	d := &dial.Dialer{Version: client.Version3}
	defer func() { _ = d.Close() }()
	u, err := client.ParseURL("nfs+tcp://" + a.address + "/fs")
	if err != nil {
		t.Fatal(err)
	}
	c := d.Client(u)
	root, err := c.Mount(t.Context(), "/fs")
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Lookup(t.Context(), root, "drained")
	if err != nil {
		t.Fatal(err)
	}
	if st := a.lockV3(n.Handle, false); st != nlm.Granted {
		t.Fatal(st)
	}
	refused(t, fb, "at first")
	begun := time.Now()
	if out, err := b.ctl("cluster", "drain", "a"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("the node has left after %v", time.Since(begun))
	done := make(chan error, 1)
	go func() { done <- fb.TryLock(0, 10, true) }() // it waits for the end of the grace period
	for {
		st := b.lockV3(n.Handle, true)
		if st == nlm.Granted {
			break
		}
		if st != nlm.DeniedGrace || time.Since(begun) > time.Minute {
			t.Fatalf("the lock is not reclaimed: %v", st)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("the lock is reclaimed at the other node after %v", time.Since(begun))
	b.settled(1)
	t.Logf("the grace period is over after %v", time.Since(begun))
	for _, err := range []error{<-done, fb.TryLock(0, 10, true)} {
		if !errors.Is(err, nfs.ErrDenied) && !errors.Is(err, nfs.ErrGrace) {
			t.Fatalf("the lock that was reclaimed is not there: %v", err)
		}
	}
	if err := a.cmd.Wait(); err != nil {
		t.Fatalf("the node that was drained: %v", err)
	}
}

// TestExportsOfAllNodes: exports that are changed at one node are changed at all. A node that is
// drained leaves.
func TestExportsOfAllNodes(t *testing.T) {
	bin := cluster(t)
	a, b := node(t, bin, "a", "127.0.0.2"), node(t, bin, "b", "127.0.0.3")
	if err := a.fs(client.Version42, "tcp").MkdirAll("below/it", 0o777); err != nil {
		t.Fatal(err)
	}
	if out, err := a.ctl("export", "add", "--type", "ceph", "fs/below"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	has := func(g *gateway, want bool) {
		t.Helper()
		out := ""
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if out, _ = g.ctl("export", "list"); strings.Contains(out, "/below") == want {
				return
			}
		}
		t.Fatalf("%s: want /below %v\n%s", g.address, want, out)
	}
	has(a, true)
	has(b, true)
	if out, err := b.ctl("export", "remove", "/below"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	has(b, false)
	has(a, false)
	// The doctor has what the monitors say: one OSD has no redundancy.
	if out, _ := b.ctl("doctor"); !strings.Contains(out, "HEALTH_WARN: POOL_NO_REDUNDANCY") {
		t.Errorf("the doctor does not see Ceph's health:\n%s", out)
	}
	if out, err := b.ctl("cluster", "drain", "a"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := a.cmd.Wait(); err != nil {
		t.Fatalf("the node that was drained: %v", err)
	}
	b.settled(1)
}
