package cm

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// The ledger remembers established connections in memory that outlives the
// process. A program that was killed finds there, at its next start, which peers
// still believe in a connection. A packet to a queue pair that does not exist is
// dropped in silence (IBTA 9.6), so each of those peers would go on sending until
// its retries are used up, 17 seconds by the Linux defaults; a DREQ tells it
// at once.

// LedgerRecord is the number of bytes of Config.Ledger for each connection.
const LedgerRecord = 32

const ledgerTag = 0x636d6c31 // what the checksums begin with: the record's format

func ledgerSum(r []byte) uint32 {
	var tag [4]byte
	binary.BigEndian.PutUint32(tag[:], ledgerTag)
	return crc32.Update(crc32.ChecksumIEEE(tag[:]), crc32.IEEETable, r[4:LedgerRecord])
}

func (m *Machine) ledgerRecord(i int32) []byte {
	return m.cfg.Ledger[int(i)*LedgerRecord:][:LedgerRecord:LedgerRecord]
}

// remember enters a connection that is established.
func (m *Machine) remember(id *ID) {
	if id.record >= 0 || len(m.blank) == 0 {
		return
	}
	id.record = m.blank[len(m.blank)-1]
	m.blank = m.blank[:len(m.blank)-1]
	r := m.ledgerRecord(id.record)
	binary.BigEndian.PutUint32(r[4:], id.Local)
	binary.BigEndian.PutUint32(r[8:], id.Remote)
	binary.BigEndian.PutUint32(r[12:], id.remoteQPN)
	a := id.Peer.Addr().As16()
	copy(r[16:], a[:])
	binary.BigEndian.PutUint32(r, ledgerSum(r))
}

// strike takes a connection out that the peer knows to be over.
func (m *Machine) strike(id *ID) {
	if id.record >= 0 {
		clear(m.ledgerRecord(id.record))
		m.blank = append(m.blank, id.record)
		id.record = -1
	}
}

// Resume ends the connections of the program's earlier life that Config.Ledger
// remembers, and returns how many there are. Call it once, before anything else.
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
		id := &ID{
			Local: local, Remote: binary.BigEndian.Uint32(r[8:]), remoteQPN: binary.BigEndian.Uint32(r[12:]),
			Peer: netip.AddrPortFrom(a, 0), State: Established, index: -1, record: i,
		}
		m.ids[local] = id
		left = append(left, id)
	}
	for _, id := range left {
		m.Disconnect(now, id)
	}
	return len(left)
}
