package state

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Two clients of two owners each open, upgrade, downgrade, close, lock, unlock and test two
// files, fall silent, restart, and so does the server. A model that knows each byte and
// each mode says what must come of it; it is written from RFC 8881 sections 8.4, 9 and
// 18.16, and knows nothing of how the server does it.

const (
	modelClients = 2
	modelOwners  = 2
	modelFiles   = 2
	modelBytes   = 8
	modelLease   = 90 * time.Second
)

// act is one thing that happens.
type act struct {
	kind         string
	client       int
	owner, file  int
	access, deny uint32
	off, n       int
	exclusive    bool
	wait         time.Duration
}

func (a act) String() string {
	return fmt.Sprintf("%s client=%d owner=%d file=%d access=%d deny=%d bytes=%d+%d exclusive=%v wait=%v",
		a.kind, a.client, a.owner, a.file, a.access, a.deny, a.off, a.n, a.exclusive, a.wait)
}

func randomAct(r *rand.Rand) act {
	kinds := []struct {
		kind   string
		weight int
	}{
		{"open", 8},
		{"close", 3},
		{"downgrade", 2},
		{"lock", 8},
		{"unlock", 4},
		{"test", 3},
		{"io", 4},
		{"pass", 6},
		{"renew", 4},
		{"join", 3},
		{"reboot", 1},
		{"restart", 1},
		{"reclaim", 8},
		{"complete", 3},
		{"handover", 3},
	}
	n := 0
	for _, k := range kinds {
		n += k.weight
	}
	a := act{
		client: r.IntN(modelClients), owner: r.IntN(modelOwners), file: r.IntN(modelFiles), access: 1 + r.Uint32N(3),
		deny: r.Uint32N(10) / 7,
		off:  r.IntN(modelBytes), exclusive: r.IntN(2) == 0, wait: time.Duration(r.IntN(50)) * time.Second,
	}
	if a.deny == 1 {
		a.deny += r.Uint32N(3)
	}
	a.n = 1 + r.IntN(modelBytes-a.off)
	n = r.IntN(n)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			a.kind = k.kind
			break
		}
	}
	return a
}

// modelOpen is an open as the model has it.
type modelOpen struct {
	access, deny   uint32
	accessed, deni map[uint32]bool // of the OPENs that made it
	bytes          [modelBytes]int // 1: locked shared, 2: exclusively
	id, lockID     Stateid
	locked         bool // there is a lock stateid
	reclaimed      bool // of what was before: it is there again
}

type modelKey struct{ owner, file int }

type modelClient struct {
	c        *Client // nil: it has no session
	complete bool
	seen     time.Time
	boots    byte
	opens    map[modelKey]*modelOpen
	before   map[modelKey]*modelOpen // what it may reclaim
}

// model is the state as it has to be.
type model struct {
	d       disk
	s       *Server
	boot    uint32
	now     time.Time
	until   time.Time // of the grace period
	started bool      // the server was restarted
	clients [modelClients]modelClient
}

func newModel() *model {
	m := &model{boot: 1, now: begin}
	m.s = m.d.boot(m.boot, m.now)
	for i := range m.clients {
		m.clients[i].opens = make(map[modelKey]*modelOpen)
	}
	return m
}

func (m *model) expired(c *modelClient) bool { return m.now.Sub(c.seen) > modelLease }

// pending reports whether somebody has something to reclaim that he may.
func (m *model) pending() bool {
	return m.now.Before(m.until) &&
		slices.ContainsFunc(m.clients[:],
			func(c modelClient) bool { return len(c.before) > 0 && !(c.c != nil && c.complete) })
}

// lost is a client without anything.
func (c *modelClient) lost() { c.c, c.opens, c.complete = nil, make(map[modelKey]*modelOpen), false }

// reconcile has the model follow where the server had a choice: who was silent may have
// lost what he had. Nobody else may.
func (m *model) reconcile() error {
	for i := range m.clients {
		c := &m.clients[i]
		if c.c == nil {
			continue
		}
		c.c.mu.Lock()
		dead := c.c.dead
		c.c.mu.Unlock()
		if dead && !m.expired(c) {
			return fmt.Errorf("client %d lost its state, and was here %v ago", i, m.now.Sub(c.seen))
		}
		if dead {
			c.lost()
		}
	}
	return nil
}

// standing are the clients with an open that contradicts this one: those that are there,
// and those that are silent. An open of the same owner counts like any other.
func (m *model) standing(by *modelClient, file int, access, deny uint32) (live, silent bool) {
	for i := range m.clients {
		c := &m.clients[i]
		for ok, o := range c.opens {
			if ok.file != file || access&o.deny == 0 && deny&o.access == 0 {
				continue
			}
			if m.expired(c) && c != by {
				silent = true
			} else {
				live = true
			}
		}
	}
	return live, silent
}

// inTheWay are the locks that contradict this one.
func (m *model) inTheWay(by *modelClient, a *act) (live, silent bool) {
	for i := range m.clients {
		c := &m.clients[i]
		for k, o := range c.opens {
			if k.file != a.file || c == by && k.owner == a.owner {
				continue
			}
			for _, b := range o.bytes[a.off : a.off+a.n] {
				if b == 0 || b == 1 && !a.exclusive {
					continue
				}
				if m.expired(c) && c != by {
					silent = true
				} else {
					live = true
				}
			}
		}
	}
	return live, silent
}

// one is a list of statuses of which one has to come.
func one(got nfs.Status, want ...nfs.Status) error {
	if slices.Contains(want, got) {
		return nil
	}
	return fmt.Errorf("%v instead of %v", got, want)
}

// step has something happen to both.
func (m *model) step(a *act) error {
	c := &m.clients[a.client]
	key := modelKey{a.owner, a.file}
	f := testFile(byte(a.file + 1))
	owner := []byte{byte('a' + a.owner)}
	switch a.kind {
	case "pass":
		m.now = m.now.Add(a.wait)
		return nil
	case "restart":
		if m.started && !m.now.Before(m.until) {
			// Who has not come back in time has nothing left to reclaim, as soon as
			// anybody has asked.
			if m.s.Grace(m.now) {
				return errors.New("grace without end")
			}
			for i := range m.clients {
				m.clients[i].before = nil
			}
		}
		m.boot++
		m.until, m.started = m.now.Add(modelLease), true
		m.s = m.d.boot(m.boot, m.now)
		for i := range m.clients {
			c := &m.clients[i]
			if c.complete {
				c.before = c.opens
			}
			for _, o := range c.before {
				o.reclaimed = false
			}
			c.lost()
		}
		return nil
	case "handover":
		// Now and then the next server comes to nothing, and the one of before goes on.
		s, err := m.d.successor(m.s, m.now)
		if err != nil || !a.exclusive {
			return err
		}
		m.s = s
		for i := range m.clients {
			if c := m.clients[i].c; c != nil {
				if m.clients[i].c = m.s.clients[uint32(c.ID)]; m.clients[i].c == nil {
					return fmt.Errorf("client %#x is not there any more", c.ID)
				}
			}
		}
		return nil
	case "join":
		return m.join(c, a.client, false)
	case "reboot":
		return m.join(c, a.client, true)
	}
	if c.c == nil {
		return nil
	}
	c.c.renew(m.now) // by its SEQUENCE
	c.seen = m.now
	if a.kind == "renew" {
		return nil
	}
	o := c.opens[key]
	grace := m.pending()
	// A server may wait for clients of which the model knows that they have nothing.
	maybeGrace := m.started && m.now.Before(m.until)
	switch a.kind {
	case "complete":
		st := c.c.ReclaimComplete()
		if c.complete {
			return one(st, nfs.ErrCompleteAlready)
		}
		c.complete, c.before = true, nil
		return one(st, nfs.OK)
	case "open", "reclaim":
		access, deny := a.access, a.deny
		reclaim := a.kind == "reclaim"
		was := c.before[key]
		if reclaim && !c.complete { // else it is refused
			if was == nil || was.reclaimed && o == nil {
				return nil // a client reclaims what it had, once
			}
			access, deny = was.access, was.deny
		}
		live, silent := m.standing(c, key.file, access, deny)
		got, st := c.c.Open(m.now, &Open{Owner: owner, File: f, Access: access, Deny: deny, Reclaim: reclaim})
		switch {
		case reclaim && (c.complete || !m.now.Before(m.until)):
			return one(st, nfs.ErrNoGrace)
		case reclaim && live:
			return one(st, nfs.ErrReclaimConflict)
		case !reclaim && (!c.complete || grace):
			return one(st, nfs.ErrGrace)
		case !reclaim && maybeGrace && st == nfs.ErrGrace:
			return nil
		case live:
			return one(st, nfs.ErrShareDenied)
		}
		if err := one(st, nfs.OK); err != nil {
			return err
		}
		if silent {
			if err := m.reconcile(); err != nil {
				return err
			}
			if still, there := m.standing(c, key.file, access, deny); still || there {
				return errors.New("both have it")
			}
		}
		if o == nil {
			o = &modelOpen{accessed: make(map[uint32]bool), deni: make(map[uint32]bool)}
			c.opens[key] = o
		}
		if o.access != 0 && got.ID.Seq != o.id.Seq+1 {
			return fmt.Errorf("stateid %v after %v", got.ID, o.id)
		}
		o.access, o.deny, o.id = o.access|access, o.deny|deny, got.ID
		o.accessed[access], o.deni[deny] = true, true
		if !reclaim {
			return nil
		}
		// What was locked comes with it.
		was.reclaimed = true
		for b, kind := range was.bytes {
			if kind == 0 {
				continue
			}
			id, _, st := c.c.Lock(m.now, &Lock{
				ByOpen: true, ID: got.ID, Owner: owner, File: f, Range: Range{uint64(b), 1},
				Exclusive: kind == 2, Reclaim: true,
			})
			if err := one(st, nfs.OK); err != nil {
				return fmt.Errorf("byte %d: %w", b, err)
			}
			o.bytes[b], o.lockID, o.locked = kind, id, true
		}
		return nil
	case "lock":
		if o == nil {
			return nil
		}
		live, silent := m.inTheWay(c, a)
		l := Lock{
			ByOpen: !o.locked, ID: o.id, Owner: owner, File: f, Range: Range{uint64(a.off), uint64(a.n)},
			Exclusive: a.exclusive,
		}
		if o.locked {
			l.ID = o.lockID
		}
		id, _, st := c.c.Lock(m.now, &l)
		mode := uint32(Read)
		if a.exclusive {
			mode = Write
		}
		switch {
		case !c.complete || grace:
			return one(st, nfs.ErrGrace)
		case maybeGrace && st == nfs.ErrGrace:
			return nil
		case o.access&mode == 0:
			return one(st, nfs.ErrOpenMode)
		case live:
			if err := one(st, nfs.ErrDenied); err != nil {
				return err
			}
			return m.reconcile()
		}
		if err := one(st, nfs.OK); err != nil {
			return err
		}
		if silent {
			if err := m.reconcile(); err != nil {
				return err
			}
			if still, there := m.inTheWay(c, a); still || there {
				return errors.New("both have it")
			}
		}
		if o.locked && id.Seq != o.lockID.Seq+1 {
			return fmt.Errorf("stateid %v after %v", id, o.lockID)
		}
		o.lockID, o.locked = id, true
		for b := a.off; b < a.off+a.n; b++ {
			if o.bytes[b] = 1; a.exclusive {
				o.bytes[b] = 2
			}
		}
	case "unlock":
		if o == nil || !o.locked {
			return nil
		}
		id, st := c.c.Unlock(&Lock{ID: o.lockID, File: f, Range: Range{uint64(a.off), uint64(a.n)}})
		if err := one(st, nfs.OK); err != nil {
			return err
		}
		o.lockID = id
		clear(o.bytes[a.off : a.off+a.n])
	case "test":
		live, silent := m.inTheWay(c, a)
		_, st := c.c.TestLock(m.now, &Lock{
			Owner: owner, File: f, Range: Range{uint64(a.off), uint64(a.n)},
			Exclusive: a.exclusive,
		})
		switch {
		case grace:
			return one(st, nfs.ErrGrace)
		case maybeGrace && st == nfs.ErrGrace:
			return nil
		case live:
			if err := one(st, nfs.ErrDenied); err != nil {
				return err
			}
		default:
			if err := one(st, nfs.OK); err != nil {
				return err
			}
		}
		if silent {
			return m.reconcile()
		}
	case "downgrade":
		if o == nil {
			return nil
		}
		fits := func(set map[uint32]bool, want uint32) bool {
			var u uint32
			for mode := range set {
				if mode&^want == 0 {
					u |= mode
				}
			}
			return u == want
		}
		id, st := c.c.Downgrade(o.id, f, a.access, a.deny)
		if !fits(o.accessed, a.access) || !fits(o.deni, a.deny) {
			return one(st, nfs.ErrInval)
		}
		if err := one(st, nfs.OK); err != nil {
			return err
		}
		o.id, o.access, o.deny = id, a.access, a.deny
		for mode := range uint32(4) {
			if mode&^a.access != 0 {
				delete(o.accessed, mode)
			}
			if mode&^a.deny != 0 {
				delete(o.deni, mode)
			}
		}
	case "close":
		if o == nil {
			return nil
		}
		if err := one(c.c.Close(o.id, f), nfs.OK); err != nil {
			return err
		}
		delete(c.opens, key)
	case "io":
		write := a.exclusive
		if o == nil {
			mode := uint32(Read)
			if write {
				mode = Write
			}
			live, silent := m.standing(c, a.file, mode, 0)
			st := c.c.IO(m.now, Anonymous, f, write)
			switch {
			case grace:
				return one(st, nfs.ErrGrace)
			case maybeGrace && st == nfs.ErrGrace:
				return nil
			case live:
				return one(st, nfs.ErrLocked)
			}
			if err := one(st, nfs.OK); err != nil {
				return err
			}
			if silent {
				return m.reconcile()
			}
			return nil
		}
		st := c.c.IO(m.now, o.id, f, write)
		if write && o.access&Write == 0 {
			return one(st, nfs.ErrOpenMode)
		}
		return one(st, nfs.OK)
	}
	return nil
}

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
	_, st = m.s.CreateSession(m.now,
		&CreateSession{Client: got.Client, Sequence: got.Sequence, Principal: root, Fore: channel})
	if err := one(st, nfs.OK); err != nil {
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
	var opens, locks int
	for i := range m.clients {
		opens += len(m.clients[i].opens)
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
	if n := m.s.Counts(); n.Opens != opens || n.Locks != locks {
		return fmt.Errorf("%+v, but there are %d opens and %d lock stateids", n, opens, locks)
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
	for seed := range histories {
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
