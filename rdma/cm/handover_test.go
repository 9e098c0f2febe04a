package cm

import (
	"bytes"
	"encoding/gob"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// moved exports the connection and imports it into another machine, whose clock has another origin.
func (l *lone) moved() *lone {
	l.t.Helper()
	var stream bytes.Buffer
	if err := gob.NewEncoder(&stream).Encode(l.m.Export(l.now)); err != nil {
		l.t.Fatal(err)
	}
	var s Snapshot
	if err := gob.NewDecoder(&stream).Decode(&s); err != nil {
		l.t.Fatal(err)
	}
	words := uint32(1 << 20)
	n := &lone{t: l.t, now: l.now + 1000*rdma.Second, req: l.req}
	n.m = New(Config{Addr: testAddr[1], GUID: s.GUID, Random: func() uint32 { words++; return words }})
	if err := n.m.Listen(20049); err != nil {
		l.t.Fatal(err)
	}
	if err := n.m.Import(n.now, &s); err != nil {
		l.t.Fatal(err)
	}
	if l.id != nil {
		n.id = n.m.Lookup(l.id.Local)
	}
	return n
}

// TestHandover: a connection continues in another machine from each state that lasts.
func TestHandover(t *testing.T) {
	t.Run("established", func(t *testing.T) {
		l := newLone(t, Established).moved()
		if l.id == nil || l.id.State != Established || l.m.HasWork() || l.m.Deadline() != 0 {
			t.Fatalf("%+v", l.id)
		}
		l.hear(l.req.Encode(Header{TID: 1})) // a late duplicate is recognized
		if l.m.n.Duplicates != 1 {
			t.Errorf("%+v", *l.m.n)
		}
		l.hear(l.ids(AttrDREQ))
		if l.id.State != TimeWait || l.m.n.TxDREP != 1 {
			t.Errorf("after a DREQ: state %d, %+v", l.id.State, *l.m.n)
		}
	})
	t.Run("without an RTU", func(t *testing.T) {
		old := newLone(t, REPSent)
		rep := bytes.Clone(old.id.Msg)
		l := old.moved()
		if setup, _ := l.m.Pending(); setup != 1 || l.m.HasWork() {
			t.Fatalf("%d connections are being set up", setup)
		}
		at := l.m.Deadline()
		if at <= l.now || at > l.now+resendFirst {
			t.Fatalf("the REP is to be repeated at %d, now is %d", at, l.now)
		}
		l.m.Expire(at)
		if len(l.m.out) != 1 || !bytes.Equal(l.m.out[0].mad, rep) {
			t.Fatal("the REP was not repeated as it was")
		}
		l.hear(l.ids(AttrRTU))
		if setup, _ := l.m.Pending(); l.id.State != Established || setup != 0 || len(l.m.askers) != 0 {
			t.Errorf("state %d, %d set up", l.id.State, setup)
		}
	})
	t.Run("after a DREQ", func(t *testing.T) {
		l := newLone(t, DREQSent).moved()
		l.hear(l.ids(AttrDREP))
		if l.id.State != TimeWait {
			t.Errorf("state %d", l.id.State)
		}
	})
	t.Run("time wait", func(t *testing.T) {
		l := newLone(t, TimeWait).moved()
		if _, waiting := l.m.Pending(); waiting != 1 {
			t.Fatalf("%d wait", waiting)
		}
		l.m.Expire(l.m.Deadline())
		if _, waiting := l.m.Pending(); waiting != 0 || len(l.m.ids) != 0 || len(l.m.qpns) != 0 {
			t.Errorf("%d wait, %d are known", waiting, len(l.m.ids))
		}
	})
	t.Run("attempts are not handed over", func(t *testing.T) {
		for _, state := range []State{REQSent, REQReceived, REPReceived} {
			if l := newLone(t, state).moved(); len(l.m.ids) != 0 {
				t.Errorf("state %d: %d connections", state, len(l.m.ids))
			}
		}
	})
	t.Run("orphans", func(t *testing.T) {
		l := newLone(t, Established).moved()
		if o := l.m.Orphans(); len(o) != 1 || o[0] != l.id {
			t.Fatalf("%v", o)
		}
		l.id.User = l
		if o := l.m.Orphans(); len(o) != 0 {
			t.Fatalf("%v", o)
		}
	})
}

// TestHandoverLedger: each connection has its record after an import, and the other records are
// free.
func TestHandoverLedger(t *testing.T) {
	ledger := make([]byte, 4*LedgerRecord)
	words := uint32(0)
	l := &lone{t: t, now: rdma.Second, req: loneRequest()}
	l.m = New(Config{Addr: testAddr[1], Random: func() uint32 { words++; return words }, Ledger: ledger})
	if err := l.m.Listen(20049); err != nil {
		t.Fatal(err)
	}
	l.m.Resume(l.now)
	l.hear(l.req.Encode(Header{TID: 1}))
	l.id = l.events()[0].ID
	if err := l.m.Accept(l.now, l.id, AcceptParams{QPN: 0x222}); err != nil {
		t.Fatal(err)
	}
	l.hear(l.ids(AttrRTU))
	before := bytes.Clone(ledger)
	s := l.m.Export(l.now)
	m := New(Config{Addr: testAddr[1], Random: func() uint32 { words++; return words }, Ledger: ledger})
	if err := m.Import(l.now, &s); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ledger, before) || len(m.blank) != 3 {
		t.Fatalf("the ledger has changed, or %d records are free", len(m.blank))
	}
	m.Disconnect(l.now, m.Lookup(l.id.Local))
	m.timeWait(l.now, m.Lookup(l.id.Local))
	if !bytes.Equal(ledger, make([]byte, len(ledger))) {
		t.Error("the record outlives its connection")
	}
}

// TestImportRefused: Import refuses snapshots that Export cannot have made.
func TestImportRefused(t *testing.T) {
	good := newLone(t, Established).m.Export(0)
	for what, change := range map[string]func(s *Snapshot){
		"twice":          func(s *Snapshot) { s.IDs = append(s.IDs, s.IDs[0]) },
		"no number":      func(s *Snapshot) { s.IDs[0].Local = 0 },
		"no peer":        func(s *Snapshot) { s.IDs[0].Peer = SnapshotID{}.Peer },
		"no such state":  func(s *Snapshot) { s.IDs[0].State = 77 },
		"an idle number": func(s *Snapshot) { s.IDs[0].State = Idle },
	} {
		s := Snapshot{IDs: append([]SnapshotID(nil), good.IDs...)}
		change(&s)
		if err := New(Config{Addr: testAddr[1], Random: func() uint32 { return 5 }}).Import(0, &s); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
}
