package state

import "time"

// Before there is no more room for delegations clients are asked to return some, those
// of their choice (RFC 8881 section 20.6). Only when they do not is none given.

const (
	// crowdedParts of eight of a bound are when they are asked, keepParts how many they
	// may keep.
	crowdedParts = 7
	mostParts    = 6
	// reliefAgain is how long a client is given before it is asked again.
	reliefAgain = 10 * time.Second
)

// crowded reports whether there are nearly as many delegations, of the client or of all,
// as there may be. Call with mu held.
func (c *Client) crowded() bool { return c.crowd() || c.s.crowd() }

func (c *Client) crowd() bool { return len(c.delegs)*8 >= c.s.cfg.ClientDelegations*crowdedParts }

func (s *Server) crowd() bool {
	return s.delegs.all.Load()*8 >= int64(s.cfg.Delegations)*crowdedParts
}

// Relief is a client that is to be asked to keep no more than so many delegations.
type Relief struct {
	Client *Client
	Most   int
}

// Relief says who is to be asked when a client has come near a bound. If it is that of
// all, it is the client that has most.
func (s *Server) Relief(now time.Time, c *Client) (list []Relief) {
	c.mu.Lock()
	if c.crowd() && c.mayRelieve(now) {
		list = append(list, Relief{c, s.cfg.ClientDelegations * mostParts / 8})
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
	if most.mayRelieve(now) {
		list = append(list, Relief{most, has * mostParts / 8})
	}
	return list
}

// mayRelieve reports whether the client was not asked just before. Call with mu held.
func (c *Client) mayRelieve(now time.Time) bool {
	if c.relieved != 0 && now.UnixNano()-c.relieved < int64(reliefAgain) {
		return false
	}
	c.relieved = now.UnixNano()
	return true
}

// Want gives the client a delegation of a file that it has not opened.
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
