package state

import "time"

// CB_RECALL_ANY asks a client to return delegations of its choice (RFC 8881 section 20.6). The
// server sends it while there is still some room. A client that returns none gets no new
// delegations at the bound.
//
//	delegations        of the client                   of all clients
//	from 7/8 of bound  this client, down to 6/8        the client with most, down to 6/8 of its own
//	at the bound       none is granted                 none is granted
//
// The margin gives clients time to answer: until then grants continue. Nothing is revoked for want
// of room.

const (
	// From crowdedParts eighths of a bound on, the server asks clients to return delegations. A client
	// may then keep mostParts eighths.
	crowdedParts = 7
	mostParts    = 6
	// recallAnyAgain is the least time between two CB_RECALL_ANYs to one client.
	recallAnyAgain = 10 * time.Second
)

// crowded reports whether the delegations of the client, or those of all clients, come near their
// bound. Revoked ones do not count. Call with mu held.
func (c *Client) crowded() bool { return c.crowd() || c.s.crowd() }

func (c *Client) crowd() bool { return len(c.delegs)*8 >= c.s.cfg.ClientDelegations*crowdedParts }

func (s *Server) crowd() bool {
	return s.delegs.all.Load()*8 >= int64(s.cfg.Delegations)*crowdedParts
}

// RecallAny is a client that is to be asked to keep no more than Most delegations
// (craa_objects_to_keep).
type RecallAny struct {
	Client *Client
	Most   int
}

// RecallAny lists the clients to ask, at most two, after c has come near a bound. For the bound of
// all clients it chooses the client with the most delegations in place of c: otherwise one client
// could take all room, and the server would ask the others to return delegations that they use. It
// skips clients whose lease has run out, because they would not answer.
//
// If all clients together are near the bound, RecallAny looks at every client. mayRecallAny bounds
// the callbacks, but not this walk. RecallAny locks one mu at a time. Call with no lock held.
func (s *Server) RecallAny(now time.Time, c *Client) (list []RecallAny) {
	c.mu.Lock()
	if c.crowd() && c.mayRecallAny(now) {
		list = append(list, RecallAny{c, s.cfg.ClientDelegations * mostParts / 8})
	}
	c.mu.Unlock()
	if !s.crowd() {
		return list
	}
	var most *Client
	var has int
	for _, x := range s.sortedClients() {
		x.mu.Lock()
		if n := len(x.delegs); n > has && !x.expired(now) {
			most, has = x, n
		}
		x.mu.Unlock()
	}
	if most == nil {
		return list
	}
	most.mu.Lock()
	defer most.mu.Unlock()
	if most.mayRecallAny(now) {
		list = append(list, RecallAny{most, has * mostParts / 8})
	}
	return list
}

// mayRecallAny reports whether recallAnyAgain has passed since the client was last asked, and
// records the time. If so, the caller sends the callback. Call with mu held.
func (c *Client) mayRecallAny(now time.Time) bool {
	if c.recalledAny != 0 && now.UnixNano()-c.recalledAny < int64(recallAnyAgain) {
		return false
	}
	c.recalledAny = now.UnixNano()
	return true
}

// Want is WANT_DELEGATION (RFC 8881 section 18.49.3): a delegation of a file that the client need
// not have open. The checks are those of an OPEN: the delegation is a state, so the client must be
// in the list of clients that may reclaim before it gets one. err is a grace status, or EXPIRED;
// without a delegation for any other reason err is nil and why says the reason.
func (c *Client) Want(now time.Time, a *Delegate) (Delegated, WhyNot, error) {
	if st := c.admit(now, a.Reclaim); st != 0 {
		return Delegated{}, WhyResource, st
	}
	if !c.enlist() {
		return Delegated{}, WhyResource, nil
	}
	res, why := c.Delegate(now, a)
	return res, why, nil
}
