package nfs4

import (
	"fmt"
	"slices"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

func (w *randomWorld) downgradeAction(c *modelClient) ([]piece, *turn40) {
	id, s := w.pick(c, anOpen, false)
	file := w.fileOf(s)
	access, deny := 1+w.rnd.Uint32N(3), w.rnd.Uint32N(4)
	if w.chance(60) {
		deny = 0
	}
	var t *turn40
	seq := uint32(0)
	if c.minor == 0 {
		t = w.turnOf(c, s, anOpen)
		seq = t.seq
	}
	var of *modelState
	return []piece{w.putFH(w.fhs[file]), {
		op: OpOpenDowngrade, a: op(OpOpenDowngrade, id, seq, access, deny),
		text: fmt.Sprintf("file %d, %x, access %d, deny %d:", file, id, access, deny),
		want: func() (must, may []nfs.Status) {
			w.renewed(c, id)
			of, must = w.of(c, w.boot, id, anOpen, file)
			if of != nil && (!mayDowngrade(of.accessed, access) || !mayDowngrade(of.denied, deny)) {
				must = append(must, nfs.ErrInval)
			}
			return w.badOnly(must, nfs.ErrDelegRevoked), nil
		},
		ok: func(p *reply) {
			of.id, of.access, of.deny = w.next(p, of), access, deny
			for mode := range uint32(4) {
				of.accessed[mode] = of.accessed[mode] && mode&^access == 0
				of.denied[mode] = of.denied[mode] && mode&^deny == 0
			}
		},
	}}, t
}

// next reads the stateid after another.
func (w *randomWorld) next(p *reply, s *modelState) state.Stateid {
	id := DecodeStateid(p.Decoder)
	if id.Other != s.id.Other || id.Seq != s.id.Seq+1 {
		panic(fmt.Sprintf("stateid %v after %v", id, s.id))
	}
	w.current = id
	return id
}

func (w *randomWorld) unlockAction(c *modelClient) ([]piece, *turn40) {
	id, s := w.pick(c, aLock, false)
	file := w.fileOf(s)
	off, n := w.someRange()
	if w.chance(40) {
		off, n = 0, 1<<64-1
	}
	i, j, fits := segments(off, n)
	var t *turn40
	seq := uint32(0)
	if c.minor == 0 {
		t = w.turnOf(c, s, aLock)
		seq = t.seq
	}
	var of *modelState
	return []piece{w.putFH(w.fhs[file]), {
		op: OpLockU, a: op(OpLockU, uint32(LockWrite), seq, id, off, n),
		text: fmt.Sprintf("file %d, %x, %d+%d:", file, id, off, n),
		want: func() (must, may []nfs.Status) {
			w.renewed(c, id)
			of, must = w.of(c, w.boot, id, aLock, file)
			if !fits {
				must = append(must, nfs.ErrInval)
			}
			return w.badOnly(must, nfs.ErrDelegRevoked), nil
		},
		ok: func(p *reply) {
			of.id = w.next(p, of)
			w.setLock(holder{c.n, of.owner}, file, i, j, 0)
		},
	}}, t
}

func (w *randomWorld) testAction(c *modelClient) []piece {
	file, owner := w.rnd.IntN(randomFiles), owners(c, w.rnd)
	off, n := w.someRange()
	i, j, fits := segments(off, n)
	exclusive := w.chance(50)
	typ := uint32(LockRead)
	if exclusive {
		typ = LockWrite
	}
	return []piece{w.putFH(w.fhs[file]), {
		op: OpLockT, a: op(OpLockT, typ, off, n, c.id, owner), text: fmt.Sprintf("file %d, %s, %d+%d:", file, owner, off, n),
		want: func() (must, may []nfs.Status) {
			if c.minor == 0 {
				c.seen = w.model.now
			}
			if !fits {
				return []nfs.Status{nfs.ErrInval}, []nfs.Status{nfs.ErrGrace}
			}
			if w.graceSure() {
				must = append(must, nfs.ErrGrace)
			} else if w.graceMaybe() {
				may = append(may, nfs.ErrGrace)
			}
			if w.lockConflict(holder{c.n, owner}, file, i, j, exclusive) {
				must = append(must, nfs.ErrDenied)
			}
			return must, may
		},
		bad: func(st nfs.Status, p *reply) {
			if st == nfs.ErrDenied {
				w.deniedBy(p, c, file, i, j, exclusive)
			}
		},
	}}
}

func (w *randomWorld) ioAction(c *modelClient) []piece {
	id, s := w.pick(c, w.rnd.IntN(3), true)
	file, write := w.fileOf(s), w.chance(50)
	k, senseless := w.ioPiece(c, id, file, write)
	done := k.ok
	var waits []*modelState
	k.want = func() (must, may []nfs.Status) {
		if senseless {
			defer func() { must = append(must, nfs.ErrInval) }()
		}
		waits = nil
		given := id
		if c.minor > 0 && given == state.Current {
			given = w.current
		}
		w.renewed(c, given)
		if given == state.Anonymous || given == state.Bypass {
			if w.graceSure() {
				must = append(must, nfs.ErrGrace)
			} else if w.graceMaybe() {
				may = append(may, nfs.ErrGrace)
			}
			access := uint32(state.Read)
			if write {
				access = state.Write
			}
			// in version 4.0 nobody knows who it is
			if w.shareConflict(nil, file, access, 0) && (write || given == state.Anonymous) {
				must = append(must, nfs.ErrLocked)
			}
			list, now, maybe := w.delegations(c, file, write)
			waits = list
			if now {
				must = append(must, nfs.ErrJukebox)
			} else if maybe {
				may = append(may, nfs.ErrJukebox)
			}
			return must, may
		}
		s, must := w.find(c, w.boot, given)
		if s == nil {
			return must, nil
		}
		if s.file != file || s.kind != aDelegation && c.unconfirmed(s) {
			must = append(must, nfs.ErrBadStateID)
		}
		if len(must) > 0 {
			return must, nil
		}
		if s.kind == aLock {
			s = s.open
		}
		if write && (s.kind == aDelegation && !s.write || s.kind == anOpen && s.access&state.Write == 0) {
			must = append(must, nfs.ErrOpenMode)
		}
		if !write && s.kind == anOpen && s.access&state.Read == 0 {
			may = append(may, nfs.ErrOpenMode)
		}
		return must, may
	}
	k.bad = func(st nfs.Status, _ *reply) { w.waited(waits, st) }
	k.ok = func(p *reply) {
		w.takenAway(waits)
		done(p)
	}
	return []piece{w.putFH(w.fhs[file]), k}
}

func (w *randomWorld) freeAction(c *modelClient) []piece {
	id, _ := w.pick(c, aLock, false)
	for _, s := range c.states {
		if (s.revoked || s.kind == aLock && !s.gone && w.held[s.file][holder{c.n, s.owner}] == nil) && w.chance(50) {
			id = s.id
		}
	}
	var of *modelState
	return []piece{{
		op: OpFreeStateID, a: op(OpFreeStateID, id), text: fmt.Sprintf("%x:", id),
		want: func() (must, may []nfs.Status) {
			of, must = w.find(c, w.boot, id)
			switch {
			case of != nil && of.revoked:
				return nil, nil
			case len(must) > 0:
				return must, nil
			case of.kind != aLock || w.held[of.file][holder{c.n, of.owner}] != nil:
				return []nfs.Status{nfs.ErrLocksHeld}, nil
			}
			return nil, nil
		},
		ok: func(*reply) { of.revoked = false; w.drop(c, of) },
	}}
}

// testStateids asks for what the client had and has.
func (w *randomWorld) testStateids(c *modelClient) []piece {
	ids := []state.Stateid{state.Anonymous, state.Bypass}
	for _, s := range c.states[max(0, len(c.states)-30):] {
		ids = append(ids, s.id)
	}
	ids = append(ids, c.past...)
	list := []any{uint32(len(ids))}
	for _, id := range ids {
		list = append(list, id)
	}
	return []piece{{op: OpTestStateID, a: op(OpTestStateID, list...), ok: func(p *reply) {
		if n := p.Uint32(); int(n) != len(ids) {
			panic(fmt.Sprintf("TEST_STATEID: %d results of %d", n, len(ids)))
		}
		for _, id := range ids {
			_, must := w.find(c, w.boot, id)
			w.expect(fmt.Sprintf("TEST_STATEID of %x", id), nfs.Status(p.Uint32()), must, nil)
		}
	}}}
}

func (w *randomWorld) returnAction(c *modelClient) []piece {
	id, s := w.pick(c, aDelegation, false)
	file := w.fileOf(s)
	if s != nil && s.file == dirAt && w.chance(90) {
		file = dirAt
	}
	return []piece{w.putFH(w.fhs[file]), w.returnPiece(c, id, file)}
}

func (w *randomWorld) returnPiece(c *modelClient, id state.Stateid, file int) piece {
	var of *modelState
	return piece{
		op: OpDelegReturn, a: op(OpDelegReturn, id), text: fmt.Sprintf("file %d, %x:", file, id),
		want: func() (must, may []nfs.Status) {
			of, must = w.of(c, w.boot, id, aDelegation, file)
			return must, nil
		},
		ok: func(*reply) { w.drop(c, of) },
	}
}

func (w *randomWorld) compoundOf(c *modelClient) {
	if c.minor == 0 {
		if w.chance(6) {
			w.releaseOwner(c)
			return
		}
		if w.chance(8) {
			w.run40(c, nil, w.changeDir(c)...)
			return
		}
		pieces, t := w.action(c)
		w.run40(c, t, pieces...)
		for _, o := range c.live(anOpen) {
			if c.unconfirmed(o) && w.chance(80) {
				w.openConfirm(c, o)
			}
		}
		return
	}
	var all []piece
	for range 1 + w.rnd.IntN(4) {
		switch pieces, _ := w.action(c); {
		case w.deleg && w.chance(10):
			all = append(all, w.askDir(c)...)
		case w.chance(w.dirChance()):
			all = append(all, w.changeDir(c)...)
		default:
			all = append(all, pieces...)
		}
	}
	w.run(c, all...)
}

func (w *randomWorld) releaseOwner(c *modelClient) {
	name := owners(c, w.rnd)
	var must []nfs.Status
	var list []*modelState
	for _, l := range c.live(aLock) {
		if l.owner == name {
			list = append(list, l)
			if w.held[l.file][holder{c.n, name}] != nil {
				must = []nfs.Status{nfs.ErrLocksHeld}
			}
		}
	}
	st, _ := w.one(c, OpReleaseLockOwner, op(OpReleaseLockOwner, c.id, name))
	c.seen = w.model.now
	if w.expect("RELEASE_LOCKOWNER "+name, st, must, nil) {
		for _, l := range list {
			w.drop(c, l)
		}
	}
}

func (s *modelState) segsOf(w *randomWorld, c *modelClient) {
	if s.kind == aLock {
		s.segs = slices.Clone(w.held[s.file][holder{c.n, s.owner}])
	}
}
