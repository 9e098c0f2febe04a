package nfs4

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// reclaim has a client reclaim some of what it had: in versions 4.1 and later all in one compound,
// each owner's opens with the locks of them. Without any it tries what it may not.
func (w *randomWorld) reclaim(c *modelClient) {
	if c.minor > 0 && len(c.sessions) == 0 {
		return
	}
	var opens []*modelState
	for _, o := range c.before {
		if o.kind == anOpen && !o.reclaimed && w.chance(80) {
			opens = append(opens, o)
		}
	}
	allowed := !c.complete && w.model.known[c.owner] && w.graceMaybe()
	if !allowed || len(opens) == 0 {
		if !allowed && w.chance(30) {
			file := w.rnd.IntN(randomFiles)
			if c.minor > 0 {
				w.run(c, w.putFH(w.fhs[file]), w.openPiece(c, "p", file, state.Read, 0, ClaimPrevious, nil))
			} else {
				t := w.turn(c.owners, "p", nil)
				w.run40(c, t, w.putFH(w.fhs[file]), w.openPiece(c, "p", file, state.Read, 0, ClaimPrevious, t))
			}
		}
		return
	}
	var all []piece
	save := piece{op: OpSaveFH, a: op(OpSaveFH)}
	var saved state.Stateid
	save.ok = func(*reply) { saved = w.current }
	restore := piece{op: OpRestoreFH, a: op(OpRestoreFH), ok: func(*reply) { w.current = saved }}
	for _, o := range opens {
		var locks []*modelState
		n := 0
		for _, l := range c.before {
			if l.kind == aLock && l.open == o {
				locks = append(locks, l)
				for i, k := range l.segs {
					if k != 0 && (i == 0 || l.segs[i-1] != k) {
						n++
					}
				}
			}
		}
		if len(all)+4+2*len(locks)+n > 30 {
			break
		}
		o.reclaimed = true
		w.count("reclaimed")
		if c.minor == 0 {
			w.reclaim40(c, o, locks)
			continue
		}
		all = append(all, w.putFH(w.fhs[o.file]), w.openPiece(c, o.owner, o.file, o.access, o.deny, ClaimPrevious, nil), save)
		for _, l := range locks {
			all = append(all, restore)
			byOpen := true
			l.eachRange(func(off, n uint64, exclusive bool) {
				all = append(all, w.lockPiece(c, byOpen, state.Current, nil, l.owner, o.file, off, n, exclusive, true, nil, nil))
				byOpen = false
			})
		}
	}
	if len(all) > 0 {
		w.run(c, all...)
	}
}

// eachRange calls do with each range of a lock's segments.
func (s *modelState) eachRange(do func(off, n uint64, exclusive bool)) {
	for i := 0; i < len(s.segs); i++ {
		if s.segs[i] == 0 {
			continue
		}
		j := i
		for j < len(s.segs) && s.segs[j] == s.segs[i] {
			j++
		}
		n := uint64(1<<64 - 1)
		if j < len(s.segs) {
			n = edges[j] - edges[i]
		}
		do(edges[i], n, s.segs[i] == 2)
		i = j - 1
	}
}

func (w *randomWorld) reclaim40(c *modelClient, o *modelState, locks []*modelState) {
	t := w.turn(c.owners, o.owner, nil)
	w.run40(c, t, w.putFH(w.fhs[o.file]), w.openPiece(c, o.owner, o.file, o.access, o.deny, ClaimPrevious, t))
	open := c.has(anOpen, o.owner, o.file)
	for _, l := range locks {
		l.eachRange(func(off, n uint64, exclusive bool) {
			if open == nil {
				return
			}
			if have := c.has(aLock, l.owner, o.file); have != nil {
				t := w.turnOf(c, have, aLock)
				w.run40(c, t, w.putFH(w.fhs[o.file]),
					w.lockPiece(c, false, have.id, have, l.owner, o.file, off, n, exclusive, true, t, nil))
				return
			}
			t, lt := w.turnOf(c, open, anOpen), w.turn(c.lockers, l.owner, nil)
			w.run40(c, t, w.putFH(w.fhs[o.file]),
				w.lockPiece(c, true, open.id, open, l.owner, o.file, off, n, exclusive, true, t, lt))
		})
	}
}

// version3 is a lock by NLM.
func (w *randomWorld) version3() {
	host := 1 + w.rnd.IntN(2)
	who, file := holder{-host, []string{"x", "y"}[w.rnd.IntN(2)]}, w.rnd.IntN(randomFiles)
	i := w.rnd.IntN(len(edges))
	j := i + 1 + w.rnd.IntN(4)
	l := nlm.Lock{
		Caller: fmt.Sprintf("host%d", host), Handle: w.fhs[file], Owner: []byte(who.owner), SVID: 1,
		Offset: edges[i],
	}
	if j < len(edges) {
		l.Length = edges[j] - edges[i]
	} else {
		j = len(edges)
	}
	exclusive := w.chance(50)
	proc := []uint32{nlm.ProcLock, nlm.ProcLock, nlm.ProcUnlock, nlm.ProcTest}[w.rnd.IntN(4)]
	var e xdr.Encoder
	w.xid3++ // a call with the XID of another one is answered by its reply
	rpc.EncodeCall(&e, w.xid3, nlm.Program, nlm.Version, proc, nil)
	e.Opaque([]byte("cookie"))
	switch proc {
	case nlm.ProcLock:
		e.Bool(false)
		e.Bool(exclusive)
	case nlm.ProcTest:
		e.Bool(exclusive)
	}
	nlm.EncodeLock(&e, &l)
	if proc == nlm.ProcLock {
		e.Bool(false)
		e.Uint32(3)
	}
	done := make(chan []byte, 1)
	k := &rpc.Call{Peer: rpc.Peer{
		Addr:  netip.MustParseAddrPort("10.0.0.1:600"),
		Local: netip.MustParseAddrPort("10.0.0.100:2049"),
	}, BulkMax: -1}
	k.Reply = func(k *rpc.Call, _ bool) { done <- k.Res.AppendFlat(nil) }
	w.hosts.Dispatch(k, xdr.NewDecoder(e.AppendFlat(nil)), true)
	d := xdr.NewDecoder(<-done)
	if err := rpc.DecodeReply(&d, w.xid3); err != nil {
		panic(err)
	}
	d.Opaque(10)
	st := nlm.Stat(d.Uint32())
	w.note("    procedure %d of %v, file %d, segments %d to %d, exclusive %v: %d", proc, who, file, i, j, exclusive, st)
	want := nlm.Granted
	if proc != nlm.ProcUnlock {
		switch {
		case w.graceSure(), w.graceMaybe() && st == nlm.DeniedGrace:
			want = nlm.DeniedGrace
		case w.lockConflict(who, file, i, j, exclusive):
			want = nlm.Denied
			w.count("version 3 denied")
		}
	}
	if w.broken && (st == nlm.Denied || st == nlm.DeniedGrace) {
		return // a silent client has it
	}
	if st != want {
		panic(fmt.Sprintf("version 3: status %d instead of %d", st, want))
	}
	switch {
	case st == nlm.Granted && proc == nlm.ProcLock:
		w.count("version 3 granted")
		kind := uint8(1)
		if exclusive {
			kind = 2
		}
		w.setLock(who, file, i, j, kind)
	case proc == nlm.ProcUnlock:
		w.setLock(who, file, i, j, 0)
	}
}

// resend sends a request again: it has to be answered as before, and to change nothing.
func (w *randomWorld) resend(c *modelClient) {
	if c.id == 0 {
		return
	}
	if c.minor > 0 {
		for _, x := range c.sessions {
			for i := range x.slots {
				if s := &x.slots[i]; s.request != nil && w.chance(50) {
					w.resendSlot(c, s)
				}
			}
		}
		return
	}
	if len(c.calls) > 0 && w.chance(60) {
		k := c.calls[w.rnd.IntN(len(c.calls))]
		if w.chance(30) {
			c.conn++ // a new connection from the same port
		}
		w.as(c)
		w.xid = k.xid - 1
		w.send(k.request)
		if !bytes.Equal(w.raw, k.want) {
			panic(fmt.Sprintf("call %d sent again:\n%x\ninstead of\n%x", k.xid, w.raw, k.want))
		}
		w.count("sent again")
		return
	}
	for _, owners := range []map[string]*modelOwner{c.owners, c.lockers} {
		for _, name := range []string{"p", "q"} {
			o := owners[name]
			if o == nil || o.last == nil || w.model.now.Sub(o.used) > modelLease ||
				slices.ContainsFunc(o.states, func(s *modelState) bool { return s.gone }) {
				continue
			}
			w.as(c)
			w.send(o.last)
			c.xid = w.xid
			c.seen = w.model.now
			if !bytes.Equal(w.raw[4:], o.answer[4:]) {
				panic(fmt.Sprintf("the last request of %s sent again:\n%x\ninstead of\n%x", name, w.raw[4:], o.answer[4:]))
			}
			w.count("owner's request again")
		}
	}
}

func (w *randomWorld) resendSlot(c *modelClient, s *modelSlot) {
	w.as(c)
	if w.chance(50) {
		w.xid = words(s.reply)[0] - 1
	}
	w.conn.Conn += int64(w.rnd.IntN(2))
	d, st := w.send(s.request)
	c.xid = max(c.xid, w.xid)
	c.seen = w.model.now
	w.count("sent again")
	if bytes.Equal(w.raw[4:], s.reply[4:]) {
		return
	}
	p := w.parse(d, st)
	if s.cache || p.status != nfs.ErrRetryUncachedRep {
		panic(fmt.Sprintf("a request sent again:\n%x\ninstead of\n%x", w.raw[4:], s.reply[4:]))
	}
}

// falseRetry sends other requests with the number of the last one of a slot.
func (w *randomWorld) falseRetry(c *modelClient) {
	for _, x := range c.sessions {
		for i := range x.slots {
			s := &x.slots[i]
			if s.request == nil {
				continue
			}
			try := func(uid uint32, body []byte) {
				w.as(c)
				w.uid = uid
				st := w.parse(w.send(body)).next(OpSequence)
				c.xid, c.seen = w.xid, w.model.now
				w.expect("another request in the place of the last", st, []nfs.Status{nfs.ErrSeqFalseRetry}, nil)
			}
			try(77, s.request)
			other := bytes.Clone(s.request)
			at := len(other) - 1 - w.rnd.IntN(len(other)-52) // behind the SEQUENCE
			other[at] ^= 1 << w.rnd.IntN(8)
			try(0, other)
		}
	}
}

// TestRandomNotices: the model fails where the server is wrong.
func TestRandomNotices(t *testing.T) {
	for name, harm := range map[string]func(w *randomWorld) bool{
		"a lock is gone": func(w *randomWorld) bool {
			for _, c := range w.clients {
				if c.id != 0 && w.locks.Drop(fmt.Sprintf("nfs4 %016x", c.id)) {
					return true
				}
			}
			return false
		},
		"a lock is there that nobody asked for": func(w *randomWorld) bool {
			_, ok, _ := w.locks.Lock(w.files[0],
				lock.Lock{Owner: lock.Owner{Client: "10.0.0.9 host", ID: "x"}, Start: 5, End: 1<<32 - 1})
			return ok
		},
		"a live client is gone": func(w *randomWorld) bool {
			for _, c := range w.clients {
				if c.id != 0 && !w.expired(c) {
					return w.s.State().Evict(c.id)
				}
			}
			return false
		},
		"a byte of a file is another": func(w *randomWorld) bool {
			_, _, _, err := w.fs.WriteAt(nil, w.files[0].Handle, []byte{0xff}, 0, blockstore.FileSync)
			return err == nil
		},
		"a directory was given back": func(w *randomWorld) bool {
			for _, c := range w.clients {
				if d := c.has(aDelegation, "", dirAt); d != nil {
					at, st := w.s.State().Client(c.id)
					return st == nfs.OK && at.ReturnDelegation(d.id, w.files[dirAt]) == nfs.OK
				}
			}
			return false
		},
		"a client is told of a change that there was not": func(w *randomWorld) bool {
			w.s.dirChanged(w.files[dirAt], &nfs.DirEvent{Added: "x"})
			return w.s.dirs.sent.Load() > 0
		},
		"an open was given back": func(w *randomWorld) bool {
			for _, c := range w.clients {
				if list := c.live(anOpen); len(list) > 0 && c.minor > 0 {
					at, st := w.s.State().Client(c.id)
					return st == nfs.OK && at.Close(list[0].id, w.files[list[0].file]) == nfs.OK
				}
			}
			return false
		},
	} {
		harmed := false
		var err error
		for seed := uint64(1); seed < 50 && !harmed; seed++ {
			_, err = playWith(t, seed, program(seed), func(w *randomWorld, i int) {
				if i > 40 && !harmed {
					harmed = harm(w)
				}
			})
		}
		if !harmed || err == nil {
			t.Errorf("%s: %v, %v", name, harmed, err)
		}
	}
}
