package service

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
)

// locksListed is the maximum length of a list of locks.
const locksListed = 10_000

// NFS4Clients implements control.Backend.
func (s *Service) NFS4Clients() []control.NFS4Client {
	list := s.NFS4.State().Clients(clock.Now())
	out := make([]control.NFS4Client, len(list))
	for i, c := range list {
		out[i] = control.NFS4Client{
			ID: control.ClientID(c.ID), Owner: control.Printable(c.Owner), Confirmed: c.Confirmed, Expired: c.Expired,
			Reclaims: c.Reclaims,
			Renewed:  c.Renewed, Version: c.Version, Delegations: c.Delegations, Revoked: c.Revoked, Copies: c.Offloads,
			Callbacks: callbacks(c.Live, c.Answers), Sessions: c.Sessions, Opens: c.Opens, Locks: c.Locks,
		}
	}
	return out
}

// callbacks describes whether a client can be called back.
func callbacks(live, answers bool) string {
	switch {
	case answers:
		return control.CallbacksAnswered
	case live:
		return control.CallbacksUntried
	}
	return control.CallbacksNone
}

// EvictClient implements control.Backend.
func (s *Service) EvictClient(id string) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(id, "0x"), 16, 64)
	if err != nil {
		return fmt.Errorf("%q is not a client ID; 'rstorectl client list' shows them", id)
	}
	done, err := s.MayAct()
	if err != nil {
		return err
	}
	defer done()
	if !s.NFS4.State().Evict(n) {
		return fmt.Errorf("client %s: %w", control.ClientID(n), control.ErrNotFound)
	}
	s.Log.Info("a client of version 4 was evicted", zap.String("client", control.ClientID(n)))
	return nil
}

// NFS4Sessions implements control.Backend.
func (s *Service) NFS4Sessions() []control.NFS4Session {
	list := s.NFS4.State().Sessions()
	out := make([]control.NFS4Session, len(list))
	for i, s := range list {
		out[i] = control.NFS4Session{
			ID: s.ID, Client: control.ClientID(s.Client), Minor: s.Minor, Slots: s.Fore.MaxSlots, Used: s.Used, Busy: s.Busy,
			MaxRequest: s.Fore.MaxRequest, MaxResponse: s.Fore.MaxResponse, CachedReplies: s.CachedReplies,
		}
	}
	return out
}

// files returns a function that finds the export and the file ID of a file. It asks the store once
// for each file.
func (s *Service) files() func(f lock.File) (export string, id uint64) {
	ids := make(map[lock.File]uint64)
	return func(f lock.File) (export string, id uint64) {
		e := s.Table.ByID(f.Export)
		if e == nil {
			return "", 0
		}
		id, known := ids[f]
		if !known {
			if a, err := e.FS.GetAttr(&blockstore.Cred{}, f.Handle); err == nil {
				id = a.FileID
			}
			ids[f] = id
		}
		return e.Pseudo, id
	}
}

// Delegations implements control.Backend.
func (s *Service) Delegations() []control.Delegation {
	list := s.NFS4.State().DelegationList(locksListed)
	out := make([]control.Delegation, len(list))
	file := s.files()
	for i, l := range list {
		out[i] = control.Delegation{
			Client: control.ClientID(l.Client), Write: l.Write, Dir: l.Dir, Given: l.Given,
			Recalled: l.Recalled, Acknowledged: l.Acknowledged,
		}
		out[i].Export, out[i].FileID = file(l.File)
		if l.Recalled {
			out[i].Until = &l.Until
		}
	}
	return out
}

// Locks implements control.Backend.
func (s *Service) Locks() []control.FileLock {
	list := s.LockTable.List(locksListed)
	out := make([]control.FileLock, 0, len(list))
	file := s.files()
	for _, l := range list {
		x := control.FileLock{
			Client: control.Printable(l.Owner.Client), Owner: hex.EncodeToString([]byte(l.Owner.ID)),
			Start: l.Start, End: l.End, Exclusive: l.Exclusive, Waiting: l.Waiting,
		}
		x.Export, x.FileID = file(l.File)
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b control.FileLock) int {
		return cmp.Or(cmp.Compare(a.Export, b.Export), cmp.Compare(a.FileID, b.FileID), cmp.Compare(a.Start, b.Start),
			cmp.Compare(a.Client, b.Client), cmp.Compare(a.Owner, b.Owner))
	})
	return out
}

// Grace implements control.Backend.
func (s *Service) Grace() control.Grace {
	out := control.Grace{Waiting: []string{}}
	if g := s.NFS4.State().GraceState(clock.Now()); g.On {
		out.On, out.NFS4Until = true, &g.Until
		for _, w := range g.Waiting {
			out.Waiting = append(out.Waiting, control.Printable(w))
		}
	}
	if until, on := s.NLM.GraceUntil(); on {
		out.On, out.NLMUntil = true, &until
	}
	return out
}

// EndGrace implements control.Backend.
func (s *Service) EndGrace() error {
	done, err := s.MayAct()
	if err != nil {
		return err
	}
	defer done()
	s.NLM.EndGrace()
	if err := s.NFS4.State().EndGrace(clock.Now()); err != nil {
		return err
	}
	s.Log.Info("the grace period was ended")
	return nil
}
