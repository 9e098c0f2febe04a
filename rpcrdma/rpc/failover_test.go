package rpc

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"testing"
	"time"
)

// clocks are differences between the clocks of two hosts. The clock of a host starts at its boot.
var clocks = map[string]int64{
	"the old host is older":   int64(100 * 24 * time.Hour),
	"the old host is younger": -int64(100 * 24 * time.Hour),
}

// ofHost returns the journal with its times moved by d, as the clock of another host has them.
func ofHost(mem []byte, d int64) []byte {
	mem = bytes.Clone(mem)
	j := journal{mem: mem}
	for i := range int32(len(mem) / recordLen) {
		if r := j.record(i); binary.BigEndian.Uint32(r) != 0 {
			j.date(i, int64(binary.BigEndian.Uint64(r[recAt:]))+d)
		}
	}
	return mem
}

// snapshotOfHost does the same with a snapshot. A snapshot of an early version has no time of its
// own.
func snapshotOfHost(t *testing.T, b []byte, d int64, early bool) []byte {
	t.Helper()
	var x snapshot
	if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&x); err != nil {
		t.Fatal(err)
	}
	x.Now += d
	if early {
		x.Now = 0
	}
	for i := range x.Replies {
		x.Replies[i].At += d
		x.Replies[i].Conn += d
	}
	return gobOf(t, x)
}

// onceServer makes a server with a journal, whose programs count their calls and doubts.
func onceServer(t *testing.T, mem []byte, runs *int, doubts *[]string) *Server {
	t.Helper()
	s := NewServer(ServerConfig{Programs: journaled(runs, doubts), Workers: 1, Journal: mem})
	t.Cleanup(s.Close)
	return s
}

func onceCall(i uint32) []byte { return call(i, testProg, 2, procOnce, i) }

// TestMovedReplies: after a planned failover clients send calls again to the other host. They are
// not executed again, also not after a later upgrade or crash of that host.
func TestMovedReplies(t *testing.T) {
	for name, d := range clocks {
		for _, early := range []bool{false, true} {
			var runs int
			var doubts []string
			mem := make([]byte, 16*recordLen)
			serve := func(mem []byte) *Server { return onceServer(t, mem, &runs, &doubts) }
			snap := func(s *Server) []byte {
				b, err := s.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			restore := func(s *Server, b []byte, moved bool) {
				if err := s.Restore(b, moved); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			s := serve(mem)
			a := process("192.0.2.1", TransportRDMA)
			again := func(after string, n uint32, ack bool) {
				t.Helper()
				a.reconnect(true)
				before := runs
				for i := range n {
					if a.call(t, s, onceCall(i), ack); runs != before {
						t.Errorf("%s, early version %v, after %s: call %d is executed again", name, early, after, i)
						before = runs
					}
				}
			}
			a.call(t, s, onceCall(0), false)
			a.call(t, s, onceCall(1), false)
			// These two calls differ in their connection only.
			a.call(t, s, onceCall(9), true)
			a.reconnect(false)
			if a.call(t, s, onceCall(9), true); runs != 4 {
				t.Fatal("the test is too weak")
			}
			b := snapshotOfHost(t, snap(s), d, early)
			mem = ofHost(mem, d)
			s = serve(mem)
			restore(s, b, true)
			again("the failover", 2, false)
			a.call(t, s, onceCall(2), false)
			b = snap(s)
			s = serve(mem)
			restore(s, b, false)
			again("an upgrade", 3, false)
			s = serve(mem)
			again("a crash", 3, true)
			before := runs
			if process("192.0.2.1", TransportRDMA).call(t, s, onceCall(0), true); runs == before {
				t.Errorf("%s: a call of another process is not executed", name)
			}
			if len(doubts) > 0 {
				t.Errorf("%s: doubts %q", name, doubts)
			}
		}
	}
}

// TestJournalOfAnotherHost: after a failover a journal has records of two hosts. A server that
// starts after a crash recognizes the calls of both.
func TestJournalOfAnotherHost(t *testing.T) {
	for name, d := range clocks {
		var runs int
		var doubts []string
		mem := make([]byte, 16*recordLen)
		serve := func(mem []byte) *Server { return onceServer(t, mem, &runs, &doubts) }
		send(t, serve(mem), "192.0.2.1:9", onceCall(0))
		mem = ofHost(mem, d)
		send(t, serve(mem), "192.0.2.1:9", onceCall(1))
		s := serve(mem)
		for i := range uint32(2) {
			if send(t, s, "192.0.2.1:10", onceCall(i)); runs != 2 {
				t.Errorf("%s: call %d is executed again", name, i)
				runs = 2
			}
		}
	}
}
