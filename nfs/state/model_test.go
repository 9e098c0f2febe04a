package state

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
)

// Two clients of two owners each open, upgrade, downgrade, close, lock, unlock and test two
// files, fall silent, restart, and so does the server. They have directories delegated, and change
// them. A model that knows each byte and
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
		{"delegate", 6},
		{"return", 2},
		{"change", 6},
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
	dirs     map[int]*modelDir
	revoked  int // directories that it does not know to be lost
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
	recalls [modelFiles]time.Time // of directories
}

func newModel() *model {
	m := &model{boot: 1, now: begin}
	m.s = m.d.boot(m.boot, m.now)
	for i := range m.clients {
		m.clients[i].lost()
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
func (c *modelClient) lost() {
	c.c, c.opens, c.complete = nil, make(map[modelKey]*modelOpen), false
	c.dirs, c.revoked = make(map[int]*modelDir), 0
}

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
