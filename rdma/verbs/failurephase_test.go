//go:build rdmacore && linux && cgo

package verbs

import (
	"errors"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/connstate"
)

// recordsOf returns the records of a connection over iWARP whose peer disconnects while the
// requests sq are in the queue. completions runs between the disconnection and the record.
func recordsOf(sq []sent, completions func(*qp)) []Record {
	var got []Record
	d := &Device{iwarp: true, cfg: Config{OnFailure: func(r Record) { got = append(got, r) }}}
	l := &loop{dev: d, now: rdma.Second}
	q := &qp{l: l, sq: sq, sqTail: uint32(len(sq))}
	c := &conn{l: l, q: q}
	seen := q.outstanding()
	completions(q)
	c.recordEnd(rdma.EventDisconnected, 0, connstate.ErrPeerLeft, connstate.Established, &seen)
	for l.callbacks() {
	}
	return got
}

// TestRecordCompleted: a peer that leaves after it got the last reply causes no record, although
// the loop handles its disconnection before the completion of the reply. A peer that leaves
// requests unanswered causes one.
func TestRecordCompleted(t *testing.T) {
	reply := func() []sent { return []sent{{at: 1, op: rdma.WCSend}} }
	if got := recordsOf(reply(), func(q *qp) { q.sq[0].fin, q.sqHead = true, 1 }); len(got) != 0 {
		t.Errorf("a record of a good end: %v, %d outstanding", got[0].Err, got[0].Summary.Outstanding)
	}
	for what, heard := range map[string]func(*qp){
		"still under way": func(*qp) {},
		"flushed": func(q *qp) {
			q.sq[0].fin, q.sqHead = true, 1
			q.cut++
		},
	} {
		if got := recordsOf(reply(), heard); len(got) != 1 || got[0].Outcome != rdma.Broken ||
			!errors.Is(got[0].Err, errCut) || got[0].Summary.Outstanding != 1 || got[0].Summary.Oldest != 1 {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// TestRecordAsync: the clock of the loop stands still during a turn. An asynchronous event in that
// time does not get a time after the end of the connection.
func TestRecordAsync(t *testing.T) {
	got := recordsOf([]sent{{at: 1, op: rdma.WCSend}}, func(q *qp) {
		q.l.dev.lastAsync.Store(&asyncEvent{kind: 1, at: q.l.now + rdma.Microsecond})
	})
	if len(got) != 1 || got[0].Async == "" || got[0].AsyncAt != got[0].Ended {
		t.Errorf("%+v", got)
	}
}

// TestOutstanding: a request that is posted in parts counts once. Unsignaled requests count as long
// as a later signaled one is outstanding.
func TestOutstanding(t *testing.T) {
	at := func(n rdma.Time, s sent) sent {
		s.at = n
		return s
	}
	aloud, silent, part := sent{}, sent{unsignaled: true}, sent{part: true}
	for _, c := range []struct {
		what   string
		sq     []sent
		siw    bool
		n      int
		oldest rdma.Time
	}{
		{"none", nil, false, 0, 0},
		{"one", []sent{at(7, aloud)}, false, 1, 7},
		{"of three parts", []sent{at(7, part), at(7, part), at(7, aloud)}, false, 1, 7},
		{"silent ones before it", []sent{at(5, silent), at(6, silent), at(7, aloud)}, false, 3, 5},
		{"silent ones after it", []sent{at(5, aloud), at(6, silent)}, false, 1, 5},
		{"silent ones alone", []sent{at(5, silent), at(6, silent)}, false, 0, 0},
		{"silent ones of siw, which all complete", []sent{at(5, silent), at(6, silent)}, true, 2, 5},
	} {
		q := &qp{l: &loop{dev: &Device{quirks: quirksOf(c.siw, c.siw)}}, sq: c.sq, sqTail: uint32(len(c.sq))}
		if s := q.outstanding(); s.Outstanding != c.n || s.Oldest != c.oldest {
			t.Errorf("%s: %d outstanding since %d, not %d since %d", c.what, s.Outstanding, s.Oldest, c.n, c.oldest)
		}
	}
}
