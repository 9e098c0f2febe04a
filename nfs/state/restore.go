package state

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"
)

// errSnapshot wraps every error of a snapshot that Snapshot cannot have made.
var errSnapshot = errors.New("the state of version 4 that was handed over is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errSnapshot}, args...)...)
}

// Bounds of a session in a snapshot. gob itself allocates no more than the stream has bytes for.
const (
	savedSlotsMax = 1 << 16 // slots of one session
	savedReplyMax = 1 << 24 // bytes of one cached reply
)

// restorer restores a snapshot. Locks are taken only where a function that Restore shares with the
// running server takes them: nothing else uses the server yet.
//
// The order within a client follows the links between its states:
//
//	owners of version 4.0   their seqids and cached answers
//	opens, lock stateids    link to the owners
//	lock-owners             checked: each has a lock stateid
//	delegations
//	sessions                callbacks in their slots link to delegations
//	copies                  need a session to call back
//
// The opens, slots and owners that gob has decoded become those of the server. Nothing is copied.
type restorer struct {
	s     *Server
	funcs RestoreFuncs
	delta time.Duration // clock of this process minus clock of the old one, at the handover
}

// shift moves a time in Unix nanoseconds to the clock of this process; 0 means never.
func (r *restorer) shift(at int64) int64 {
	if at == 0 {
		return 0
	}
	return at + int64(r.delta)
}

// shiftTime is shift for a time.Time; the zero time means never.
func (r *restorer) shiftTime(at time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Add(r.delta)
}

// Restore makes a server without clients go on from a snapshot: with the same boot, grace period
// and clients. Client IDs, session IDs and stateids stay valid, so clients notice nothing but a
// pause. The lock table has been restored before.
//
// After an error the server must not be used: a part of the snapshot is in its tables. The
// successor then exits, and the old process, which still has all of its state, resumes.
//
// The snapshot is checked like input from outside. A wrong one must not make the successor panic
// later, grant conflicting delegations, or keep state that nothing ever ends. recover covers what
// the checks do not, such as a panic of gob.
func (s *Server) Restore(data []byte, now time.Time, funcs RestoreFuncs) (err error) {
	if len(s.clients) > 0 {
		return errors.New("state of version 4 can be handed over to a server without clients only")
	}
	defer func() {
		if p := recover(); p != nil {
			err = damaged("%v", p)
		}
	}()
	in := bytes.NewReader(data)
	dec := gob.NewDecoder(in)
	var x savedServer
	if err := dec.Decode(&x); err != nil {
		return damaged("%v", err)
	}
	r := &restorer{s: s, funcs: funcs, delta: time.Duration(now.UnixNano() - x.Now)}
	if err := r.server(&x); err != nil {
		return err
	}
	for {
		var x savedClient
		if err := dec.Decode(&x); err != nil {
			return damaged("%v", err)
		}
		if x.ID == 0 {
			break // the end mark; Decode reports an error if the stream was cut before it
		}
		if err := r.client(&x); err != nil {
			return fmt.Errorf("client %#016x: %w", x.ID, err)
		}
	}
	if in.Len() > 0 {
		return damaged("%d bytes after its end", in.Len())
	}
	return nil
}

// server restores what belongs to no client: the boot number, counters, reservations of other
// protocols, and the grace period.
//
// The boot number of the configuration is dropped for that of the old process: with another one all
// IDs and stateids of the clients would be stale. The limits of the configuration stay. A client
// that exceeds a lower limit keeps its state and gets nothing new.
func (r *restorer) server(x *savedServer) error {
	s := r.s
	if x.Boot == 0 || x.Boot == 1<<32-1 || len(x.Expired) > expiredMax {
		return damaged("boot %#x, %d expired clients", x.Boot, len(x.Expired))
	}
	s.cfg.Boot, s.next, s.confirms, s.expired = x.Boot, x.Next, x.Confirms, x.Expired
	s.swept.Store(r.shift(x.Swept))
	n := &s.delegs
	n.possible.Store(x.Possible)
	n.given.Store(x.Delegations.Given)
	n.recalls.Store(x.Delegations.Recalls)
	n.denied.Store(x.Delegations.Waits)
	n.revoked.Store(x.Delegations.Revoked)
	for _, y := range x.Foreign {
		if y.File.Handle.Len == 0 {
			return damaged("a reservation without a file")
		}
		for _, z := range y.List {
			z.Access, z.Deny = z.Access&Both, z.Deny&Both
			s.addForeign(s.shardOfFile(y.File), y.File, z)
			s.shares.foreign.Add(1)
		}
	}
	for _, y := range x.Recalls {
		s.shardOfFile(y.File).deleg.noteRecall(y.File, r.shift(y.At))
	}
	g := &s.grace
	g.init(&Config{Journal: g.journal, Known: x.Grace.Known, GraceUntil: r.shiftTime(x.Grace.Until)})
	clear(g.waiting)
	for _, owner := range x.Grace.Waiting {
		g.waiting[owner] = true
	}
	clear(g.list)
	for _, owner := range x.Grace.List {
		g.list[owner] = nil // until its client is restored, see client
	}
	g.on.Store(x.Grace.On)
	return nil
}

// client restores a client record and its states. No limit on memory or on the clients of a host
// applies: the old process has granted all of this, and refusing it now would be a loss of state.
// The first address of the binding decides which host the memory is charged to, as it did for the
// old process unless join has dropped that address since.
//
// Each owner string has one confirmed and one unconfirmed record at most. A second one is damage:
// the first would never be found by its owner string again.
func (r *restorer) client(x *savedClient) error {
	s := r.s
	n := uint32(x.ID)
	if uint32(x.ID>>32) != s.cfg.Boot || n == 0 || s.clients[n] != nil {
		return damaged("it is of another boot, or there twice")
	}
	c := s.newClient(x.ID, x.Owner, x.Verifier, x.Principal)
	c.known, c.complete, c.nstate, c.recalledAny, c.create = x.Known, x.Complete, x.NState, r.shift(x.RecalledAny),
		x.Create
	c.protected = x.Protected
	c.bound.Store(x.Bound)
	var host netip.Addr
	if x.Bound != nil && len(x.Bound.Hosts) > 0 {
		host = x.Bound.Hosts[0]
	}
	c.account, c.noExport = s.mem.enter(host, math.MaxInt64), x.NoExport
	c.charge(int64(clientCost + len(c.owner)))
	c.confirmed.Store(x.Confirmed)
	if c.listed.Store(x.Listed); x.Listed {
		s.grace.list[c.owner] = c
	}
	c.renewed.Store(x.Renewed + int64(r.delta))
	rec := s.owners[c.owner]
	if rec == nil {
		rec = new(records)
		s.owners[c.owner] = rec
	}
	place := &rec.unconfirmed
	if x.Confirmed {
		place = &rec.confirmed
	}
	if *place != nil {
		return damaged("its owner string is another client's, too")
	}
	*place = c
	s.clients[n] = c
	if !c.noExport {
		c.admitted()
	}
	if x.V40 != nil {
		if err := r.v40(c, x.V40); err != nil {
			return err
		}
	}
	err := each(c, x.Opens, r.open)
	if err == nil {
		err = lockOwnersUsed(c)
	}
	if err == nil {
		err = each(c, x.Delegs, r.deleg)
	}
	if err == nil {
		err = each(c, x.Sessions, r.session) // a callback of a session refers to a delegation
	}
	if err == nil {
		err = each(c, x.Offloads, r.offload)
	}
	if err == nil {
		err = each(c, x.Notices, r.notice)
	}
	return err
}

// each calls restore for each element, until one fails.
func each[T any](c *Client, list []T, restore func(*Client, T) error) error {
	for _, x := range list {
		if err := restore(c, x); err != nil {
			return err
		}
	}
	return nil
}
