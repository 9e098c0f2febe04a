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
	savedSlotsMax = 1 << 16
	savedReplyMax = 1 << 24
)

// restorer restores a snapshot. No lock is taken: the server is not in use yet.
type restorer struct {
	s     *Server
	funcs RestoreFuncs
	delta time.Duration // from the clock of the old process to that of this one
}

// shift moves a time in Unix nanoseconds to the clock of this process; 0 means never.
func (r *restorer) shift(at int64) int64 {
	if at == 0 {
		return 0
	}
	return at + int64(r.delta)
}

func (r *restorer) shiftTime(at time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Add(r.delta)
}

// Restore makes a server without clients go on from a snapshot: with the same boot, grace period
// and clients. The lock table has been restored before. After an error the server must not be used.
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
			break
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

func (r *restorer) server(x *savedServer) error {
	s := r.s
	if x.Boot == 0 || x.Boot == 1<<32-1 || len(x.Lapsed) > lapsedMax {
		return damaged("boot %#x, %d lapsed clients", x.Boot, len(x.Lapsed))
	}
	s.cfg.Boot, s.next, s.confirms, s.lapsed = x.Boot, x.Next, x.Confirms, x.Lapsed
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
		g.list[owner] = nil // until its client is restored
	}
	g.on.Store(x.Grace.On)
	return nil
}

func (r *restorer) client(x *savedClient) error {
	s := r.s
	n := uint32(x.ID)
	if uint32(x.ID>>32) != s.cfg.Boot || n == 0 || s.clients[n] != nil {
		return damaged("it is of another boot, or there twice")
	}
	c := s.newClient(x.ID, x.Owner, x.Verifier, x.Principal)
	c.known, c.complete, c.nstate, c.relieved, c.create = x.Known, x.Complete, x.NState, r.shift(x.Relieved), x.Create
	c.bound.Store(x.Bound)
	var host netip.Addr
	if x.Bound != nil && len(x.Bound.Hosts) > 0 {
		host = x.Bound.Hosts[0]
	}
	c.account, c.stranger = s.mem.enter(host, math.MaxInt64), x.Stranger
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
	if !c.stranger {
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
