package state

import (
	"encoding/binary"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Stateid is a stateid4 (RFC 8881 section 8.2.2, RFC 7530 section 9.1.4.2):
//
//	 0         4         8         12        16
//	+---------+---------+---------+---------+
//	|  seqid  |  boot   | client  | number  |   big-endian
//	+---------+---------+---------+---------+
//	           \------- Other --------/
//
// boot is Config.Boot, client the low half of the client ID, and number the key in Client.states.
// boot is neither zero nor all ones, so no issued stateid equals a special one. boot tells a
// stateid of an earlier start of the server (STALE_STATEID) from a forged one (BAD_STATEID).
//
// A stateid can be guessed. In a session only the session's client can use it. In version 4.0 the
// stateid names the client, and only the identity of the connection is compared (ClientOf).
type Stateid struct {
	Seq   uint32
	Other [12]byte
}

// Special stateids (RFC 8881 section 8.2.3, RFC 7530 section 9.1.4.3). Version 4.0 has the first
// two only.
//
//	           seqid     other
//	Anonymous  0         0
//	Bypass     all ones  all ones
//	Current    1         0
//	Invalid    all ones  0
var (
	// Anonymous stands for no open at all.
	Anonymous = Stateid{}
	// Bypass is like Anonymous, but a READ with it ignores the share reservations of others.
	Bypass = Stateid{Seq: 1<<32 - 1, Other: [12]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}}
	// Current stands for the last stateid that the compound has returned (RFC 8881 section
	// 16.2.3.1.2).
	Current = Stateid{Seq: 1}
	// Invalid is the result of CLOSE in a session. A client that uses it gets BAD_STATEID.
	Invalid = Stateid{Seq: 1<<32 - 1}
)

// Special reports whether id is a special stateid, or has the other of one. No state has such a
// stateid.
func (id Stateid) Special() bool { return id.Other == Anonymous.Other || id.Other == Bypass.Other }

// stateid makes the stateid of a state. The upper half of a client ID is Config.Boot.
func (c *Client) stateid(num, seq uint32) (id Stateid) {
	id.Seq = seq
	binary.BigEndian.PutUint32(id.Other[0:], uint32(c.ID>>32))
	binary.BigEndian.PutUint32(id.Other[4:], uint32(c.ID))
	binary.BigEndian.PutUint32(id.Other[8:], num)
	return id
}

// bump returns the seqid after seq. It skips 0, by which a client of version 4.1 or later asks for
// the current seqid (RFC 8881 section 8.2.2).
func bump(seq uint32) uint32 {
	if seq++; seq == 0 {
		return 1
	}
	return seq
}

// number enters a new state and returns its number. Numbers count up and return only after 2^32
// states of the client, so that a late request with the stateid of a closed file does not meet a
// newer state. Numbers in use are skipped; Config.States keeps them far below 2^32. Call with mu
// held.
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

// find looks up a stateid of an open (*open), of locks (*locks) or of a delegation (*deleg). The
// stateid of a copy is BAD_STATEID here; FindOffload finds it. Call with mu held.
//
// The checks are those of RFC 8881 section 8.2.4 and RFC 7530 section 9.1.4.4, in this order:
//
//	EXPIRED        the client has ended
//	BAD_STATEID    a special stateid; the caller has dealt with those that it accepts
//	STALE_STATEID  of an earlier start of the server; BAD_STATEID in a session
//	BAD_STATEID    of another client, or of no state
//	DELEG_REVOKED  a delegation that the server has revoked
//	OLD_STATEID    seqid before the current one: the request has crossed a reply
//	BAD_STATEID    seqid after the current one: the server has never issued it
//
// The difference of seqids is signed, so that they may wrap around. seqid 0 means the current one,
// but not in version 4.0.
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

// findState is find for operations that accept no stateid of a delegation. A revoked delegation is
// BAD_STATEID for them, like any other. Call with mu held.
func (c *Client) findState(id Stateid) (any, nfs.Status) {
	what, st := c.find(id)
	if st == nfs.ErrDelegRevoked {
		st = nfs.ErrBadStateID
	}
	return what, st
}

// findOpen is find for an open of the current file. A stateid of another file is BAD_STATEID. Call
// with mu held.
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

// TestStateid is one entry of TEST_STATEID (RFC 8881 section 18.48.3). The Linux client sends
// TEST_STATEID for its stateids when SEQUENCE reports revoked state. It gives up those that are not
// OK.
func (c *Client) TestStateid(id Stateid) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, st := c.find(id)
	return st
}

// FreeStateid is FREE_STATEID (RFC 8881 section 18.38.3):
//
//	revoked delegation  the record ends; after the last one SEQUENCE drops its flag
//	locks without any   the lock stateid ends
//	anything else       LOCKS_HELD: opens end by CLOSE, delegations by DELEGRETURN
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
