package nfs4

import (
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// expect fails unless st is one of must, or of may; without must, OK is.
func (w *randomWorld) expect(what string, st nfs.Status, must, may []nfs.Status) bool {
	w.note("    %s: %v", what, st)
	if len(must) == 0 {
		must = []nfs.Status{nfs.OK}
	}
	if !slices.Contains(must, st) && !slices.Contains(may, st) {
		panic(fmt.Sprintf("%s: %v instead of %v, or %v", what, st, must, may))
	}
	return st == nfs.OK
}

func (w *randomWorld) do(c *modelClient, kind string) {
	switch kind {
	case "join":
		w.join(c)
	case "reboot":
		c.verf++
		c.before = nil
		if c.minor == 0 {
			w.set40(c, w.chance(70))
		} else {
			w.exchange41(c)
			if w.chance(70) {
				w.newSession(c)
			}
		}
	case "session":
		if c.minor > 0 && c.id != 0 {
			w.sessionAgain(c)
		}
	case "destroy":
		if c.minor > 0 && c.id != 0 {
			w.destroy(c)
		}
	case "stranger":
		w.stranger(c)
	case "pass":
		w.pass()
	case "restart":
		w.restart()
	case "journal":
		w.broken = !w.broken && w.chance(60)
		w.stuck = w.stuck || w.broken
	case "handover":
		w.succeed(w.callees...)
		w.startHosts()
	case "complete":
		if c.minor > 0 && len(c.sessions) > 0 {
			w.run(c, w.completePiece(c))
		}
	case "reclaim":
		if c.id != 0 {
			w.reclaim(c)
		}
	case "version 3":
		w.version3()
	case "resend":
		w.resend(c)
	case "false retry":
		w.falseRetry(c)
	case "compound":
		if c.id != 0 && (c.minor == 0 || len(c.sessions) > 0) {
			w.compoundOf(c)
		}
	}
}

func (w *randomWorld) pass() {
	for _, c := range w.clients { // those that wait for a confirmation go after a lease
		for _, o := range c.live(anOpen) {
			if c.unconfirmed(o) {
				w.openConfirm(c, o)
			}
		}
	}
	d := time.Duration(w.rnd.IntN(50)) * time.Second
	if w.chance(10) {
		d = modelLease + time.Second
	}
	w.model.now = w.model.now.Add(d)
	w.rig.now = w.model.now
	w.note("    %v", d)
}

func (w *randomWorld) restart() {
	for _, c := range w.clients {
		if c.minor > 0 && c.complete || c.minor == 0 && !w.model.now.Before(w.until) {
			c.before = append(c.live(anOpen), c.live(aLock)...)
			for _, s := range c.before {
				s.segsOf(w, c)
			}
			for _, o := range c.live(anOpen) {
				if c.unconfirmed(o) {
					c.before = slices.DeleteFunc(c.before, func(s *modelState) bool { return s == o })
				}
			}
		} else if c.minor > 0 && !w.graceMaybe() && w.until.After(time.Time{}) {
			c.before = nil // it has not said in time that it is done
		}
		if !c.complete && w.stuck && !slices.Contains(w.rig.known, c.owner) {
			c.before = nil
		}
		if len(c.before) > 0 && !slices.Contains(w.rig.known, c.owner) {
			panic(fmt.Sprintf("client %d cannot reclaim %d states", c.n, len(c.before)))
		}
		for _, s := range c.before {
			s.reclaimed = false
		}
		before := c.before
		w.lost(c)
		c.before, c.back = before, nil
	}
	for f := range w.held {
		clear(w.held[f])
	}
	w.boot++
	w.locks = lock.New(0)
	w.model.known, w.finished = make(map[string]bool), make(map[string]bool)
	for _, o := range w.rig.known {
		w.model.known[o] = true
	}
	w.until, w.stuck = w.model.now.Add(modelLease), w.broken
	w.start(w.boot)
	w.startHosts()
}

// join makes a client that has none a record, and a session if it lacks one.
func (w *randomWorld) join(c *modelClient) {
	switch {
	case c.minor == 0:
		if c.id == 0 {
			w.set40(c, true)
		} else {
			st, _ := w.one(c, OpRenew, op(OpRenew, c.id))
			w.expect("RENEW", st, nil, nil)
			c.seen = w.model.now
		}
	case len(c.sessions) == 0:
		w.exchange41(c)
		w.newSession(c)
	}
}

func (w *randomWorld) set40(c *modelClient, confirm bool) {
	st, p := w.one(c, OpSetClientID, setClientOp(c.owner, c.verf, "tcp", uaddr))
	w.expect("SETCLIENTID", st, nil, nil)
	w.reconcile()
	c.pending, c.confirm = p.Uint64(), decodeVerifier(p.Decoder)
	if c.id != 0 && c.pending == c.id {
		w.note("    the same client")
	}
	wrong := c.confirm
	wrong[7]++
	if w.chance(20) {
		st, _ := w.one(c, OpSetClientIDConfirm, confirmOp(c.pending, wrong))
		w.expect("SETCLIENTID_CONFIRM of another", st, []nfs.Status{nfs.ErrStaleClientID}, nil)
	}
	if !confirm {
		return
	}
	st, _ = w.one(c, OpSetClientIDConfirm, confirmOp(c.pending, c.confirm))
	w.expect("SETCLIENTID_CONFIRM", st, nil, nil)
	if c.pending != c.id {
		w.lost(c)
		c.seen = w.model.now
	}
	c.id = c.pending
}

func (w *randomWorld) exchange41(c *modelClient) {
	st, p := w.one(c, OpExchangeID, exchangeArgs(c.owner, c.verf, exchMovedRefer))
	w.expect("EXCHANGE_ID", st, nil, nil)
	w.reconcile()
	id, seq, flags := p.Uint64(), p.Uint32(), p.Uint32()
	if (id == c.id) != (flags&exchConfirmed != 0) {
		panic(fmt.Sprintf("EXCHANGE_ID: client %x, flags %x, it was %x", id, flags, c.id))
	}
	if id == c.id && seq != c.creates+1 {
		panic(fmt.Sprintf("EXCHANGE_ID: sequence %d after %d", seq, c.creates))
	}
	c.pending = id
	if id != c.id && seq != 1 {
		c.pending = 0
		panic(fmt.Sprintf("sequence %d of a new client", seq))
	}
}

func createOp(id uint64, seq, flags uint32) args {
	return op(OpCreateSession, id, seq, flags, channelArgs(1<<20, 1<<20, 2048, 32, 8), channelArgs(4096, 4096, 0, 2, 16),
		uint32(0x40000000), uint32(1), uint32(0))
}

// newSession is CREATE_SESSION of what EXCHANGE_ID gave, sent twice now and then.
func (w *randomWorld) newSession(c *modelClient) {
	seq := uint32(1)
	if c.pending == c.id {
		seq = c.creates + 1
	}
	if w.chance(20) {
		st, _ := w.one(c, OpCreateSession, createOp(c.pending, seq+1, 2))
		w.expect("CREATE_SESSION out of order", st, []nfs.Status{nfs.ErrSeqMisordered}, nil)
	}
	if w.deleg {
		c.back = newCallee(w.j)
		c.back.answer = w.notified
		w.callees = append(w.callees, c.back)
	}
	st, p := w.one(c, OpCreateSession, createOp(c.pending, seq, 2))
	w.expect("CREATE_SESSION", st, nil, nil)
	id := DecodeSessionID(p.Decoder)
	if c.pending != c.id {
		w.lost(c)
		c.id = c.pending
	}
	c.creates, c.seen = seq, w.model.now
	c.sessions = append(c.sessions, &modelSession{id: id})
	w.sameSession(c)
}

// sameSession sends the last CREATE_SESSION again.
func (w *randomWorld) sameSession(c *modelClient) {
	st, p := w.one(c, OpCreateSession, createOp(c.id, c.creates, 2))
	w.expect("CREATE_SESSION again", st, nil, nil)
	if id := DecodeSessionID(p.Decoder); c.creates > 0 && len(c.sessions) > 0 && id != c.sessions[len(c.sessions)-1].id {
		panic("another session")
	}
}

func (w *randomWorld) sessionAgain(c *modelClient) {
	if len(c.sessions) > 3 {
		return
	}
	c.pending = c.id
	w.newSession(c)
}

// destroy is DESTROY_SESSION, or DESTROY_CLIENTID.
func (w *randomWorld) destroy(c *modelClient) {
	if len(c.sessions) == 0 || w.chance(20) {
		st, _ := w.one(c, OpDestroyClientID, op(OpDestroyClientID, c.id))
		var must []nfs.Status
		if len(c.sessions) > 0 || slices.ContainsFunc(c.states, func(s *modelState) bool { return !s.gone }) {
			must = []nfs.Status{nfs.ErrClientIDBusy}
		}
		if w.expect("DESTROY_CLIENTID", st, must, nil) {
			w.lost(c)
			c.before = nil
		}
		return
	}
	i := w.rnd.IntN(len(c.sessions))
	id := c.sessions[i].id
	if w.chance(30) { // by somebody else
		w.as(c)
		w.uid = 77
		st := w.compound(c.minor, op(OpDestroySession, id)).next(OpDestroySession)
		c.xid = w.xid
		w.expect("DESTROY_SESSION by another user", st, []nfs.Status{nfs.ErrBadSession, nfs.ErrPerm, nfs.ErrAcces}, nil)
		return
	}
	if w.chance(50) {
		st, _ := w.one(c, OpDestroySession, op(OpDestroySession, id))
		w.expect("DESTROY_SESSION", st, nil, nil)
	} else {
		w.runIn(c, c.sessions[w.rnd.IntN(len(c.sessions))], piece{op: OpDestroySession, a: op(OpDestroySession, id)})
	}
	c.sessions = slices.DeleteFunc(c.sessions, func(x *modelSession) bool { return x.id == id })
	st, _ := w.one(c, OpDestroySession, op(OpDestroySession, id))
	w.expect("DESTROY_SESSION again", st, []nfs.Status{nfs.ErrBadSession}, nil)
}

// stranger has another user of the host ask for a client that is in use.
func (w *randomWorld) stranger(c *modelClient) {
	if c.id == 0 || w.expired(c) ||
		len(c.sessions) == 0 && !slices.ContainsFunc(c.states, func(s *modelState) bool { return !s.gone }) {
		return
	}
	w.as(c)
	w.uid = 77
	var st nfs.Status
	if c.minor == 0 {
		st = w.compound(0, setClientOp(c.owner, 99, "tcp", uaddr)).next(OpSetClientID)
	} else {
		st = w.compound(c.minor, exchangeArgs(c.owner, 99, 0)).next(OpExchangeID)
	}
	c.xid = w.xid
	w.expect("another user", st, []nfs.Status{nfs.ErrClientIDInUse}, nil)
}

// piece is an operation of a compound: what it may answer is asked for when the answers to those
// before it are known.
type piece struct {
	op   uint32
	a    args
	want func() (must, may []nfs.Status)
	ok   func(p *reply)
	bad  func(st nfs.Status, p *reply)
	text string
}

// run sends pieces in a slot of some session of a client.
func (w *randomWorld) run(c *modelClient, pieces ...piece) {
	w.runIn(c, c.sessions[w.rnd.IntN(len(c.sessions))], pieces...)
}

func (w *randomWorld) runIn(c *modelClient, x *modelSession, pieces ...piece) {
	n := uint32(w.rnd.IntN(len(x.slots)))
	slot := &x.slots[n]
	cache := w.chance(50)
	at := func(seq, slot uint32) args { return op(OpSequence, x.id, seq, slot, max(slot, 3), cache) }
	all := []args{at(slot.seq+1, n)}
	for _, p := range pieces {
		all = append(all, p.a)
	}
	if w.chance(3) {
		all[0] = at(slot.seq+2+uint32(w.rnd.IntN(3)), n)
		p, _ := w.call(c, bodyOf(c.minor, all...))
		w.expect("SEQUENCE out of order", p.next(OpSequence), []nfs.Status{nfs.ErrSeqMisordered}, nil)
		all[0] = at(slot.seq+1, 8)
		p, _ = w.call(c, bodyOf(c.minor, all...))
		w.expect("SEQUENCE in slot 8", p.next(OpSequence), []nfs.Status{nfs.ErrBadSlot}, nil)
		all[0] = at(slot.seq+1, n)
	}
	body := bodyOf(c.minor, all...)
	p, raw := w.call(c, body)
	w.expect("SEQUENCE", p.next(OpSequence), nil, nil)
	c.seen = w.model.now
	p.Skip(16 + 5*4)
	*slot = modelSlot{slot.seq + 1, body, raw, cache, 0}
	w.results(p, pieces)
}
