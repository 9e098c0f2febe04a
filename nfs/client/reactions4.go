package client

import (
	"sync"
	"sync/atomic"
	"time"
)

// How long replies with flags are ignored after a reaction that has found nothing to do. The time
// doubles with each such reaction: a server may keep a flag for state of which the client does not
// know. In this time the client does not notice that the server revokes more. A WRITE under a
// revoked delegation still fails.
const (
	reactionPauseFirst = 50 * time.Millisecond
	reactionPauseMax   = 2 * time.Second
	// reactionFailedMax bounds the pause after reactions that have failed. The error can be permanent.
	// The doubt stays meanwhile, so no delegation is valid.
	reactionFailedMax = time.Minute
)

// reactions decides when a client reacts to the flags of the replies to SEQUENCE
// (sr_status_flags). It does no IO.
//
// The server repeats a flag until the client has done its part. A reply that was sent for before a
// reaction ended says nothing about what the server has revoked since. A flag in a later reply is a
// new reason, even if the flag was never down in between:
//
//	            flags                      next: flags
//	idle   ----------------->  waiting  ------------------>  reacting
//	  ^                           ^     flags wait meanwhile    |
//	  |  next: no flags           |                             | done
//	  +---------------------------+-----------------------------+
//
// A reaction that fails half-way is repeated after the pause: the server may have dropped its flag
// meanwhile, so that no further reply would be a reason for a reaction.
type reactions struct {
	mu      sync.Mutex
	running bool
	todo    uint32
	since   time.Time     // replies to SEQUENCEs that were sent before do not count
	pause   time.Duration // after the last reaction
}

// flagged records the flags of a reply to a SEQUENCE that was sent at the time sent. It sets doubt
// if the server may have ended state. start says that the caller starts to react.
func (r *reactions) flagged(flags uint32, sent time.Time, doubt *atomic.Bool) (start bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent.Before(r.since) {
		return false
	}
	r.todo |= flags
	if flags&(statusRevoked|statusReclaimNeeded) != 0 {
		doubt.Store(true)
	}
	start = !r.running
	r.running = true
	return start
}

// next returns the flags to react to. 0 ends the reactions until flagged returns true.
func (r *reactions) next() (flags uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	flags, r.todo = r.todo, 0
	r.running = flags != 0
	return flags
}

// done ends a reaction to flags, which next has returned. useful says that it has found something to
// do. If the reaction was not complete, the doubt stays, and the caller waits for the returned time
// and reacts again: next returns the same flags once more, with those that came meanwhile.
func (r *reactions) done(flags uint32, useful, complete bool, now time.Time, doubt *atomic.Bool) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	most := reactionPauseMax
	if !complete {
		most = reactionFailedMax
	}
	if useful && complete {
		r.pause = 0
	} else {
		r.pause = min(max(2*r.pause, reactionPauseFirst), most)
	}
	r.since = now.Add(r.pause)
	if !complete {
		r.todo |= flags
		return r.pause
	}
	r.todo = 0
	doubt.Store(false)
	return 0
}
