package service

import (
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// An upgrade hands over the cached replies, the locks, the lock manager, the state of version 4 and
// the security contexts.

// Names of the parts of the handover.
const (
	partReplies = "replies"
	partLocks   = "locks"
	partNLM     = "lock manager"
	partCallers = "callers"
	partNFS4    = "nfs4"
	// partKerberos has the security contexts with their keys. Without it clients make new contexts.
	partKerberos = "kerberos"
)

// Freeze implements upgrade.Component.
func (s *Service) Freeze(at upgrade.Stage) (thaw func() error, err error) {
	switch at {
	case upgrade.Intake:
		// Calls that wait for a limit are served now, because they do not move to the new process.
		return upgrade.Switch(s.RPC.ServeDeferred), nil
	case upgrade.Callbacks:
		return s.freezeCallbacks(), nil
	}
	return nil, nil
}

func (s *Service) freezeCallbacks() (thaw func() error) {
	return upgrade.Switch(func(on bool) {
		s.NLM.Pause(on)
		s.NFS4.Pause(on)
	})
}

// Snapshot implements upgrade.Component. The state of version 4 names the connections by which
// clients can be called by numbers: their places in the list of peers, from 1.
func (s *Service) Snapshot(p *upgrade.Parts) {
	for _, x := range []struct {
		part     string
		snapshot func() ([]byte, error)
	}{
		{partReplies, s.RPC.Snapshot},
		{partLocks, s.LockTable.Snapshot},
		{partNLM, s.NLM.Snapshot},
		{partKerberos, s.kerberos.contexts.Snapshot},
	} {
		data, err := x.snapshot()
		p.Add(x.part, data, nil, err)
	}
	var peers []rpc.Peer
	numbers := make(map[rpc.Caller]uint64)
	for peer, caller := range s.Callers() {
		peers = append(peers, peer)
		numbers[caller] = uint64(len(peers))
	}
	p.AddValue(partCallers, peers, nil, nil)
	data, err := s.NFS4.Snapshot(func(c rpc.Caller) (uint64, bool) {
		n, ok := numbers[c]
		return n, ok
	})
	p.Add(partNFS4, data, nil, err)
}

// Restore continues with what the old process has handed over. Exports and ports are open, and no
// call is served yet.
func (s *Service) Restore() error {
	var peers []rpc.Peer
	p, err := s.From.Need(partCallers, 0)
	if err == nil {
		err = upgrade.Decode(p, &peers)
	}
	if err != nil {
		return err
	}
	if s.From.Has(partKerberos) {
		if err := s.From.Restore(partKerberos, s.kerberos.contexts.Restore); err != nil {
			return err
		}
	}
	callers := s.Callers()
	for _, x := range []struct {
		part    string
		restore func(data []byte) error
	}{
		{partReplies, func(data []byte) error { return s.RPC.Restore(data, s.OtherNode) }},
		{partLocks, func(data []byte) error { return s.LockTable.Restore(data, s.NLM.RestoreWaiter) }},
		{partNLM, s.NLM.Restore},
		{partNFS4, func(data []byte) error {
			return s.NFS4.Restore(data, func(id uint64) rpc.Caller {
				if id == 0 || id > uint64(len(peers)) || callers[peers[id-1]] == nil {
					return nil // the zero Caller of a map is nil, too
				}
				return callers[peers[id-1]]
			})
		}},
	} {
		if err := s.From.Restore(x.part, x.restore); err != nil {
			return err
		}
	}
	if !s.OtherNode {
		if err := s.ExportSet.Restored(); err != nil {
			return err
		}
	}
	for _, id := range append(s.NFS4.State().Exports(), s.LockTable.Exports()...) {
		if !s.ExportSet.Serves(id) {
			s.dropExport(id)
		}
	}
	if s.OtherNode {
		s.lockHere()
	}
	return nil
}

// Work returns the number of calls in progress, for upgrade.Freezer.
func (s *Service) Work() int {
	l := s.RPC.Load()
	return l.Busy + l.Queued
}
