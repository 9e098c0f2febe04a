package nfs4

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// of is find for an operation on a file that wants a stateid of a kind.
func (m *model) of(c *modelClient, boot uint32, id state.Stateid, kind, file int) (*modelState, []nfs.Status) {
	s, errs := m.find(c, boot, id)
	if s == nil {
		return nil, errs
	}
	if len(errs) > 0 && (s.kind != kind || s.file != file) {
		errs = append(errs, nfs.ErrBadStateID)
	}
	if s.kind != kind || s.file != file || kind != aDelegation && c.unconfirmed(s) {
		return nil, append(errs, nfs.ErrBadStateID)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return s, nil
}

// shareConflict reports whether an open stands against one for access that denies deny: that of a
// client that is there (live), or of one that is silent. An owner's own opens count like others
// (RFC 8881 section 9.7).
func (m *model) shareConflict(by *modelClient, file int, access, deny uint32) (live bool) {
	for _, c := range m.clients {
		for _, o := range c.live(anOpen) {
			if o.file == file && (access&o.deny != 0 || deny&o.access != 0) && (c == by || !m.expired(c)) {
				live = true
			}
		}
	}
	return live
}

// delegations of others that stand against reading, or changing, a file. must: somebody has to wait
// for one; may: the server may have taken it away.
func (m *model) delegations(by *modelClient, file int, change bool) (list []*modelState, must, may bool) {
	for _, c := range m.clients {
		for _, d := range c.live(aDelegation) {
			if c == by || d.file != file || !change && !d.write || m.expired(c) {
				continue
			}
			list = append(list, d)
			// A client that goes on writing keeps it for four leases.
			if d.recalled.IsZero() || m.now.Sub(d.recalled) <= modelLease {
				must = true
			} else if m.now.Sub(d.recalled) <= 4*modelLease {
				may = true
			}
		}
	}
	return list, must, may || must
}

// segments are those of a range; ok is false if there is no such range (RFC 8881 section 18.10.3).
func segments(off, n uint64) (from, to int, ok bool) {
	if n == 0 || n != 1<<64-1 && n > 1<<64-1-off {
		return 0, 0, false
	}
	from = slices.Index(edges, off)
	if n == 1<<64-1 {
		return from, len(edges), true
	}
	to = slices.Index(edges, off+n)
	if from < 0 || to < 0 {
		panic(fmt.Sprintf("%d+%d", off, n))
	}
	return from, to, true
}

// lockConflict reports whether a lock of somebody who is there stands against one.
func (m *model) lockConflict(who holder, file, from, to int, exclusive bool) bool {
	for h, segs := range m.held[file] {
		if h == who || h.client >= 0 && h.client != who.client && m.expired(m.clients[h.client]) {
			continue
		}
		for _, s := range segs[from:to] {
			if s == 2 || s == 1 && exclusive {
				return true
			}
		}
	}
	return false
}

func (m *model) setLock(who holder, file, from, to int, kind uint8) {
	segs := m.held[file][who]
	if segs == nil {
		segs = make([]uint8, len(edges))
		m.held[file][who] = segs
	}
	for i := from; i < to; i++ {
		segs[i] = kind
	}
	if !slices.ContainsFunc(segs, func(k uint8) bool { return k != 0 }) {
		delete(m.held[file], who)
	}
}

// drop ends a state, and an open's locks with it.
func (m *model) drop(c *modelClient, s *modelState) {
	s.gone = true
	switch s.kind {
	case anOpen:
		for _, l := range c.live(aLock) {
			if l.open == s {
				m.drop(c, l)
			}
		}
	case aLock:
		delete(m.held[s.file], holder{c.n, s.owner})
		if c.minor == 0 && !slices.ContainsFunc(c.live(aLock), func(l *modelState) bool { return l.owner == s.owner }) {
			delete(c.lockers, s.owner)
		}
	}
}

// mayDowngrade: the modes are a union of some of those that were opened (RFC 8881 section 18.18.3).
func mayDowngrade(opened [4]bool, want uint32) bool {
	var union uint32
	for mode := range uint32(4) {
		if opened[mode] && mode&^want == 0 {
			union |= mode
		}
	}
	return union == want
}

// agree compares what there is with what has to be.
func (m *model) agree(s *state.Server, locks *lock.Table) error {
	var want state.Counts
	for _, c := range m.clients {
		want.Opens += len(c.live(anOpen))
		want.Locks += len(c.live(aLock))
		want.Delegations += len(c.live(aDelegation))
		want.Sessions += len(c.sessions)
		for i, o := range c.live(anOpen) {
			for _, d := range m.clients {
				for j, p := range d.live(anOpen) {
					if (c != d || i != j) && o.owner != p.owner && o.file == p.file && (o.access&p.deny != 0 || o.deny&p.access != 0) {
						return fmt.Errorf("file %d is open twice, by client %d (%d, denied %d) and client %d (%d, denied %d)", o.file,
							c.n, o.access, o.deny, d.n, p.access, p.deny)
					}
				}
				if c == d {
					continue
				}
				for _, p := range d.live(aDelegation) {
					if o.file == p.file && (p.write || o.access&state.Write != 0) && !m.expired(c) && !m.expired(d) {
						return fmt.Errorf("client %d has file %d open and client %d has a delegation of it", c.n, o.file, d.n)
					}
				}
			}
		}
	}
	if got := s.Counts(); got.Opens != want.Opens || got.Locks != want.Locks || got.Delegations != want.Delegations ||
		got.Sessions != want.Sessions {
		return fmt.Errorf("%+v instead of %+v", got, want)
	}
	// Segment by segment: what the server holds, and nothing else.
	have := make([]map[string][]uint8, len(m.files))
	for i := range have {
		have[i] = make(map[string][]uint8)
	}
	for _, l := range locks.List(1 << 20) {
		f := slices.Index(m.files, l.File)
		who := l.Owner.Client + "/" + l.Owner.ID
		if have[f][who] == nil {
			have[f][who] = make([]uint8, len(edges))
		}
		kind := uint8(1)
		if l.Exclusive {
			kind = 2
		}
		for i, at := range edges {
			if l.Start > at || at > l.End {
				continue
			}
			if have[f][who][i] != 0 || i+1 < len(edges) && l.End < edges[i+1]-1 {
				return fmt.Errorf("file %d: odd lock %+v", f, l)
			}
			have[f][who][i] = kind
		}
	}
	for f := range m.held {
		if len(m.held[f]) != len(have[f]) {
			return fmt.Errorf("file %d: %v holds %v instead of %v", f, "the server", have[f], m.held[f])
		}
		for h, segs := range m.held[f] {
			if got := have[f][m.lockName(h)]; !bytes.Equal(got, segs) {
				return fmt.Errorf("file %d: %v holds %v instead of %v", f, h, got, segs)
			}
		}
	}
	return nil
}

// lockName is a holder's name in the table of locks.
func (m *model) lockName(h holder) string {
	if h.client < 0 {
		return fmt.Sprintf("10.0.0.1 host%d/\x00\x00\x00\x01%s", -h.client, h.owner)
	}
	return fmt.Sprintf("nfs4 %016x/%s", m.clients[h.client].id, h.owner)
}
