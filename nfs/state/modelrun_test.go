package state

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// join makes a session for a client that has none, or one that was restarted.
func (m *model) join(c *modelClient, i int, reboot bool) error {
	if c.c != nil && !reboot {
		return nil
	}
	if reboot {
		c.boots++
		c.before = nil
	}
	got, st := m.s.ExchangeID(m.now, &ExchangeID{Owner: fmt.Append(nil, i), Verifier: Verifier{c.boots}, Principal: root})
	if err := one(st, nfs.OK); err != nil {
		return err
	}
	made, st := m.s.CreateSession(m.now,
		&CreateSession{
			Client: got.Client, Sequence: got.Sequence, Principal: root, Fore: channel,
			Back: NewBackchannel(backAttr, 1, nil), Path: new(path),
		})
	if err := one(st, nfs.OK); err != nil {
		return err
	}
	if err := answer(m.s.Session(made.ID)); err != nil {
		return err
	}
	if reboot || !got.Confirmed {
		c.lost()
	}
	c.c, st = m.s.Client(got.Client)
	c.seen = m.now
	if err := one(st, nfs.OK); err != nil {
		return err
	}
	return m.reconcile() // whoever was silent may have been forgotten
}

// agree compares what there is on both sides.
func (m *model) agree() error {
	var opens, locks, dirs int
	for i := range m.clients {
		opens += len(m.clients[i].opens)
		dirs += len(m.clients[i].dirs)
		for k, o := range m.clients[i].opens {
			if o.locked {
				locks++
			}
			for b, kind := range o.bytes {
				h, free := m.s.cfg.Locks.Test(testFile(byte(k.file+1)),
					lock.Lock{Owner: lock.Owner{Client: "nobody"}, Start: uint64(b), End: uint64(b), Exclusive: true})
				if free && kind != 0 {
					return fmt.Errorf("byte %d of file %d is free", b, k.file)
				}
				if !free && kind == 2 && !h.Exclusive {
					return fmt.Errorf("byte %d of file %d is %+v", b, k.file, h)
				}
			}
		}
	}
	if n := m.s.Counts(); n.Opens != opens || n.Locks != locks || n.Delegations != dirs {
		return fmt.Errorf("%+v, but there are %d opens, %d lock stateids and %d directories", n, opens, locks, dirs)
	}
	if n := m.s.delegs.dirs.Load(); n != int64(dirs) {
		return fmt.Errorf("%d directories are counted instead of %d", n, dirs)
	}
	return recount(m.s)
}

// play has acts happen, and returns where the server and the model differ.
func play(acts []act) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	m := newModel()
	for i := range acts {
		if err := m.step(&acts[i]); err != nil {
			return fmt.Errorf("act %d: %w", i, err)
		}
		if err := m.reconcile(); err != nil {
			return fmt.Errorf("after act %d: %w", i, err)
		}
		if err := m.agree(); err != nil {
			return fmt.Errorf("after act %d: %w", i, err)
		}
	}
	return nil
}

// shrink leaves out what is not needed for a failure.
func shrink(acts []act, fails func([]act) bool) []act {
	for size := len(acts) / 2; size > 0; {
		removed := false
		for at := 0; at+size <= len(acts); {
			fewer := slices.Delete(slices.Clone(acts), at, at+size)
			if fails(fewer) {
				acts, removed = fewer, true
			} else {
				at += size
			}
		}
		if !removed {
			size /= 2
		}
	}
	return acts
}

// TestModel plays histories made from seeds.
func TestModel(t *testing.T) {
	histories := uint64(400)
	if testing.Short() {
		histories = 60
	}
	var long time.Duration // RSTORED_TORTURE: more of them, from random seeds
	if v := os.Getenv("RSTORED_TORTURE"); v != "" {
		var err error
		if long, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	began, first := time.Now(), rand.Uint64()
	i := uint64(0)
	defer func() { t.Logf("%d histories, random ones from seed %d on", i, first) }()
	for ; i < histories || time.Since(began) < long; i++ {
		seed := i
		if i >= histories || long > 0 {
			seed = first + i
		}
		r := rand.New(rand.NewPCG(seed, 8881))
		acts := []act{{kind: "join"}, {kind: "complete"}, {kind: "join", client: 1}, {kind: "complete", client: 1}}
		for range 400 {
			acts = append(acts, randomAct(r))
		}
		if err := play(acts); err != nil {
			acts = shrink(acts, func(a []act) bool { return play(a) != nil })
			var b strings.Builder
			for i, a := range acts {
				fmt.Fprintf(&b, "\n%3d %v", i, a)
			}
			t.Fatalf("seed %d: %v; shrunk to %v%s", seed, err, play(acts), b.String())
		}
	}
}

// TestModelNotices: the model fails where the server is wrong, and the failure shrinks.
func TestModelNotices(t *testing.T) {
	acts := []act{
		{kind: "join"},
		{kind: "complete"},
		{kind: "join", client: 1},
		{kind: "renew"},
		{kind: "complete", client: 1},
		{kind: "open", access: 3},
		{kind: "test", n: 1},
		{kind: "open", client: 1, access: 3},
		{kind: "lock", n: 4, exclusive: true},
	}
	for range 20 {
		acts = append(acts, act{kind: "renew"}, act{kind: "renew", client: 1})
	}
	broken := func(acts []act) bool {
		m := newModel()
		for i := range acts {
			if m.step(&acts[i]) != nil {
				return false
			}
		}
		m.s.cfg.Locks.Drop(lockClient(1<<32 | 1)) // behind its back
		return m.agree() != nil
	}
	if !broken(acts) {
		t.Fatal("it was not noticed")
	}
	if short := shrink(acts, broken); len(short) != 4 { // join, complete, open, lock
		t.Errorf("%v", short)
	}
}
