package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/rados"
	"github.com/rstored/rstored/nfs/clock"
)

// memory is a Store.
type memory struct {
	mu      sync.Mutex
	objects map[string]rados.Pairs
}

func (m *memory) Pairs(object, prefix string) (rados.Pairs, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(rados.Pairs)
	for k, v := range m.objects[object] {
		if strings.HasPrefix(k, prefix) {
			out[k] = v
		}
	}
	return out, nil
}

func (m *memory) Change(object string, c rados.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.objects[object]
	if x == nil {
		x = make(rados.Pairs)
		m.objects[object] = x
	}
	for k, v := range c.Is {
		if !bytes.Equal(x[k], v) {
			return rados.ErrChanged
		}
	}
	maps.Copy(x, c.Set)
	for _, k := range c.Remove {
		delete(x, k)
	}
	return nil
}

// node is a node with clients that reclaim when the test says so.
type node struct {
	*Cluster
	mu        sync.Mutex
	loads     []string // what may reclaim here
	recovered bool
	reset     []string // sessions that it has ended
}

func (n *node) BeginReclaim(owners, hosts []string, _ time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loads = append(n.loads, fmt.Sprint(owners, hosts))
}
func (n *node) ForgetReclaims() {}
func (n *node) Recovered(time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.recovered
}

func (n *node) recover(yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recovered = yes
}

func (n *node) loaded() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.loads)
}

const patience = 2 * time.Second // of all nodes

// open makes a node, which may be one of before that has ended.
func open(ctx context.Context, t *testing.T, m *memory, name string) (*node, error) {
	t.Helper()
	n := new(node)
	c, err := Open(ctx, Config{
		Store: m, Node: name, Place: "host-of-" + name, Timeout: patience, Grace: time.Minute, Now: clock.Now,
		Reset: func(_, session string) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.reset = append(n.reset, session)
			return nil
		},
		Lost: func(err error) { t.Errorf("node %s: %v", name, err) }, Drained: func() {}, Log: zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	n.Cluster = c
	c.Attach(n)
	t.Cleanup(c.Close)
	return n, nil
}

func mustOpen(t *testing.T, m *memory, name string) *node {
	t.Helper()
	n, err := open(t.Context(), t, m, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func serves(n *node) func() bool { return func() bool { return !n.Grace() } }

// TestLeaveWithHosts: a node whose clients have only locks of version 3 leaves. Others stop
// granting before it closes its stores, do not end its session while it does that, and wait for the
// clients.
func TestLeaveWithHosts(t *testing.T) {
	m := &memory{objects: make(map[string]rados.Pairs)}
	a, b := mustOpen(t, m, "a"), mustOpen(t, m, "b")
	eventually(t, "both serve", func() bool { return !a.Grace() && !b.Grace() })
	if _, err := a.Session("fs", 1); err != nil {
		t.Fatal(err)
	}
	if err := a.SetHosts([]string{"gone"}); err != nil {
		t.Fatal(err)
	}
	if err := a.SetHosts([]string{"host"}); err != nil {
		t.Fatal(err)
	}
	if err := a.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !b.Grace() || b.Begin() || a.Begin() {
		t.Fatal("locks are granted while a node leaves")
	}
	for end := time.Now().Add(2 * patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if !a.Grace() || a.Begin() {
			t.Fatal("a node that leaves grants locks")
		}
		b.mu.Lock()
		reset := b.reset
		b.mu.Unlock()
		if loads := b.loaded(); len(reset)+len(loads) > 0 {
			t.Fatalf("before the node has left: sessions %v are ended, %v may reclaim", reset, loads)
		}
	}
	if err := a.Gone(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hosts of the node may reclaim", func() bool { return len(b.loaded()) > 0 })
	if loads := b.loaded(); !slices.Equal(loads, []string{"[] [host]"}) {
		t.Fatalf("%v may reclaim", loads)
	}
	if len(b.reset) > 0 {
		t.Fatalf("sessions that were closed are ended: %v", b.reset)
	}
	time.Sleep(patience / 2)
	if !b.Grace() {
		t.Fatal("the period ends before the clients have reclaimed")
	}
	b.recover(true)
	eventually(t, "the period ends", serves(b))
	if p, _ := m.Pairs(nodeObject("a"), "s/"); len(p) > 0 {
		t.Fatalf("%v is left of a node that has left", p)
	}
}

// TestLostTwice: a node that is lost, comes back, and is lost again in one grace period has its
// clients reclaim at another one twice.
func TestLostTwice(t *testing.T) {
	m := &memory{objects: make(map[string]rados.Pairs)}
	a, b := mustOpen(t, m, "a"), mustOpen(t, m, "b")
	eventually(t, "both serve", func() bool { return !a.Grace() && !b.Grace() })
	if err := a.Add("first"); err != nil {
		t.Fatal(err)
	}
	a.Close()
	eventually(t, "the first loss", func() bool { return len(b.loaded()) == 1 })
	a = mustOpen(t, m, "a")
	if !slices.Equal(a.Owners(), []string{"first"}) {
		t.Fatalf("%v may reclaim where they were", a.Owners())
	}
	if err := a.Add("second"); err != nil { // it has moved, and reclaims there
		t.Fatal(err)
	}
	a.Close()
	eventually(t, "the second loss", func() bool { return len(b.loaded()) == 2 })
	if loads := b.loaded(); !slices.Equal(loads, []string{"[first] []", "[first second] []"}) {
		t.Fatalf("%v may reclaim", loads)
	}
	b.recover(true)
	eventually(t, "the period ends", serves(b))
}

// TestLateGrant: a node enforces no grace period while a lock is being granted, and a node that
// comes up waits for that, but not for ever.
func TestLateGrant(t *testing.T) {
	m := &memory{objects: make(map[string]rados.Pairs)}
	a, b := mustOpen(t, m, "a"), mustOpen(t, m, "b")
	b.recover(true)
	eventually(t, "both serve", func() bool { return !a.Grace() && !b.Grace() })
	if !b.Begin() {
		t.Fatal("no lock is granted")
	}
	a.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := open(ctx, t, m, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a node comes up while a lock is being granted at another one: %v", err)
	}
	if b.Begin() {
		t.Fatal("a lock is granted in the grace period")
	}
	b.End()
	mustOpen(t, m, "a").recover(true)
	eventually(t, "the period ends", serves(b))
}

// TestFollow: no change of the exports is missed, neither one before Follow nor one that cannot be
// applied at once.
func TestFollow(t *testing.T) {
	m := &memory{objects: make(map[string]rados.Pairs)}
	a, b := mustOpen(t, m, "a"), mustOpen(t, m, "b")
	b.Exports()
	remove := func(name string) {
		t.Helper()
		err := a.ChangeExports(func(_ *[]config.Export, removed *[]string) { *removed = append(*removed, name) })
		if err != nil {
			t.Fatal(err)
		}
	}
	remove("/one")
	var mu sync.Mutex
	var has []string
	fails := 0
	b.Follow(func() error {
		mu.Lock()
		defer mu.Unlock()
		if fails++; fails%3 > 0 {
			return errors.New("as the test wants it")
		}
		_, has = b.Exports()
		return nil
	})
	is := func(want ...string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(has, want)
		}
	}
	eventually(t, "a change before Follow", is("/one"))
	remove("/two")
	b.Exports() // somebody else looks
	eventually(t, "a change after Follow", is("/one", "/two"))
	b.Exports()
	mu.Lock()
	before := fails
	mu.Unlock()
	time.Sleep(patience / 2)
	mu.Lock()
	defer mu.Unlock()
	if fails != before {
		t.Fatal("a change is applied again and again")
	}
}
