package nfs4

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// results holds the results of a compound against what each piece wants.
func (w *randomWorld) results(p *reply, pieces []piece) {
	w.current = state.Anonymous
	for i := range pieces {
		k := &pieces[i]
		st := p.next(k.op)
		w.count(table[k.op].name + " " + short(st))
		var must, may []nfs.Status
		if k.want != nil {
			must, may = k.want()
		}
		if w.broken { // a client that cannot be remembered, or not be forgotten, makes clients wait
			may = append(may, nfs.ErrJukebox, nfs.ErrGrace, nfs.ErrLocked)
		}
		good := w.expect(k.text+" "+table[k.op].name, st, must, may)
		switch {
		case good && k.ok != nil:
			k.ok(p)
		case !good && k.bad != nil:
			k.bad(st, p)
		}
		if !good {
			break
		}
	}
	p.end()
}

func (w *randomWorld) putFH(fh []byte) piece {
	return piece{op: OpPutFH, a: op(OpPutFH, fh), ok: func(*reply) { w.current = state.Anonymous }}
}

func (w *randomWorld) completePiece(c *modelClient) piece {
	return piece{op: OpReclaimComplete, a: op(OpReclaimComplete, false), want: func() (must, may []nfs.Status) {
		if c.complete {
			must = append(must, nfs.ErrCompleteAlready)
		}
		return must, nil
	}, ok: func(*reply) {
		c.complete, c.before = true, nil
		if w.finished == nil {
			w.finished = make(map[string]bool)
		}
		w.finished[c.owner] = true
	}}
}

// staying are the statuses after which the number of an owner stays as it is (RFC 7530 section
// 9.1.7).
var staying = []nfs.Status{
	nfs.ErrStaleClientID, nfs.ErrStaleStateID, nfs.ErrBadStateID, nfs.ErrBadSeqID, nfs.ErrBadXDR, nfs.ErrResource,
	nfs.ErrNoFileHandle, nfs.ErrMoved,
}

// turn40 is the number of an owner in a request of version 4.0.
type turn40 struct {
	owners map[string]*modelOwner
	name   string
	seq    uint32
	needs  *modelState // the stateid by which the owner is found; nil: it is not needed afterwards
}

// turn chooses the number of a request: mostly the next.
func (w *randomWorld) turn(owners map[string]*modelOwner, name string, needs *modelState) *turn40 {
	t := &turn40{owners, name, w.rnd.Uint32(), needs}
	if o := owners[name]; o != nil {
		t.seq = o.seq + 1
		if o.confirmed && w.chance(4) {
			t.seq += 1 + uint32(w.rnd.IntN(3))
		}
	}
	return t
}

// wrong says that a request is out of order. An open-owner without an open may be forgotten after a
// lease.
func (w *randomWorld) wrong(c *modelClient, t *turn40) (must, may []nfs.Status) {
	o := t.owners[t.name]
	switch {
	case t.owners == nil:
		return nil, []nfs.Status{nfs.ErrBadSeqID}
	case o == nil:
		return nil, nil
	case w.idle(c, t, o):
		o.confirmed = false // as far as is known
		return nil, []nfs.Status{nfs.ErrBadSeqID}
	case !o.confirmed || t.seq == o.seq+1:
		return nil, nil
	}
	return []nfs.Status{nfs.ErrBadSeqID}, nil
}

func (w *randomWorld) idle(c *modelClient, t *turn40, o *modelOwner) bool {
	return o.opens && w.model.now.Sub(o.used) > modelLease &&
		!slices.ContainsFunc(c.live(anOpen), func(s *modelState) bool { return s.owner == t.name })
}

// run40 sends pieces in a compound of version 4.0. The last one is the request of an owner, if
// there is a turn.
func (w *randomWorld) run40(c *modelClient, t *turn40, pieces ...piece) {
	last := &pieces[len(pieces)-1]
	if t != nil {
		want := last.want
		last.want = func() (must, may []nfs.Status) {
			must, may = want()
			first, maybe := w.wrong(c, t)
			return append(must, first...), append(may, maybe...)
		}
	}
	all := make([]args, len(pieces))
	for i := range pieces {
		all[i] = pieces[i].a
	}
	body := bodyOf(0, all...)
	var got nfs.Status
	ok, bad := last.ok, last.bad
	last.ok = func(p *reply) {
		if ok != nil {
			ok(p)
		}
	}
	last.bad = func(st nfs.Status, p *reply) {
		got = st
		if bad != nil {
			bad(st, p)
		}
	}
	p, raw := w.call(c, body)
	w.results(p, pieces)
	if t == nil || t.owners == nil || slices.Contains(staying, got) {
		return
	}
	o := t.owners[t.name]
	if o == nil {
		o = &modelOwner{opens: true} // a lock-owner comes with its first lock
		t.owners[t.name] = o
	}
	o.seq, o.used, o.last, o.answer, o.states = t.seq, w.model.now, body, raw, nil
	if t.needs != nil {
		o.states = []*modelState{t.needs}
	}
}

// renewed notes that a stateid renews the lease of a client of version 4.0.
func (w *randomWorld) renewed(c *modelClient, id state.Stateid) {
	if n := words(id.Other[:]); n[0] == w.boot && uint64(n[0])<<32|uint64(n[1]) == c.id {
		c.seen = w.model.now
	}
}

func owners(c *modelClient, rnd *rand.Rand) string { return []string{"p", "q"}[rnd.IntN(2)] }

// pick is a stateid for an operation: mostly the right one.
func (w *randomWorld) pick(c *modelClient, kind int, io bool) (id state.Stateid, s *modelState) {
	if list := c.live(kind); len(list) > 0 && w.chance(85) {
		s = list[w.rnd.IntN(len(list))]
		id = s.id
		if c.minor > 0 && w.chance(15) {
			id.Seq = 0
		}
		return id, s
	}
	all := c.states
	switch w.rnd.IntN(9) {
	case 0, 1:
		if len(all) > 0 { // of whatever kind, there or gone
			s = all[w.rnd.IntN(len(all))]
			return s.id, s
		}
	case 2:
		if len(all) > 0 {
			s = all[w.rnd.IntN(len(all))]
			id = s.id
			if id.Seq--; id.Seq == 0 && c.minor > 0 {
				id.Seq = 1<<32 - 1
			}
			return id, s
		}
	case 3:
		if len(all) > 0 {
			s = all[w.rnd.IntN(len(all))]
			id = s.id
			id.Seq += 1 + uint32(w.rnd.IntN(5))
			return id, s
		}
	case 4:
		if len(c.past) > 0 {
			return c.past[w.rnd.IntN(len(c.past))], nil
		}
	case 5:
		d := w.clients[w.rnd.IntN(len(w.clients))]
		if d != c && len(d.states) > 0 && (c.minor > 0 || d.minor > 0) {
			return d.states[w.rnd.IntN(len(d.states))].id, nil
		}
	case 6:
		return state.Anonymous, nil
	case 7:
		return state.Bypass, nil
	case 8:
		if c.minor > 0 {
			return state.Current, nil
		}
	}
	id.Seq = 1
	for i, n := range []uint32{w.boot, uint32(c.id), 1 << 30} {
		id.Other[4*i+0], id.Other[4*i+1], id.Other[4*i+2], id.Other[4*i+3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	}
	return id, nil
}

// fileOf is the file of a state, or now and then another.
func (w *randomWorld) fileOf(s *modelState) int {
	if s == nil || s.file == dirAt || w.chance(4) {
		return w.rnd.IntN(randomFiles)
	}
	return s.file
}

// someRange is a range between edges, or now and then none.
func (w *randomWorld) someRange() (off, n uint64) {
	i := w.rnd.IntN(len(edges))
	off = edges[i]
	switch j := i + 1 + w.rnd.IntN(4); {
	case w.chance(3):
		return off, 0
	case w.chance(3) && off > 1:
		return off, -off // to the last byte, as a length that does not fit
	case w.chance(3) && off > 1:
		return off, 1<<64 - 2
	case j < len(edges):
		return off, edges[j] - off
	}
	return off, 1<<64 - 1
}

func (w *randomWorld) openPiece(c *modelClient, owner string, file int, access, deny, claim uint32, t *turn40) piece {
	want := access
	if !w.deleg && c.minor > 0 {
		want |= WantNoDeleg
	}
	seq := uint32(0)
	if t != nil {
		seq = t.seq
	}
	how := part(uint32(ClaimNull), fileNames[file:file+1])
	switch claim {
	case ClaimPrevious:
		how = part(uint32(ClaimPrevious), uint32(DelegNone))
	case ClaimFH:
		how = part(uint32(ClaimFH))
	}
	p := piece{op: OpOpen, a: op(OpOpen, seq, want, deny, c.id, owner, uint32(OpenNoCreate), how)}
	p.text = fmt.Sprintf("file %d, owner %s, access %d, deny %d, claim %d:", file, owner, access, deny, claim)
	var waits []*modelState
	forgotten := false // the owner may be
	p.want = func() (must, may []nfs.Status) {
		if c.minor == 0 {
			c.seen = w.model.now
			forgotten = c.owners[owner] != nil && w.idle(c, t, c.owners[owner])
			if o := c.owners[owner]; o != nil && !o.confirmed {
				for _, s := range c.live(anOpen) { // what it has not confirmed counts for nothing
					if s.owner == owner {
						w.drop(c, s)
					}
				}
			}
		}
		conflict := nfs.ErrShareDenied
		if claim == ClaimPrevious {
			conflict = nfs.ErrReclaimConflict
			if c.complete || !w.model.known[c.owner] || !w.graceMaybe() {
				must = append(must, nfs.ErrNoGrace, nfs.ErrReclaimBad)
			} else if !w.graceSure() {
				may = append(may, nfs.ErrNoGrace)
			}
		} else {
			if c.minor > 0 && !c.complete || w.graceSure() {
				must = append(must, nfs.ErrGrace)
			} else if w.graceMaybe() {
				may = append(may, nfs.ErrGrace)
			}
		}
		if w.shareConflict(c, file, access, deny) {
			must = append(must, conflict)
		}
		list, now, maybe := w.delegations(c, file, access&state.Write != 0 || deny != 0)
		waits = list
		if now {
			must = append(must, nfs.ErrJukebox)
		} else if maybe {
			may = append(may, nfs.ErrJukebox)
		}
		return must, may
	}
	p.bad = func(st nfs.Status, _ *reply) { w.waited(waits, st) }
	p.ok = func(p *reply) {
		w.takenAway(waits)
		var id state.Stateid
		confirm := false
		if c.minor == 0 {
			o := p.opened40()
			id, confirm = o.id, o.confirm
		} else {
			p.delegKind = 0
			id, _, _ = p.opened()
		}
		s := c.has(anOpen, owner, file)
		switch {
		case s != nil && (id.Other != s.id.Other || id.Seq != s.id.Seq+1):
			panic(fmt.Sprintf("stateid %v after %v", id, s.id))
		case s == nil && id.Seq != 1:
			panic(fmt.Sprintf("stateid %v is the first", id))
		case s == nil:
			s = &modelState{kind: anOpen, file: file, owner: owner}
			c.states = append(c.states, s)
		}
		s.id, s.access, s.deny = id, s.access|access, s.deny|deny
		s.accessed[access], s.denied[deny] = true, true
		w.current = id
		if c.minor == 0 {
			o := c.owners[owner]
			if o == nil {
				o = &modelOwner{opens: true}
				c.owners[owner] = o
			}
			if confirm && o.confirmed && !forgotten {
				panic("the owner was confirmed")
			}
			o.confirmed = !confirm
		}
		if c.minor > 0 && p.delegKind != 0 && p.delegKind != DelegNoneExt {
			w.count("delegated")
			d := &modelState{kind: aDelegation, id: p.deleg, file: file, write: p.delegKind == delegWrite}
			c.states = append(c.states, d)
		}
	}
	return p
}
