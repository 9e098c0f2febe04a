//go:build rdmacore && linux && cgo

package verbs

import (
	"errors"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// mourned is what is recorded of a connection over iWARP whose peer disconnects while those requests are taken to be
// under way; before the record is made, the loop hears of completions.
func mourned(sq []sent, heard func(*qp)) []Record {
	var got []Record
	d := &Device{iwarp: true, cfg: Config{Obituary: func(r Record) { got = append(got, r) }}}
	l := &loop{dev: d, now: rdma.Second}
	q := &qp{l: l, sq: sq, sqTail: uint32(len(sq))}
	c := &conn{l: l, q: q}
	seen := q.saw()
	heard(q)
	c.mourn(rdma.EventDisconnected, 0, errPeerLeft, established, &seen)
	for l.callbacks() {
	}
	return got
}

// TestMournCompleted: a peer that goes once it has the last reply ends nothing, though its going is heard of before the
// reply's completion; one that leaves requests behind does.
func TestMournCompleted(t *testing.T) {
	reply := func() []sent { return []sent{{at: 1, op: rdma.WCSend}} }
	if got := mourned(reply(), func(q *qp) { q.sq[0].fin, q.sqHead = true, 1 }); len(got) != 0 {
		t.Errorf("a record of a good end: %v, %d outstanding", got[0].Err, got[0].Seen.Outstanding)
	}
	for what, heard := range map[string]func(*qp){
		"still under way": func(*qp) {},
		"flushed": func(q *qp) {
			q.sq[0].fin, q.sqHead = true, 1
			q.failing(rdma.WCSend, rdma.WRFlushErr, 0)
		},
	} {
		if got := mourned(reply(), heard); len(got) != 1 || got[0].Outcome != rdma.Broken || !errors.Is(got[0].Err, errCut) || got[0].Seen.Outstanding != 1 || got[0].Seen.Oldest != 1 {
			t.Errorf("%s: %+v", what, got)
		}
	}
}
