package nfs4

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs/state"
)

// changed writes into the audit log that a client was established, or has ended.
func (s *Server) changed(what state.Change, c state.ClientInfo) {
	args := []any{"client_id", fmt.Sprintf("%#016x", c.ID), "owner", strconv.QuoteToGraphic(c.Owner)}
	if what == state.Ended {
		silent := s.cfg.Now().Sub(c.Renewed)
		args = append(args, "silent_for", silent.Round(time.Second).String(), "expired", silent > s.cfg.Lease)
	}
	s.cfg.Audit.Info("nfs4_client_"+what.String(), args...)
}

// due reports whether a message that is logged once in a period may be logged now. last is the time
// of the previous message; due updates it.
func (s *Server) due(last *atomic.Int64, period time.Duration) bool {
	before, now := last.Load(), s.cfg.Now().UnixNano()
	if before != 0 && now-before < int64(period) && now >= before {
		return false
	}
	return last.CompareAndSwap(before, now)
}

// noteFull logs that clients were refused for want of memory, at most once a minute.
func (s *Server) noteFull() {
	m := s.state.Memory()
	if m.Refused == s.refusedNoted.Load() || !s.due(&s.fullNoted, time.Minute) {
		return
	}
	s.refusedNoted.Store(m.Refused)
	s.cfg.Logger.Warn(
		"clients of version 4 are delayed: their state has reached nfs4_memory or nfs4_client_memory",
		"bytes", m.Bytes, "limit", m.Limit, "refused", m.Refused)
}

// denied counts a call that was refused because it names a client or session of another client. It
// records at most one such call each second in the audit log.
func (s *Server) denied(op string, client uint64, from state.From) {
	n := s.deniedCalls.Add(1)
	if !s.due(&s.deniedNoted, time.Second) {
		return
	}
	s.cfg.Audit.Warn("nfs4_session_denied", "client", from.Host.String(), "xprtsec", from.Security.String(), "name",
		from.Name, "partition", from.Partition,
		"operation", op, "client_id", fmt.Sprintf("%#016x", client), "denied", n)
}
