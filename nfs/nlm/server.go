package nlm

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Client is a host that has, or had, locks here.
type Client struct {
	Name string     `json:"name"`
	Addr netip.Addr `json:"addr"`
	// Server is our address as the client knows it.
	Server netip.Addr `json:"server"`
}

func (c *Client) key() string { return c.Addr.String() + " " + c.Name }

// Caller calls a procedure of a program on another host, which its portmap finds.
// res may be nil. It is called from several goroutines.
type Caller func(ctx context.Context, host netip.Addr, prog, vers, proc uint32, args func(*xdr.Encoder), res func(*xdr.Decoder) error) error

// Config describes a server.
type Config struct {
	Exports *nfs.Table
	Codec   *nfs.Codec
	Locks   *lock.Table
	Call    Caller
	// Known are the clients that had locks before the server was started: they
	// are told, and may reclaim their locks during Grace, in which nobody gets
	// others. Without any there is no grace period. 0 means 45 seconds.
	Known []Client
	Grace time.Duration
	// OthersReclaim reports whether clients of another protocol may be reclaiming
	// locks: then nobody gets new ones here either. Silent is told the client of a lock
	// that is in the way, and reports whether that was one of another protocol that has
	// not been heard of for long; its locks are gone then. Both may be nil.
	OthersReclaim func() bool
	Silent        func(client string) bool
	// Delegations are those of version 4, whose clients take locks without a word; nil
	// means that there are none.
	Delegations nfs.Delegations
	// Groups knows the groups of users, for rules that take them from there; nil: from the calls.
	Groups nfs.Groups
	// Shares is where share reservations go, and those of version 4 are; nil grants none.
	Shares nfs.Shares
	// State counts the starts of the server; it is odd.
	State int32
	// Remember keeps the list of clients with locks for the next start. It returns
	// when the list is safe.
	Remember func([]Client) error
	Logger   *slog.Logger
}

// Bounds, and how patient the server is.
const (
	graceDefault = 45 * time.Second
	// clientsMax bounds the clients that are remembered; no more get locks.
	clientsMax = 4096
	// callLimit bounds one call to a client, callTries the attempts.
	callLimit = 5 * time.Second
	callTries = 3
	// againAfter is when a client is told again that it has a lock.
	againAfter = 100 * time.Millisecond
	// pollDefault is how often the host is asked for locks that clients wait for.
	pollDefault = time.Second
)

// Server serves both programs. See Programs.
type Server struct {
	cfg       Config
	log       *slog.Logger
	until     time.Time   // end of the grace period
	ended     atomic.Bool // it was ended before
	calls     sync.WaitGroup
	polling   atomic.Bool
	pollEvery time.Duration

	mu      sync.Mutex
	ctx     context.Context // of the calls to clients
	stop    context.CancelFunc
	clients map[string]Client   // by key
	notices map[Client]struct{} // clients that are being told of the start
	grants  map[*grant]struct{} // locks that clients are being told of
}

// grant is a lock that was granted to who waited for it, and is to be told.
type grant struct {
	waiting
	file lock.File
	have *lock.Lock
}

// New makes a server, and begins to tell the known clients. Close ends it.
func New(cfg Config) *Server {
	if cfg.Grace == 0 {
		cfg.Grace = graceDefault
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Remember == nil {
		cfg.Remember = func([]Client) error { return nil }
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, pollEvery: pollDefault,
		clients: make(map[string]Client), notices: make(map[Client]struct{}), grants: make(map[*grant]struct{}),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if len(cfg.Known) > 0 {
		s.until = clock.Now().Add(cfg.Grace)
		s.log.Info("clients may reclaim their locks", "clients", len(cfg.Known), "for", cfg.Grace.String())
	}
	for _, c := range cfg.Known {
		s.clients[c.key()] = c
		s.notices[c] = struct{}{}
		s.background(func(ctx context.Context) { s.notify(ctx, c) })
	}
	return s
}

// Close ends the calls to clients. Locks stay as they are.
func (s *Server) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.calls.Wait()
}

// background has something done that ends with ctx.
func (s *Server) background(f func(ctx context.Context)) {
	s.mu.Lock()
	ctx := s.ctx
	s.mu.Unlock()
	s.calls.Go(func() { f(ctx) })
}

func (s *Server) grace() bool { return !s.ended.Load() && clock.Now().Before(s.until) }

// EndGrace ends the grace period: locks that were not reclaimed are gone.
func (s *Server) EndGrace() { s.ended.Store(true) }

// GraceUntil is the end of the grace period, and whether it is still on.
func (s *Server) GraceUntil() (time.Time, bool) { return s.until, s.grace() }

// Grace reports whether clients may reclaim locks, so that nobody gets new ones.
func (s *Server) Grace() bool { return s.grace() }

// wait reports whether a call has to come again after a grace period.
func (s *Server) wait(reclaim bool) bool {
	return s.grace() != reclaim || !reclaim && s.cfg.OthersReclaim != nil && s.cfg.OthersReclaim()
}

// inTheWay reports the first lock that l would have to wait for, once those of silent
// clients are gone.
func (s *Server) inTheWay(f lock.File, l lock.Lock, test func(lock.File, lock.Lock) (lock.Lock, bool)) (holder lock.Lock, free bool) {
	for {
		holder, free = test(f, l)
		if free || s.cfg.Silent == nil || !s.cfg.Silent(holder.Owner.Client) {
			return holder, free
		}
	}
}

// Programs returns the tables of NLM and of the status monitor.
func (s *Server) Programs() []rpc.Program {
	p := make([]rpc.Proc, numProcs)
	row := func(n int, name string, f func(*rpc.Call) rpc.Status) {
		p[n] = rpc.Proc{Name: name, Serve: func(c *rpc.Call, _ bool) rpc.Status { return f(c) }}
	}
	nothing := func(*rpc.Call) rpc.Status { return rpc.Done }
	row(ProcNull, "NULL", nothing)
	for _, q := range []struct {
		name string
		proc int
		do   func(*rpc.Call) (answer func(*xdr.Encoder), ok bool)
	}{
		{"TEST", ProcTest, s.test},
		{"LOCK", ProcLock, func(c *rpc.Call) (func(*xdr.Encoder), bool) { return s.lock(c, true) }},
		{"CANCEL", ProcCancel, s.cancel},
		{"UNLOCK", ProcUnlock, s.unlock},
	} {
		row(q.proc, q.name, func(c *rpc.Call) rpc.Status {
			answer, ok := q.do(c)
			if !ok {
				return rpc.Garbage
			}
			answer(&c.Res)
			return rpc.Done
		})
		const msg, res = ProcTestMsg - ProcTest, ProcTestRes - ProcTest
		row(q.proc+msg, q.name+"_MSG", func(c *rpc.Call) rpc.Status {
			answer, ok := q.do(c)
			if !ok {
				return rpc.Garbage
			}
			to := c.Peer.Addr.Addr()
			s.background(func(ctx context.Context) {
				if err := s.call(ctx, to, Program, Version, uint32(q.proc+res), answer, nil); err != nil {
					s.log.Debug("answering a lock message", "client", to.String(), "error", err.Error())
				}
			})
			return rpc.Done
		})
		// Nothing is asked by message here, so answers are nobody's.
		row(q.proc+res, q.name+"_RES", nothing)
	}
	row(ProcGrantedRes, "GRANTED_RES", nothing)
	row(ProcShare, "SHARE", s.share)
	row(ProcUnshare, "UNSHARE", s.unshare)
	row(ProcNMLock, "NM_LOCK", func(c *rpc.Call) rpc.Status {
		answer, ok := s.lock(c, false)
		if !ok {
			return rpc.Garbage
		}
		answer(&c.Res)
		return rpc.Done
	})
	row(ProcFreeAll, "FREE_ALL", s.freeAll)
	return []rpc.Program{
		{Name: "nlm4", Prog: Program, Vers: Version, Procs: p},
		{Name: "status", Prog: StatusProgram, Vers: StatusVersion, Procs: s.statusProcs()},
	}
}

// purpose is what a procedure wants a file for.
type purpose uint8

const (
	// toFree gives up what its owner has, or asked for. Who has lost the permission may still do that.
	toFree purpose = iota
	toRead
	toWrite
	// toDeny keeps others from reading, which takes the right to write.
	toDeny
)

// takes are the rights of which who does not own the file needs one.
func (p purpose) takes() uint32 {
	if p == toDeny {
		return blockstore.AccessModify
	}
	return blockstore.AccessRead | blockstore.AccessModify
}

func purposeOf(write bool) purpose {
	if write {
		return toWrite
	}
	return toRead
}

// place finds the file of a lock and who asks for it.
func (s *Server) place(c *rpc.Call, l *Lock, why purpose) (f lock.File, o lock.Owner, st Stat) {
	id, h, err := s.cfg.Codec.Parse(l.Handle)
	if err != nil {
		return f, o, StaleHandle
	}
	x := s.cfg.Exports.ByID(id)
	if x == nil {
		return f, o, StaleHandle
	}
	rule, admits := x.Admits(&c.Peer)
	if admits != nfs.OK {
		return f, o, Failed
	}
	if why >= toWrite && (x.ReadOnly || rule.RO) {
		return f, o, ReadOnly
	}
	a, err := x.FS.GetAttr(nil, h)
	switch {
	case errors.Is(err, blockstore.ErrStale), errors.Is(err, blockstore.ErrBadHandle), errors.Is(err, blockstore.ErrNotExist):
		return f, o, StaleHandle
	case err != nil || a.Type != blockstore.TypeReg:
		return f, o, Failed
	case why != toFree && !s.mayLock(x, rule, c, h, &a, why.takes()):
		return f, o, Failed
	}
	who := Client{Name: l.Caller, Addr: c.Peer.Addr.Addr().Unmap()}
	return lock.File{Export: id, Handle: h}, lock.Owner{Client: who.key(), ID: l.ownerID()}, Granted
}

// mayLock reports whether the caller may lock a file: its owner, and who has one of some rights. Any lock keeps
// others from theirs, and a lock on the host keeps its programs from theirs.
func (s *Server) mayLock(x *nfs.Export, rule *nfs.ClientRule, c *rpc.Call, h blockstore.Handle, a *blockstore.Attr, rights uint32) bool {
	var who blockstore.Cred
	if !rule.Identity(&c.Cred, s.cfg.Groups, true, &who) {
		return false
	}
	if who.Owns(a) {
		return true
	}
	got, _, err := x.FS.Access(&who, h, rights)
	return err == nil && got != 0
}

// result is the answer of most procedures: cookie and outcome.
func result(cookie []byte, st Stat) func(*xdr.Encoder) {
	cookie = bytes.Clone(cookie)
	return func(e *xdr.Encoder) {
		e.Opaque(cookie)
		e.Uint32(uint32(st))
	}
}

func (s *Server) test(c *rpc.Call) (func(*xdr.Encoder), bool) {
	d := &c.Args
	cookie := d.Opaque(stringMax)
	exclusive := d.Bool()
	l := DecodeLock(d)
	if d.Err() != nil {
		return nil, false
	}
	end, ok := l.last()
	if !ok {
		return result(cookie, TooBig), true
	}
	f, o, st := s.place(c, &l, toRead)
	switch {
	case st != Granted:
		return result(cookie, st), true
	case s.wait(false), s.cfg.Delegations != nil && !s.cfg.Delegations.Free(f, true, true):
		return result(cookie, DeniedGrace), true
	}
	holder, free := s.inTheWay(f, lock.Lock{Owner: o, Start: l.Offset, End: end, Exclusive: exclusive}, s.cfg.Locks.Probe)
	if free {
		return result(cookie, Granted), true
	}
	denied := result(cookie, Denied)
	return func(e *xdr.Encoder) {
		denied(e)
		encodeHolder(e, &holder)
	}, true
}

// lock takes a lock; monitored says that the client must be remembered.
func (s *Server) lock(c *rpc.Call, monitored bool) (func(*xdr.Encoder), bool) {
	d := &c.Args
	cookie := d.Opaque(stringMax)
	block, exclusive := d.Bool(), d.Bool()
	l := DecodeLock(d)
	reclaim := d.Bool()
	d.Uint32() // the client's status monitor's state
	if d.Err() != nil {
		return nil, false
	}
	end, ok := l.last()
	if !ok {
		return result(cookie, TooBig), true
	}
	f, o, st := s.place(c, &l, purposeOf(exclusive))
	if st != Granted {
		return result(cookie, st), true
	}
	if s.wait(reclaim) {
		return result(cookie, DeniedGrace), true
	}
	if s.cfg.Delegations != nil && !reclaim {
		// Who has the file delegated takes locks without a word.
		begun, ok := s.cfg.Delegations.BeginChange(f)
		if begun {
			defer s.cfg.Delegations.EndChange(f)
		}
		if !ok {
			return result(cookie, DeniedGrace), true // come again
		}
	}
	who := Client{Name: l.Caller, Addr: c.Peer.Addr.Addr().Unmap(), Server: c.Peer.Local.Addr().Unmap()}
	if monitored && !s.remember(who) {
		return result(cookie, DeniedNoLocks), true
	}
	want := lock.Lock{Owner: o, Start: l.Offset, End: end, Exclusive: exclusive}
	s.inTheWay(f, want, s.cfg.Locks.Test)
	if !block {
		_, taken, err := s.cfg.Locks.Lock(f, want)
		switch {
		case err != nil:
			st = DeniedNoLocks
		case !taken:
			st = Denied
		}
		return result(cookie, st), true
	}
	l.Handle, l.Owner = bytes.Clone(l.Handle), bytes.Clone(l.Owner)
	q := waiting{who, bytes.Clone(cookie), l}
	w := &lock.Waiter{Lock: want, Note: q.encode()}
	w.Granted = func() { s.tell(&grant{q, f, &w.Lock}) }
	taken, err := s.cfg.Locks.Wait(f, w)
	switch {
	case errors.Is(err, lock.ErrDeadlock):
		st = Deadlock
	case err != nil:
		st = DeniedNoLocks
	case !taken:
		st = Blocked
		s.poll()
	}
	return result(cookie, st), true
}

// poll has those who wait tried again as long as there are any: the host does not say when
// one of its programs gives a lock up.
func (s *Server) poll() {
	if !s.cfg.Locks.OnHost() || !s.polling.CompareAndSwap(false, true) {
		return
	}
	s.background(func(ctx context.Context) {
		t := time.NewTicker(s.pollEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				s.polling.Store(false)
				return
			}
			if s.cfg.Locks.Retry() > 0 {
				continue
			}
			s.polling.Store(false)
			// Somebody may have begun to wait, and seen that this goes on.
			if _, waiting := s.cfg.Locks.Count(); waiting == 0 || !s.polling.CompareAndSwap(false, true) {
				return
			}
		}
	})
}

// tell has a client told of a lock.
func (s *Server) tell(g *grant) {
	s.mu.Lock()
	s.grants[g] = struct{}{}
	s.mu.Unlock()
	s.background(func(ctx context.Context) { s.granted(ctx, g) })
}

// granted tells a client that it has the lock that it waits for. If it does not
// want it any more, or cannot be told, it has it not.
func (s *Server) granted(ctx context.Context, g *grant) {
	st := Failed
	tell := func() error {
		return s.call(ctx, g.who.Addr, Program, Version, ProcGranted, func(e *xdr.Encoder) {
			e.Opaque(g.cookie)
			e.Bool(g.have.Exclusive)
			EncodeLock(e, &g.lock)
		}, func(d *xdr.Decoder) error {
			d.Opaque(stringMax)
			st = Stat(d.Uint32())
			return d.Err()
		})
	}
	err := tell()
	if err == nil && st != Granted {
		// It may not have seen yet that it is to wait.
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
		}
		err = tell()
	}
	if ctx.Err() != nil && (err != nil || st != Granted) {
		return // it is told later, or by the next process
	}
	s.mu.Lock()
	delete(s.grants, g)
	s.mu.Unlock()
	if err == nil && st == Granted {
		return
	}
	if err != nil {
		s.log.Warn("a client could not be told that it has the lock it waited for; it has lost its turn",
			"client", g.who.Name, "addr", g.who.Addr.String(), "error", err.Error())
	}
	s.cfg.Locks.Unlock(g.file, g.have.Owner, g.have.Start, g.have.End)
}

func (s *Server) cancel(c *rpc.Call) (func(*xdr.Encoder), bool) {
	d := &c.Args
	cookie := d.Opaque(stringMax)
	d.Bool() // block
	exclusive := d.Bool()
	l := DecodeLock(d)
	if d.Err() != nil {
		return nil, false
	}
	end, ok := l.last()
	if !ok {
		return result(cookie, TooBig), true
	}
	f, o, st := s.place(c, &l, toFree)
	switch {
	case st != Granted:
	case s.grace():
		st = DeniedGrace
	case !s.cfg.Locks.Cancel(f, lock.Lock{Owner: o, Start: l.Offset, End: end, Exclusive: exclusive}):
		st = Denied // it was granted meanwhile: the client gives it up by UNLOCK
	}
	return result(cookie, st), true
}

func (s *Server) unlock(c *rpc.Call) (func(*xdr.Encoder), bool) {
	d := &c.Args
	cookie := d.Opaque(stringMax)
	l := DecodeLock(d)
	if d.Err() != nil {
		return nil, false
	}
	end, ok := l.last()
	if !ok {
		return result(cookie, TooBig), true
	}
	f, o, st := s.place(c, &l, toFree)
	switch {
	case st != Granted:
	case s.grace():
		st = DeniedGrace
	default:
		s.cfg.Locks.Unlock(f, o, l.Offset, end)
	}
	return result(cookie, st), true
}

// decodeShare reads an nlm4_shareargs up to its last word.
func (s *Server) decodeShare(c *rpc.Call) (cookie []byte, l Lock, mode, access uint32, reclaim bool) {
	d := &c.Args
	cookie = d.Opaque(stringMax)
	l.Caller, l.Handle, l.Owner = d.String(stringMax), d.Opaque(nfs.HandleMax), d.Opaque(stringMax)
	mode, access = d.Uint32(), d.Uint32()
	return cookie, l, mode, access, d.Bool()
}

// share is SHARE, the reservations of DOS: what an owner does (access) must not be
// what another denies (mode), as bits 1 for reading and 2 for writing.
func (s *Server) share(c *rpc.Call) rpc.Status {
	cookie, l, mode, access, reclaim := s.decodeShare(c)
	if c.Args.Err() != nil {
		return rpc.Garbage
	}
	why := purposeOf(access&2 != 0)
	if mode&1 != 0 {
		why = toDeny
	}
	f, o, st := s.place(c, &l, why)
	who := Client{Name: l.Caller, Addr: c.Peer.Addr.Addr().Unmap(), Server: c.Peer.Local.Addr().Unmap()}
	switch {
	case st != Granted:
	case s.wait(reclaim):
		st = DeniedGrace
	case !s.remember(who):
		st = DeniedNoLocks
	default:
		st = s.reserve(f, o, who.Addr, mode, access)
	}
	result(cookie, st)(&c.Res)
	c.Res.Uint32(0) // sequence
	return rpc.Done
}

// reserve enters a reservation in the table that version 4 has, too.
func (s *Server) reserve(f lock.File, o lock.Owner, host netip.Addr, mode, access uint32) Stat {
	if s.cfg.Shares == nil {
		return DeniedNoLocks
	}
	switch s.cfg.Shares.Reserve(f, o, host, access, mode) {
	case nfs.OK:
		return Granted
	case nfs.ErrShareDenied:
		return Denied
	case nfs.ErrJukebox:
		return DeniedGrace // come again
	}
	return DeniedNoLocks
}

func (s *Server) unshare(c *rpc.Call) rpc.Status {
	cookie, l, _, _, _ := s.decodeShare(c)
	if c.Args.Err() != nil {
		return rpc.Garbage
	}
	f, o, st := s.place(c, &l, toFree)
	if st == Granted && s.cfg.Shares != nil {
		s.cfg.Shares.Unreserve(f, o)
	}
	result(cookie, st)(&c.Res)
	c.Res.Uint32(0)
	return rpc.Done
}

// freeAll is FREE_ALL: a client without a status monitor has started anew.
func (s *Server) freeAll(c *rpc.Call) rpc.Status {
	name := c.Args.String(stringMax)
	c.Args.Uint32() // state
	if c.Args.Err() != nil {
		return rpc.Garbage
	}
	s.gone(&c.Peer, name)
	return rpc.Done
}

// call calls a client, a few times if need be.
func (s *Server) call(parent context.Context, host netip.Addr, prog, vers, proc uint32, args func(*xdr.Encoder), res func(*xdr.Decoder) error) error {
	var err error
	for i := range callTries {
		if i > 0 {
			select {
			case <-time.After(time.Duration(i) * time.Second):
			case <-parent.Done():
				return parent.Err()
			}
		}
		ctx, cancel := context.WithTimeout(parent, callLimit)
		err = s.cfg.Call(ctx, host, prog, vers, proc, args, res)
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}
