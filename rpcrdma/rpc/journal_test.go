package rpc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"
)

// journaled is a program whose procedure ONCE writes its intent and counts its executions.
func journaled(runs *int, doubts *[]string) []Program {
	return []Program{{Name: "test", Prog: testProg, Vers: 2, Procs: []Proc{
		procOnce: {Name: "ONCE", Mutates: true, Serve: func(c *Call, _ bool) Status {
			v := c.Args.Uint32()
			if d := c.Doubt(); d != nil {
				*doubts = append(*doubts, string(d))
			}
			c.Intend(fmt.Appendf(nil, "note %d", v))
			*runs++
			c.Res.Uint32(v)
			return Done
		}},
	}}}
}

func TestJournalOutlivesTheServer(t *testing.T) {
	const n = 100
	mem := make([]byte, 64*recordLen)
	var runs int
	var doubts []string
	serve := func(mem []byte) *Server {
		s := NewServer(ServerConfig{Programs: journaled(&runs, &doubts), Workers: 1, Journal: mem})
		t.Cleanup(s.Close)
		return s
	}
	s := serve(mem)
	replies := make([][]byte, n)
	for i := range uint32(n) {
		replies[i] = send(t, s, "192.0.2.1:9", call(i, testProg, 2, procOnce, i))
	}
	// Of 64 records, 48 are for replies.
	s = serve(bytes.Clone(mem))
	runs = 0
	for i := n - 1; i >= 0; i-- {
		r := send(t, s, "192.0.2.1:10", call(uint32(i), testProg, 2, procOnce, uint32(i)))
		if !bytes.Equal(r, replies[i]) {
			t.Fatalf("call %d: %x, want %x", i, r, replies[i])
		}
		if i == n-48 && runs != 0 {
			t.Errorf("%d of the last 48 calls were executed again", runs)
		}
	}
	if runs != n-48 || len(doubts) != 0 {
		t.Errorf("%d of %d forgotten calls were executed again; doubts %q", runs, n-48, doubts)
	}
}

// TestTornJournal stops each write to the memory after each byte, as a kill does. The worst results
// are a call in doubt, or a second execution.
func TestTornJournal(t *testing.T) {
	var runs int
	var doubts []string
	serve := func(mem []byte) *Server {
		return NewServer(ServerConfig{Programs: journaled(&runs, &doubts), Workers: 1, Journal: mem})
	}
	before := make([]byte, 4*recordLen)
	s := serve(before)
	send(t, s, "192.0.2.1:9", call(1, testProg, 2, procOnce, 1))
	s.Close()
	after := bytes.Clone(before)
	s = serve(after)
	want := send(t, s, "192.0.2.1:9", call(2, testProg, 2, procOnce, 2))
	s.Close()
	for at := 0; at <= len(after); at++ {
		mem := append(bytes.Clone(after[:at]), before[at:]...)
		runs, doubts = 0, nil
		s := serve(mem)
		if r := send(t, s, "192.0.2.1:9", call(2, testProg, 2, procOnce, 2)); !bytes.Equal(r, want) {
			t.Errorf("cut at %d: reply %x, want %x", at, r, want)
		}
		for _, d := range doubts {
			if d != "note 2" {
				t.Errorf("cut at %d: doubt %q", at, d)
			}
		}
		if runs > 1 {
			t.Errorf("cut at %d: executed %d times", at, runs)
		}
		runs = 0
		if send(t, s, "192.0.2.1:9", call(1, testProg, 2, procOnce, 1)); runs != 0 {
			t.Errorf("cut at %d: the finished call was executed again", at)
		}
		s.Close()
	}
}

func TestDoubtIsHandedOverUntilItIsAnswered(t *testing.T) {
	var runs int
	var doubts []string
	mem := make([]byte, 8*recordLen)
	s := NewServer(ServerConfig{Programs: journaled(&runs, &doubts), Workers: 1, Journal: mem})
	send(t, s, "192.0.2.1:9", call(1, testProg, 2, procOnce, 1))
	s.Close()
	for i := range len(mem) / recordLen { // the outcome is lost
		clear(mem[i*recordLen+replyAt : (i+1)*recordLen])
	}
	for range 3 { // crashes without a retransmission in between
		NewServer(ServerConfig{Programs: journaled(&runs, &doubts), Workers: 1, Journal: mem}).Close()
	}
	s = NewServer(ServerConfig{Programs: journaled(&runs, &doubts), Workers: 1, Journal: mem})
	for range 3 {
		send(t, s, "192.0.2.1:9", call(1, testProg, 2, procOnce, 1))
	}
	s.Close()
	if len(doubts) != 1 || doubts[0] != "note 1" || runs != 2 {
		t.Errorf("doubts %q, %d executions; want one of each", doubts, runs)
	}
}

// TestJournalForgetsWhatIsOld: records that were too old when the server ended are not loaded. The
// time without a server does not count.
func TestJournalForgetsWhatIsOld(t *testing.T) {
	var runs int
	var doubts []string
	mem := make([]byte, 8*recordLen)
	var j journal
	if l := j.load(mem); len(l) > 0 {
		t.Error("an empty journal knows a call")
	}
	last := BootTime() - 10*lostAge
	for i, x := range []struct {
		age       int64
		delivered bool
	}{{lostAge + 1, false}, {answeredAge + 1, true}, {lostAge, false}, {answeredAge, true}, {0, false}} {
		e := &drcEntry{key: drcKey{xid: uint32(i)}}
		n := j.begin(e, last-x.age, nil)
		j.finish(n, []byte("reply"))
		j.deliver(n, x.delivered)
	}
	s := NewServer(ServerConfig{Programs: journaled(&runs, &doubts), Workers: 1, Journal: mem})
	defer s.Close()
	for i := range uint32(5) {
		if e := s.cache.entries[drcKey{xid: i}]; (e != nil) != (i >= 2) ||
			e != nil && (string(e.reply) != "reply" || e.delivered != (i == 3)) {
			t.Errorf("call %d: %+v", i, e)
		}
	}
	if n := len(s.cache.journal.free); n != 5 || len(s.cache.doubts) != 0 {
		t.Errorf("%d of 8 records are free, %d doubts", n, len(s.cache.doubts))
	}
}

// TestJournalOfAnotherFormat: records of an earlier version are ignored.
func TestJournalOfAnotherFormat(t *testing.T) {
	mem := make([]byte, 8*recordLen)
	var j journal
	j.load(mem)
	n := j.begin(&drcEntry{key: drcKey{xid: 1}}, BootTime(), nil)
	r := mem[int(n)*recordLen:]
	h := append([]byte("rsj1"), r[recSeq:recAt]...)
	binary.BigEndian.PutUint32(r, crc32.Update(crc32.ChecksumIEEE(h), crc32.IEEETable, r[recSeq:replyAt]))
	if l := j.load(mem); len(l) != 0 || len(j.free) < 8 {
		t.Errorf("%d calls, %d of 8 records are free", len(l), len(j.free))
	}
}

// FuzzJournal loads any bytes, as from a damaged disk.
func FuzzJournal(f *testing.F) {
	mem := make([]byte, 2*recordLen)
	var j journal
	j.load(mem)
	j.finish(j.begin(&drcEntry{key: drcKey{xid: 1}}, BootTime(), []byte("note")), []byte("reply"))
	f.Add(bytes.Clone(mem), uint16(3))
	f.Fuzz(func(t *testing.T, b []byte, flip uint16) {
		for i := range len(b) / recordLen { // valid checksums, so that more code is tested
			r := b[i*recordLen:][:recordLen]
			seq := binary.BigEndian.Uint64(r[recSeq:])
			if flip&1 != 0 {
				binary.BigEndian.PutUint32(r, recordSum(seq, r[recSeq:replyAt]))
			}
			if l := int(binary.BigEndian.Uint16(r[recReply:])); flip&2 != 0 && l <= replyMax {
				binary.BigEndian.PutUint32(r[replyAt:], recordSum(seq, r[recReply:recReply+2+l]))
			}
		}
		var runs int
		var doubts []string
		s := NewServer(ServerConfig{Programs: journaled(&runs, &doubts), Workers: 1, Journal: b})
		defer s.Close()
		if n := len(s.cache.journal.free) + s.cache.count + len(s.cache.doubts); n != len(b)/recordLen {
			t.Errorf("%d records of %d are accounted for", n, len(b)/recordLen)
		}
		send(t, s, "192.0.2.1:9", call(1, testProg, 2, procOnce, 1))
	})
}
