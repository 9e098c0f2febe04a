package cm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/rstored/rstored/rdma"
)

// Snapshot has the connections with which another process continues: those that are established,
// those that are ending, and those whose REP was sent. Attempts of ours and datagram services
// (SIDR) are not in it.
//
//	state         exported    the other process
//	REPSent       yes         repeats the REP
//	Established   yes         nothing to do
//	DREQSent      yes         repeats the DREQ
//	TimeWait      yes         waits for the rest of the time
//	others        no          the peer repeats its REQ, or our user connects again
type Snapshot struct {
	GUID uint64
	IDs  []SnapshotID
}

// SnapshotID is a connection. In a Snapshot its times count from the moment of the export, in
// nanoseconds.
type SnapshotID struct {
	State               State
	Active              bool // we sent the REQ
	Local, Remote       uint32
	Peer                netip.AddrPort // port: active side the service, passive side the peer's own
	Service             uint16
	REQ                 REQ
	REP                 REP
	LocalQPN, RemoteQPN uint32
	TID                 uint64
	GUID                uint64
	Comm                uint32    // the peer's communication ID in the tables
	Record              int32     // in the ledger, -1 = none
	Msg                 []byte    // the message that is repeated
	Every, Due, Limit   rdma.Time // interval, time and end of the repetitions
	Age                 rdma.Time // of Msg, in a Snapshot
}

// Export describes the connections at a time. There must be no event that was not fetched. The
// machine does not change.
func (m *Machine) Export(now rdma.Time) Snapshot {
	s := Snapshot{GUID: m.cfg.GUID}
	for _, id := range m.sorted() {
		switch id.State {
		case REPSent, Established, DREQSent, TimeWait:
		default:
			continue
		}
		e := id.SnapshotID
		if id.index >= 0 {
			e.Due, e.Limit, e.Age = id.Due-now, id.Limit-now, now-id.since
		} else {
			e.Msg, e.Every, e.Due, e.Limit = nil, 0, 0, 0
		}
		s.IDs = append(s.IDs, e)
	}
	return s
}

// errSnapshot is the error of an invalid Snapshot.
var errSnapshot = errors.New("cm: the handed-over state is not that of a connection manager")

// Import adds the connections of s to a new machine, instead of Resume. It sends nothing, and the
// ledger keeps its contents: if this process fails, another one can use it. An impossible value
// is an error and not a panic: after an error the old process continues, and this machine is
// discarded. Two connections never share a record of the ledger.
func (m *Machine) Import(now rdma.Time, s *Snapshot) error {
	taken := make(map[int32]bool)
	for i := range s.IDs {
		e := s.IDs[i]
		id := &ID{SnapshotID: e, index: -1, since: now - e.Age}
		id.Due, id.Limit, id.Age = now+max(e.Due, 0), now+e.Limit, 0
		if m.ids[id.Local] != nil || id.Local == 0 || !id.Peer.IsValid() {
			return fmt.Errorf("%w: connection %#x of %v", errSnapshot, e.Local, e.Peer)
		}
		if e.Record >= 0 && int(e.Record) < len(m.cfg.Ledger)/LedgerRecord && !taken[e.Record] {
			taken[e.Record] = true
		} else {
			id.Record = -1
		}
		m.ids[id.Local] = id
		switch e.State {
		case REPSent:
			m.ask(id)
			m.waitForRTU(id)
		case TimeWait:
			m.waiting++
		case Established, DREQSent:
		default:
			return fmt.Errorf("%w: connection %#x in state %d", errSnapshot, e.Local, e.State)
		}
		m.bind(id, e.GUID, e.Comm, e.RemoteQPN)
		if e.State != Established {
			id.Every = max(e.Every, resendFirst)
			m.schedule(id, id.Due)
		}
	}
	m.blank = m.blank[:0]
	for i := int32(len(m.cfg.Ledger)/LedgerRecord) - 1; i >= 0; i-- {
		if !taken[i] {
			m.blank = append(m.blank, i)
		}
	}
	return nil
}

// Lookup is the connection with our communication ID, or nil.
func (m *Machine) Lookup(local uint32) *ID { return m.ids[local] }

// Orphans are the connections that exist for their peers and have no User. The owner ends them by
// Disconnect: no queue pair in this process belongs to them.
func (m *Machine) Orphans() []*ID {
	return slices.DeleteFunc(m.sorted(), func(id *ID) bool {
		return id.User != nil || id.State != Established && id.State != REPSent
	})
}

// sorted is the IDs ordered by their numbers, so that the order is not random.
func (m *Machine) sorted() []*ID {
	return slices.SortedFunc(maps.Values(m.ids), func(a, b *ID) int { return cmp.Compare(a.Local, b.Local) })
}
