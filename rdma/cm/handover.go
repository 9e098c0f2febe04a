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

// Snapshot is what a machine knows of its connections, for the process that goes on with them:
// those that are established or end, and those whose REP is out. Attempts of ours and
// datagram services are not in it.
type Snapshot struct {
	GUID uint64
	IDs  []SnapshotID
}

// SnapshotID is a connection. Times are from the moment of the export, in nanoseconds.
type SnapshotID struct {
	State               State
	Active              bool
	Local, Remote       uint32
	Peer                netip.AddrPort
	Service             uint16
	REQ                 REQ
	REP                 REP
	LocalQPN, RemoteQPN uint32
	TID                 uint64
	GUID                uint64
	Comm                uint32
	Record              int32 // in the ledger, -1 = none
	Msg                 []byte
	Every, Due, Limit   rdma.Time
	Age                 rdma.Time // of Msg
}

// Export describes the connections at a time. Ask for it when no event waits. The machine stays as it is.
func (m *Machine) Export(now rdma.Time) Snapshot {
	s := Snapshot{GUID: m.cfg.GUID}
	for _, id := range m.sorted() {
		switch id.State {
		case REPSent, Established, DREQSent, TimeWait:
		default:
			continue
		}
		e := SnapshotID{
			State: id.State, Active: id.Active, Local: id.Local, Remote: id.Remote, Peer: id.Peer, Service: id.Service, REQ: id.REQ, REP: id.REP,
			LocalQPN: id.localQPN, RemoteQPN: id.remoteQPN, TID: id.tid, GUID: id.guid, Comm: id.comm, Record: id.record,
		}
		if id.index >= 0 {
			e.Msg, e.Every, e.Due, e.Limit, e.Age = id.msg, id.every, id.due-now, id.limit-now, now-id.since
		}
		s.IDs = append(s.IDs, e)
	}
	return s
}

// errSnapshot is what is wrong with a Snapshot that cannot be.
var errSnapshot = errors.New("cm: not the state of a connection manager")

// Import makes a new machine know the connections of s, instead of Resume. Nothing is sent, and the ledger
// keeps its contents: another process may go on with it if this one does not.
func (m *Machine) Import(now rdma.Time, s *Snapshot) error {
	taken := make(map[int32]bool)
	for i := range s.IDs {
		e := &s.IDs[i]
		id := &ID{
			State: e.State, Active: e.Active, Local: e.Local, Remote: e.Remote, Peer: e.Peer, Service: e.Service, REQ: e.REQ, REP: e.REP,
			localQPN: e.LocalQPN, tid: e.TID, index: -1, record: -1,
		}
		if m.ids[id.Local] != nil || id.Local == 0 || !id.Peer.IsValid() {
			return fmt.Errorf("%w: connection %#x of %v", errSnapshot, e.Local, e.Peer)
		}
		if e.Record >= 0 && int(e.Record) < len(m.cfg.Ledger)/LedgerRecord && !taken[e.Record] {
			id.record = e.Record
			taken[e.Record] = true
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
			id.msg, id.every, id.since, id.limit = e.Msg, max(e.Every, resendFirst), now-e.Age, now+e.Limit
			m.schedule(id, now+max(e.Due, 0))
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

// Orphans are the connections that peers believe in and that have no User.
func (m *Machine) Orphans() []*ID {
	return slices.DeleteFunc(m.sorted(), func(id *ID) bool {
		return id.User != nil || id.State != Established && id.State != REPSent
	})
}

// sorted is the IDs by their numbers, so that the order is not chance.
func (m *Machine) sorted() []*ID {
	return slices.SortedFunc(maps.Values(m.ids), func(a, b *ID) int { return cmp.Compare(a.Local, b.Local) })
}
