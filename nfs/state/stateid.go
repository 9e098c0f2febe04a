package state

import (
	"encoding/binary"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Stateid is a stateid4. Its second part is the server's start, the client, and a
// number, 32 bits each; the first two are never all zeros or ones.
type Stateid struct {
	Seq   uint32
	Other [12]byte
}

// Special stateids (RFC 8881 section 8.2.3).
var (
	// Anonymous stands for no open at all.
	Anonymous = Stateid{}
	// Bypass is Anonymous for a READ that does not mind locks.
	Bypass = Stateid{Seq: 1<<32 - 1, Other: [12]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}}
	// Current stands for the stateid of the operation before.
	Current = Stateid{Seq: 1}
	// Invalid is what CLOSE returns.
	Invalid = Stateid{Seq: 1<<32 - 1}
)

func (c *Client) stateid(num, seq uint32) (id Stateid) {
	id.Seq = seq
	binary.BigEndian.PutUint32(id.Other[0:], uint32(c.ID>>32))
	binary.BigEndian.PutUint32(id.Other[4:], uint32(c.ID))
	binary.BigEndian.PutUint32(id.Other[8:], num)
	return id
}

// bump is the next seqid of a stateid: 0 has a meaning of its own.
func bump(seq uint32) uint32 {
	if seq++; seq == 0 {
		return 1
	}
	return seq
}

// number gives a new state a number. Call with mu held.
func (c *Client) number(what any) uint32 {
	for {
		c.nstate++
		if c.states[c.nstate] == nil && c.nstate != 0 {
			c.states[c.nstate] = what
			c.charge(costOf(what))
			return c.nstate
		}
	}
}

// find looks a stateid up (section 8.2.4): a *open, a *locks or a *deleg; one of a copy is
// none for it (FindOffload). Call with mu held.
func (c *Client) find(id Stateid) (any, nfs.Status) {
	if c.dead {
		return nil, nfs.ErrExpired
	}
	if binary.BigEndian.Uint32(id.Other[0:]) != c.s.cfg.Boot {
		if id.Other == Anonymous.Other || id.Other == Bypass.Other {
			return nil, nfs.ErrBadStateID
		}
		return nil, nfs.ErrStaleStateID
	}
	if binary.BigEndian.Uint32(id.Other[4:]) != uint32(c.ID) {
		return nil, nfs.ErrBadStateID
	}
	what := c.states[binary.BigEndian.Uint32(id.Other[8:])]
	var seq uint32
	switch w := what.(type) {
	case *open:
		seq = w.Seq
	case *locks:
		seq = w.Seq
	case *deleg:
		seq = w.Seq
		if w.Revoked {
			return nil, nfs.ErrDelegRevoked
		}
	default:
		return nil, nfs.ErrBadStateID
	}
	switch d := int32(id.Seq - seq); {
	case id.Seq == 0 && c.v40 == nil || d == 0:
		return what, nfs.OK
	case d < 0:
		return nil, nfs.ErrOldStateID
	}
	return nil, nfs.ErrBadStateID
}

// findState is find for operations that a delegation is of no use to, whether it was taken
// away or not. Call with mu held.
func (c *Client) findState(id Stateid) (any, nfs.Status) {
	what, st := c.find(id)
	if st == nfs.ErrDelegRevoked {
		st = nfs.ErrBadStateID
	}
	return what, st
}

// findOpen is find for an open of a file.
func (c *Client) findOpen(id Stateid, f lock.File) (*open, nfs.Status) {
	what, st := c.findState(id)
	if st != nfs.OK {
		return nil, st
	}
	o, ok := what.(*open)
	if !ok || o.Key.File != f {
		return nil, nfs.ErrBadStateID
	}
	return o, nfs.OK
}

// TestStateid is one entry of TEST_STATEID (section 18.48.3).
func (c *Client) TestStateid(id Stateid) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, st := c.find(id)
	return st
}

// FreeStateid is FREE_STATEID (section 18.38.3).
func (c *Client) FreeStateid(id Stateid) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	what, st := c.find(id)
	if st == nfs.ErrDelegRevoked {
		c.dropDeleg(c.states[binary.BigEndian.Uint32(id.Other[8:])].(*deleg))
		return nfs.OK
	}
	if st != nfs.OK {
		return st
	}
	l, ok := what.(*locks)
	if !ok || l.Any {
		return nfs.ErrLocksHeld
	}
	c.dropLocks(l)
	return nfs.OK
}
