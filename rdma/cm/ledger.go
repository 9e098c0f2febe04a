package cm

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// The ledger lists the established connections in memory that outlives the process. After a kill
// the next process finds there which peers still use a connection. A packet to a queue pair that
// does not exist is dropped silently (IBTA 9.6), so each of those peers would go on sending until
// its retries are used up, 17 seconds by the Linux defaults. A DREQ ends the connection at once.
//
// A record has 32 bytes. Its checksum also covers ledgerTag, the version of the format: a record
// that was half written, or that another version wrote, is ignored.
//
//	 0           4           8           12          16                   32
//	+-----------+-----------+-----------+-----------+--------------------+
//	|  CRC-32   |  local ID | remote ID | remote QPN|  peer address      |
//	+-----------+-----------+-----------+-----------+--------------------+

// LedgerRecord is the length of a record in bytes.
const LedgerRecord = 32

const ledgerTag = 0x636d6c31

// ledgerSum is the checksum of a record.
func ledgerSum(r []byte) uint32 {
	var tag [4]byte
	binary.BigEndian.PutUint32(tag[:], ledgerTag)
	return crc32.Update(crc32.ChecksumIEEE(tag[:]), crc32.IEEETable, r[4:LedgerRecord])
}

// ledgerRecord is record i.
func (m *Machine) ledgerRecord(i int32) []byte {
	return m.cfg.Ledger[int(i)*LedgerRecord:][:LedgerRecord:LedgerRecord]
}

// remember adds an established connection, if a record is free. A full ledger only means that the
// peer of this connection waits for its retries after a kill. The checksum is written last: a
// record that a kill interrupts has a wrong checksum.
func (m *Machine) remember(id *ID) {
	if id.Record >= 0 || len(m.blank) == 0 {
		return
	}
	id.Record = m.blank[len(m.blank)-1]
	m.blank = m.blank[:len(m.blank)-1]
	r := m.ledgerRecord(id.Record)
	binary.BigEndian.PutUint32(r[4:], id.Local)
	binary.BigEndian.PutUint32(r[8:], id.Remote)
	binary.BigEndian.PutUint32(r[12:], id.RemoteQPN)
	a := id.Peer.Addr().As16()
	copy(r[16:], a[:])
	binary.BigEndian.PutUint32(r, ledgerSum(r))
}

// strike removes a connection that has ended for the peer too.
func (m *Machine) strike(id *ID) {
	if id.Record >= 0 {
		clear(m.ledgerRecord(id.Record))
		m.blank = append(m.blank, id.Record)
		id.Record = -1
	}
}

// Resume ends the connections of the process before, which Config.Ledger lists, and returns their
// number. Call it once, before anything else. A peer that has restarted knows no connection with
// these communication IDs and this QPN, so the DREQ ends nothing there. DREQs that are not
// answered end after dreqLimit.
func (m *Machine) Resume(now rdma.Time) int {
	var left []*ID
	for i := int32(len(m.cfg.Ledger)/LedgerRecord) - 1; i >= 0; i-- {
		r := m.ledgerRecord(i)
		local := binary.BigEndian.Uint32(r[4:])
		a := netip.AddrFrom16([16]byte(r[16:])).Unmap()
		if binary.BigEndian.Uint32(r) != ledgerSum(r) || m.ids[local] != nil || a.Is4() != m.cfg.Addr.Unmap().Is4() {
			clear(r)
			m.blank = append(m.blank, i)
			continue
		}
		id := &ID{index: -1, SnapshotID: SnapshotID{
			Local: local, Remote: binary.BigEndian.Uint32(r[8:]), RemoteQPN: binary.BigEndian.Uint32(r[12:]),
			Peer: netip.AddrPortFrom(a, 0), State: Established, Record: i,
		}}
		m.ids[local] = id
		left = append(left, id)
	}
	for _, id := range left {
		m.Disconnect(now, id)
	}
	return len(left)
}
