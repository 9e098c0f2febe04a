package ceph

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// open opens a file for reading and writing.
func open(t *testing.T, fs *client.FS, name string) *client.File {
	t.Helper()
	f, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestLocks: clients of two gateways see each other's locks, and a gateway that was killed and
// started again gives its clients theirs back.
func TestLocks(t *testing.T) {
	bin := cluster(t)
	a, b := start(t, bin, "127.0.0.2"), start(t, bin, "127.0.0.3")
	fa, fb := open(t, a.fs(client.Version42, "rdma"), "locked"), open(t, b.fs(client.Version42, "tcp"), "locked")
	if err := fa.TryLock(0, 10, true); err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		if err := fb.TryLock(5, 10, false); !errors.Is(err, nfs.ErrDenied) {
			t.Fatalf("%s the other gateway says %v to a lock that conflicts", when, err)
		}
	}
	refused("at first")
	if err := fb.TryLock(10, 10, true); err != nil {
		t.Fatal("a range beside it: ", err)
	}
	a.stop()
	a.run()
	// The client reclaims with its next call.
	if _, err := fa.WriteAt([]byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	refused("after the restart")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fb.Lock(ctx, 0, 10, true) }()
	if err := fa.Unlock(0, 10); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal("a lock that is free: ", err)
	}
	if err := fa.TryLock(0, 1, false); !errors.Is(err, nfs.ErrDenied) {
		t.Fatalf("the first gateway says %v to a lock that the other one's client has", err)
	}
}

// recalls is a client.DelegationUser with nothing to write back.
type recalls chan *client.Delegation

func (r recalls) Recalled(_ context.Context, d *client.Delegation) { r <- d }
func (recalls) Lost(*client.Delegation)                            {}
func (recalls) Changed(*client.Delegation) (uint64, bool)          { return 0, false }

// TestDelegations: a client of one gateway loses its delegation when a client of another one opens
// the file, and that one waits for it.
func TestDelegations(t *testing.T) {
	bin := cluster(t)
	a, b := start(t, bin, "127.0.0.2"), start(t, bin, "127.0.0.3")
	other := b.fs(client.Version42, "tcp")
	d := &dial.Dialer{Version: client.Version42}
	defer func() { _ = d.Close() }()
	u, err := client.ParseURL("nfs+rdma://" + a.address + "/fs")
	if err != nil {
		t.Fatal(err)
	}
	c, told := d.Client(u), make(recalls, 9)
	c.UseDelegations(told)
	root, err := c.Mount(t.Context(), "/fs")
	if err != nil {
		t.Fatal(err)
	}
	for _, access := range []uint32{client.ShareRead, client.ShareBoth} {
		name := fmt.Sprint("delegated", access)
		if err := other.WriteFile(name, []byte("before"), 0o666); err != nil {
			t.Fatal(err)
		}
		n, err := c.Lookup(t.Context(), root, name)
		if err != nil {
			t.Fatal(err)
		}
		var del *client.Delegation
		for end := time.Now().Add(time.Minute); del == nil; time.Sleep(20 * time.Millisecond) {
			release, err := c.OpenHandle(t.Context(), n.Handle, access)
			if err != nil {
				t.Fatal(err)
			}
			if del = c.Delegation(n.Handle); del == nil && time.Now().After(end) {
				t.Fatalf("access %d: no delegation", access)
			}
			if err := release(); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := other.ReadFile(name); !del.Write() && (err != nil || string(got) != "before") {
			t.Fatalf("read beside a delegation to read: %q, %v", got, err)
		}
		begun := time.Now()
		if err := other.WriteFile(name, []byte("before"), 0o666); err != nil {
			t.Fatal(err)
		}
		t.Logf("write: %v; the other gateway wrote after %v", del.Write(), time.Since(begun))
		select {
		case <-told:
		case <-time.After(10 * time.Second):
			t.Fatal("the delegation was not recalled")
		}
		if del.Valid() {
			t.Fatal("the delegation is valid still")
		}
	}
}

// delegatee is a client of a gateway that uses delegations.
func (g *gateway) delegatee() (*client.Client, *client.FS) {
	g.t.Helper()
	d := &dial.Dialer{Version: client.Version42}
	g.t.Cleanup(func() { _ = d.Close() })
	u, err := client.ParseURL("nfs+tcp://" + g.address + "/fs")
	if err != nil {
		g.t.Fatal(err)
	}
	c := d.Client(u)
	c.UseDelegations(make(recalls, 99))
	fs, err := c.FS(g.t.Context(), "/fs")
	if err != nil {
		g.t.Fatal(err)
	}
	return c, fs
}

// TestLocksBehindDelegations: each of two clients locks a file that is delegated to the other one,
// at another gateway. The delegations are for reading: the check of the file's type before does not
// recall them. None waits until it has the lock before it returns its delegation.
func TestLocksBehindDelegations(t *testing.T) {
	bin := cluster(t)
	var files [2]*client.File
	var clients [2]*client.Client
	names := [2]string{"crossed0", "crossed1"}
	gateways := [2]*gateway{start(t, bin, "127.0.0.2"), start(t, bin, "127.0.0.3")}
	for i, g := range gateways {
		var fs *client.FS
		clients[i], fs = g.delegatee()
		files[i] = open(t, fs, names[1-i])
	}
	for i, c := range clients {
		root, err := c.Mount(t.Context(), "/fs")
		if err != nil {
			t.Fatal(err)
		}
		n, err := c.Lookup(t.Context(), root, names[i])
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			release, err := c.OpenHandle(t.Context(), n.Handle, client.ShareRead)
			if err != nil {
				t.Fatal(err)
			}
			if err := release(); err != nil {
				t.Fatal(err)
			}
			if d := c.Delegation(n.Handle); d != nil && !d.Write() {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: no delegation", names[i])
			}
		}
	}
	begun, done := time.Now(), make(chan error, 2)
	for _, f := range files {
		go func() { done <- f.TryLock(0, 10, true) }()
	}
	for range files {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(15 * time.Second):
			t.Fatal("the locks wait for each other")
		}
	}
	t.Logf("locked after %v", time.Since(begun))
}
