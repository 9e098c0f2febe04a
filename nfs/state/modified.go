package state

import (
	"time"

	"github.com/rstored/rstored/nfs/lock"
)

// What a client with a write delegation has not written yet it is asked for when another
// one wants to know the size of the file (RFC 8881 section 10.4.3).

// Writer is a client with a write delegation of a file, for others who look at the file.
type Writer struct {
	Client *Client
	File   lock.File
	Origin Origin

	d *deleg
}

// Writer finds the client that knows better than the server what the attributes of a file
// are, for another one, or, nil, somebody who is none. There is none if the delegation was
// asked for already, or the client is silent.
func (s *Server) Writer(now time.Time, f lock.File, by *Client) (w Writer, ok bool) {
	if s.delegs.writes.Load() == 0 {
		return w, false
	}
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, d := range sh.deleg.m[f] {
		if d.Write && d.c != by && !d.Recalled && !d.c.expired(now) {
			return Writer{Client: d.c, File: f, Origin: d.Origin, d: d}, true
		}
	}
	return w, false
}

// ctimeGrain is how far a file system's clock may be behind in a change time.
const ctimeGrain = 20 * time.Millisecond

// Change is the change attribute to be told of a file whose own is actual, when its
// client says that it is seen. If the client has changed the file, that is another one
// each time, as it may have done so again meanwhile, and it is a time in nanoseconds
// that a write to come is not before.
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
