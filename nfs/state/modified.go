package state

import (
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// A client with a write delegation changes data and size without a call to the server. When another
// client asks for the attributes, the server asks the first one by CB_GETATTR (RFC 8881 section
// 10.4.3):
//
//	reader          server                        writer
//	  |--GETATTR------>|--CB_GETATTR----------------->|
//	  |                |<--change, size --------------|   or no answer: CB_RECALL
//	  |<--attributes---|
//
// The answer has a size and a change attribute. It has times only if the client got the delegation
// with times; otherwise the server makes them up.

// Writer is a client with a write delegation of a file, and where to send CB_GETATTR. The
// delegation may end while the callback is under way; a Writer stays valid, but its answer is of no
// use then.
type Writer struct {
	Client *Client
	File   lock.File
	Origin Origin
	Times  bool // the client also keeps the times of the file

	d *deleg
}

// Writer finds the client whose write delegation makes the server's attributes of a file
// unreliable. by is the client that asks; nil: a client of another protocol. ok is false if there
// is no such delegation. It is also false if the delegation is being recalled or the client's lease
// has run out: then the caller waits for the recall, or ends that client, by Server.Free.
//
// Without write delegations, the common case, Writer reads one counter and takes no lock.
func (s *Server) Writer(now time.Time, f lock.File, by *Client) (w Writer, ok bool) {
	if s.delegs.writes.Load() == 0 {
		return w, false
	}
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, d := range sh.deleg.m[f] {
		if d.Write && d.c != by && !d.Recalled && !d.c.expired(now) {
			return Writer{Client: d.c, File: f, Origin: d.Origin, Times: d.Times, d: d}, true
		}
	}
	return w, false
}

// Times are times of a file that a client has set or reported by a delegation with times. A nil
// pointer is a time that the client has not named, or that does not count.
type Times struct{ Access, Modify *time.Time }

// vet drops times that are before those that the delegation has, and moves times of the future to
// now: the clock of the client may be wrong (RFC 9754 section 5). Call with the client's mu held.
func (d *deleg) vet(now time.Time, t Times) Times {
	one := func(t *time.Time, least int64) *time.Time {
		if t != nil && t.After(now) {
			t = &now
		}
		if t != nil && t.Before(time.Unix(0, least)) {
			return nil
		}
		return t
	}
	return Times{one(t.Access, d.Accessed), one(t.Modify, d.Modified)}
}

// SetTimes is a SETATTR of time_deleg_access and time_deleg_modify with the stateid of a
// delegation. It returns the times to be set. now is the clock of file times. A delegation without
// times is BAD_STATEID. A delegation that is being recalled counts: the client sets the times
// before it returns the delegation.
func (c *Client) SetTimes(now time.Time, id Stateid, f lock.File, t Times) (Times, nfs.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, st := c.findDeleg(id, f)
	switch {
	case st != nfs.OK:
		return Times{}, st
	case !d.Times:
		return Times{}, nfs.ErrBadStateID
	}
	t = d.vet(now, t)
	if t.Access != nil {
		d.Accessed = t.Access.UnixNano()
	}
	if t.Modify != nil {
		d.Modified = t.Modify.UnixNano()
	}
	return t, nfs.OK
}

// Reported returns the times of a CB_GETATTR reply that count. now is the clock of file times.
func (w *Writer) Reported(now time.Time, t Times) Times {
	w.Client.mu.Lock()
	defer w.Client.mu.Unlock()
	return w.d.vet(now, t)
}

// ctimeGrain is how far the clock by which a file system stamps change times may be behind. Linux
// uses the time of the last timer tick: up to 10 ms ago with 100 ticks in a second.
const ctimeGrain = 20 * time.Millisecond

// Change returns the change attribute to report for the file. actual is that of the file system,
// seen the one in the client's answer.
//
// If seen is the change attribute of the grant, the client has changed nothing, and actual is
// right. Otherwise the client has changed the file, and may have done so again since the last
// answer: each call returns a greater value (RFC 8881 section 10.4.3). The value is also a time, in
// Unix nanoseconds. It is not later than the change time that the file system gives to the client's
// next WRITE, so that the attributes do not run backwards when the client returns the delegation.
func (w *Writer) Change(now time.Time, actual, seen uint64) (change uint64, modified bool) {
	sh := w.Client.s.shardOfFile(w.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if seen == w.d.Change {
		return actual, false
	}
	w.d.Reported = max(w.d.Reported+1, actual+1, uint64(max(now.Add(-ctimeGrain).UnixNano(), 0)))
	return w.d.Reported, true
}
