package nfs4

import (
	"fmt"
	"slices"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// waited notes that delegations were asked for, and which were taken away before somebody had to
// wait, or was refused.
func (w *randomWorld) waited(list []*modelState, st nfs.Status) {
	there := w.s.State().DelegationList(1 << 10)
	for _, d := range list {
		i := slices.IndexFunc(there, func(x state.DelegInfo) bool {
			return uint32(x.Client) == words(d.id.Other[:])[1] && x.File == w.files[d.file]
		})
		switch {
		case d.recalled.IsZero():
			// With a broken journal the client may have to come again before anything is recalled.
			if st == nfs.ErrJukebox && (!w.broken || i >= 0 && there[i].Recalled) {
				d.recalled = w.model.now
			}
		case w.model.now.Sub(d.recalled) > modelLease && i < 0:
			w.takenAway([]*modelState{d}) // and somebody has to wait for another one
		}
	}
}

// takenAway notes that somebody did not have to wait for delegations any more.
func (w *randomWorld) takenAway(list []*modelState) {
	for _, d := range list {
		w.count("revoked")
		d.revoked = true
	}
}

func (w *randomWorld) openConfirm(c *modelClient, s *modelState) {
	o := c.owners[s.owner]
	t := &turn40{c.owners, s.owner, o.seq + 1, s}
	w.run40(c, t, w.putFH(w.fhs[s.file]), piece{
		op: OpOpenConfirm, a: op(OpOpenConfirm, s.id, t.seq), text: s.owner,
		want: func() (must, may []nfs.Status) { w.renewed(c, s.id); return nil, nil },
		ok: func(p *reply) {
			s.id, o.confirmed = DecodeStateid(p.Decoder), true
		},
	})
}

func (w *randomWorld) lockPiece(c *modelClient, byOpen bool, id state.Stateid, s *modelState, locker string, file int,
	off, n uint64, exclusive, reclaim bool, t, l *turn40,
) piece {
	kind, typ := aLock, uint32(LockRead)
	if exclusive {
		typ = LockWrite
	}
	var seq, lockSeq uint32
	if t != nil {
		seq = t.seq
	}
	if l != nil {
		lockSeq = l.seq
	}
	a := op(OpLock, typ, reclaim, off, n, false, id, seq)
	if byOpen {
		kind = anOpen
		a = op(OpLock, typ, reclaim, off, n, true, seq, id, lockSeq, c.id, locker)
	}
	p := piece{op: OpLock, a: a, text: fmt.Sprintf("file %d, %x by open %v, %s, %d+%d exclusive %v, reclaims %v:", file,
		id, byOpen, locker, off, n, exclusive, reclaim)}
	var from *modelState // the open
	var have *modelState // the lock
	i, j, fits := segments(off, n)
	p.want = func() (must, may []nfs.Status) {
		if byOpen && c.minor == 0 {
			c.seen = w.model.now
		}
		w.renewed(c, id)
		from, have = nil, nil
		of, errs := w.of(c, w.boot, id, kind, file)
		must = append(must, w.badOnly(errs, nfs.ErrDelegRevoked)...)
		switch {
		case of == nil:
		case byOpen:
			from, have = of, c.has(aLock, locker, file)
		default:
			from, have, locker = of.open, of, of.owner
		}
		if !fits {
			must = append(must, nfs.ErrInval)
		}
		if reclaim {
			if c.complete || !w.model.known[c.owner] || !w.graceMaybe() {
				must = append(must, nfs.ErrNoGrace, nfs.ErrReclaimBad)
			} else if !w.graceSure() {
				may = append(may, nfs.ErrNoGrace)
			}
		} else if c.minor > 0 && !c.complete || w.graceSure() {
			must = append(must, nfs.ErrGrace)
		} else if w.graceMaybe() {
			may = append(may, nfs.ErrGrace)
		}
		need := uint32(state.Read)
		if exclusive {
			need = state.Write
		}
		if from != nil && !reclaim {
			opens := []*modelState{from}
			if have != nil {
				opens = append(opens, have.open)
			}
			lacks := 0
			for _, o := range opens {
				if o.access&need == 0 {
					lacks++
				}
			}
			if lacks == len(opens) {
				must = append(must, nfs.ErrOpenMode)
			} else if lacks > 0 {
				may = append(may, nfs.ErrOpenMode)
			}
		}
		if from != nil && fits && w.lockConflict(holder{c.n, locker}, file, i, j, exclusive) {
			conflict := nfs.ErrDenied
			if reclaim {
				conflict = nfs.ErrReclaimConflict
			}
			must = append(must, conflict)
		}
		if l != nil && byOpen {
			first, _ := w.wrong(c, l)
			must = append(must, first...)
		}
		return must, may
	}
	p.bad = func(st nfs.Status, p *reply) {
		if l != nil && byOpen && t.owners != nil && !slices.Contains(staying, st) && c.lockers[locker] != nil {
			c.lockers[locker].seq, c.lockers[locker].last = l.seq, nil
		}
		if st == nfs.ErrDenied {
			w.deniedBy(p, c, file, i, j, exclusive)
		}
	}
	p.ok = func(p *reply) {
		id := DecodeStateid(p.Decoder)
		switch {
		case have != nil && (id.Other != have.id.Other || id.Seq != have.id.Seq+1):
			panic(fmt.Sprintf("stateid %v after %v", id, have.id))
		case have == nil && id.Seq != 1:
			panic(fmt.Sprintf("stateid %v is the first", id))
		case have == nil:
			have = &modelState{kind: aLock, file: file, owner: locker, open: from}
			c.states = append(c.states, have)
		}
		have.id = id
		w.current = id
		kind := uint8(1)
		if exclusive {
			kind = 2
		}
		w.setLock(holder{c.n, locker}, file, i, j, kind)
		if l != nil && byOpen {
			o := c.lockers[locker]
			if o == nil {
				o = &modelOwner{confirmed: true}
				c.lockers[locker] = o
			}
			o.seq, o.used, o.last = l.seq, w.model.now, nil
		}
	}
	return p
}

// badOnly has one status stand for another that an operation must not return.
func (w *randomWorld) badOnly(list []nfs.Status, not nfs.Status) (out []nfs.Status) {
	for _, st := range list {
		if st == not {
			st = nfs.ErrBadStateID
		}
		out = append(out, st)
	}
	return out
}

// deniedBy checks that a LOCK4denied is of a lock that stands against the one that was asked for.
func (w *randomWorld) deniedBy(p *reply, c *modelClient, file, from, to int, exclusive bool) {
	off, n, typ, client, owner := p.Uint64(), p.Uint64(), p.Uint32(), p.Uint64(), p.String(OwnerMax)
	i, j, ok := segments(off, n)
	if !ok {
		panic(fmt.Sprintf("denied by %d+%d", off, n))
	}
	for h, segs := range w.held[file] {
		if h.client >= 0 && (w.clients[h.client].id != client || h.owner != owner) || h.client < 0 && client != 0 {
			continue
		}
		for k := max(i, from); k < min(j, to); k++ {
			if segs[k] == uint8(typ) && (exclusive || typ == LockWrite) {
				return
			}
		}
	}
	panic(fmt.Sprintf("client %d is denied file %d by %d+%d of type %d, client %x, owner %q, which nobody holds", c.n,
		file, off, n, typ, client, owner))
}

// action is what a client does with a file: a few pieces, and in version 4.0 the turn of the last.
func (w *randomWorld) action(c *modelClient) (pieces []piece, t *turn40) {
	v40 := c.minor == 0
	n := w.rnd.IntN(100)
	if n >= 65 && n < 76 && len(c.live(aLock)) == 0 && w.chance(85) {
		n -= 20 // there is nothing to unlock
	}
	switch {
	case n < 27 || len(c.live(anOpen)) == 0 && n < 60:
		owner, file := owners(c, w.rnd), w.rnd.IntN(randomFiles)
		access, deny := 1+w.rnd.Uint32N(3), uint32(0)
		if w.chance(25) {
			deny = w.rnd.Uint32N(4)
		}
		if v40 {
			t = w.turn(c.owners, owner, nil)
		}
		if !v40 && w.chance(40) {
			return []piece{w.putFH(w.fhs[file]), w.openPiece(c, owner, file, access, deny, ClaimFH, t)}, t
		}
		return []piece{w.putFH(w.dir), w.openPiece(c, owner, file, access, deny, ClaimNull, t)}, t
	case n < 37:
		return w.closeAction(c)
	case n < 42:
		return w.downgradeAction(c)
	case n < 65:
		byOpen := w.chance(60) || len(c.live(aLock)) == 0
		kind := aLock
		if byOpen {
			kind = anOpen
		}
		id, s := w.pick(c, kind, false)
		file := w.fileOf(s)
		off, n := w.someRange()
		locker := owners(c, w.rnd)
		var l *turn40
		if v40 {
			l = w.turn(c.lockers, locker, nil)
			if byOpen {
				t = w.turnOf(c, s, anOpen)
			} else {
				t = w.turnOf(c, s, aLock)
			}
		}
		return []piece{w.putFH(w.fhs[file]), w.lockPiece(c, byOpen, id, s, locker, file, off, n, w.chance(50), false, t, l)},
			t
	case n < 76:
		return w.unlockAction(c)
	case n < 82:
		return w.testAction(c), nil
	case n < 88 || v40:
		return w.ioAction(c), nil
	case n < 95:
		return w.freeAction(c), nil
	case n < 97:
		return w.testStateids(c), nil
	}
	return w.returnAction(c), nil
}

// turnOf is the turn of the owner of a stateid in version 4.0.
func (w *randomWorld) turnOf(c *modelClient, s *modelState, kind int) *turn40 {
	if s == nil || s.gone || s.kind != kind {
		return &turn40{name: "", seq: 1} // nobody's, or that of the stateid that was closed last
	}
	if kind == aLock {
		return w.turn(c.lockers, s.owner, s)
	}
	return w.turn(c.owners, s.owner, s)
}

func (w *randomWorld) closeAction(c *modelClient) ([]piece, *turn40) {
	id, s := w.pick(c, anOpen, false)
	file := w.fileOf(s)
	var t *turn40
	seq := uint32(0)
	if c.minor == 0 {
		t = w.turnOf(c, s, anOpen)
		seq = t.seq
	}
	var of *modelState
	return []piece{w.putFH(w.fhs[file]), {
		op: OpClose, a: op(OpClose, seq, id), text: fmt.Sprintf("file %d, %x:", file, id),
		want: func() (must, may []nfs.Status) {
			w.renewed(c, id)
			of, must = w.of(c, w.boot, id, anOpen, file)
			return w.badOnly(must, nfs.ErrDelegRevoked), nil
		},
		ok: func(p *reply) {
			DecodeStateid(p.Decoder)
			w.drop(c, of)
			w.current = state.Invalid
			if t != nil {
				t.needs = nil
			}
		},
	}}, t
}
