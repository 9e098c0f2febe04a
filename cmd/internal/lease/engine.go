package lease

import "time"

// Record is the content of a lease file.
type Record struct {
	Epoch    uint64 `json:"epoch"` // claims so far
	Node     string `json:"node"`  // node that made the last claim
	Boot     string `json:"boot"`  // boot ID of that node's kernel
	Count    uint64 `json:"count"` // renewals in this epoch
	Released bool   `json:"released,omitempty"`
	// To is the only node that may claim a released lease at once; empty means any node. Token
	// tells that node to which handover the release belongs.
	To    string `json:"to,omitempty"`
	Token string `json:"token,omitempty"`
}

// freeFor reports whether the record allows a node to claim at once.
func (r *Record) freeFor(node string) bool {
	return r.Epoch == 0 || r.Released && (r.To == "" || r.To == node)
}

// Engine is the lease as one node sees it. The zero value, with Node, Boot and Term set, does not
// have the lease. All times are of one clock of the node, which never jumps and does not stop while
// the host sleeps. An Engine is not for concurrent use.
type Engine struct {
	Node string
	Boot string // tells the host from another with the same Node by mistake, and from an earlier boot
	Term time.Duration

	held  bool
	lost  bool
	begun time.Duration // begin of the last renewal that was written
	own   Record

	seen    Record
	known   bool
	since   time.Duration // end of the first read that returned seen
	checked time.Duration // begin of the last read
}

// patience is how long a record must stay unchanged before others claim the lease.
func (e *Engine) patience() time.Duration { return e.Term + e.Term/4 }

// Read records the content of the newest lease file. The read began at begun and ended at now, and
// r is the content at some moment between. ok is false if there is no file.
func (e *Engine) Read(begun, now time.Duration, r Record, ok bool) {
	if e.held && ok && (r.Epoch > e.own.Epoch || r.Epoch == e.own.Epoch && !e.mine(r)) {
		e.lost = true
	}
	if !e.known || r != e.seen {
		e.since = now
	}
	e.seen, e.known, e.checked = r, true, begun
}

// mine reports whether this node has written a record since its kernel was booted.
func (e *Engine) mine(r Record) bool { return r.Node == e.Node && r.Boot == e.Boot }

// Claim returns the record to claim with, if what was read allows a claim.
func (e *Engine) Claim() (r Record, ok bool) {
	if e.held || !e.known || !e.seen.freeFor(e.Node) && e.checked-e.since < e.patience() {
		return r, false
	}
	return e.next(), true
}

// Pause returns how long to wait at now before the next read: an eighth of the term, or less if the
// lease is free earlier.
func (e *Engine) Pause(now time.Duration) time.Duration {
	if left := e.since + e.patience() - now; e.known && left > 0 {
		return min(e.Term/8, left)
	}
	return e.Term / 8
}

func (e *Engine) next() Record { return Record{Epoch: e.seen.Epoch + 1, Node: e.Node, Boot: e.Boot} }

// Replace returns the record to claim with at once. The caller knows that the process which held
// the lease on this very node has ended.
func (e *Engine) Replace() (r Record, ok bool) {
	return e.next(), !e.held && e.known && e.mine(e.seen) && !e.seen.Released
}

// Abandon returns the record that releases the lease of the process which held it on this very node.
// The caller knows that this process has ended.
func (e *Engine) Abandon() (r Record, ok bool) {
	_, ok = e.Replace()
	r = e.seen
	r.Count++
	r.Released = true
	return r, ok
}

// Claimed records that the claim with r has succeeded. The claim began at begun.
func (e *Engine) Claimed(begun time.Duration, r Record) { e.held, e.own, e.begun = true, r, begun }

// Renewal returns the record to renew the lease with.
func (e *Engine) Renewal() Record {
	e.own.Count++
	return e.own
}

// Renewed records a renewal that began at begun and was complete at now. It has no effect if the
// lease was lost before now.
func (e *Engine) Renewed(begun, now time.Duration) {
	if e.Serving(now) {
		e.begun = begun
	}
}

// Serving reports whether the node may serve at now. Once it is false for a node that held the
// lease, it stays false.
func (e *Engine) Serving(now time.Duration) bool {
	if e.held && now-e.begun >= e.Term {
		e.lost = true
	}
	return e.held && !e.lost
}

// Until returns when the node must stop serving, unless it renews the lease.
func (e *Engine) Until() time.Duration { return e.begun + e.Term }

// Release returns the record that gives the lease up. If to is not empty, only that node may claim
// at once. The node must not serve any more.
func (e *Engine) Release(to, token string) Record {
	e.lost = true
	r := e.own
	r.Count++
	r.Released, r.To, r.Token = true, to, token
	return r
}

// Seen returns the record that was read last.
func (e *Engine) Seen() Record { return e.seen }
