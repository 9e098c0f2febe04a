package tickle

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// Conn is a connection: the address of the server, and that of the client.
type Conn struct{ Local, Remote netip.AddrPort }

// Record is the length in bytes of a connection in a Table.
//
//	 0         4           6            8              24             40
//	+---------+-----------+------------+--------------+--------------+
//	| CRC-32  | local port| remote port| local address|remote address|
//	+---------+-----------+------------+--------------+--------------+
//
// The checksum also covers tag. A record that was half written is ignored.
const Record = 40

const tag = "tcp1"

func sum(r []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE([]byte(tag)), crc32.IEEETable, r[4:Record])
}

// whole reports whether a record has a connection.
func whole(r []byte) bool { return binary.BigEndian.Uint32(r) == sum(r) }

// Table lists connections in memory that outlives the process. On storage that nodes share it also
// outlives the node. If the table is full, the other connections are left out: their clients wait
// for their timeouts.
type Table struct {
	mem []byte
	at  map[Conn]int
}

// Open returns the table in mem, and the connections that an earlier process has left in it. Open
// empties the table.
func Open(mem []byte) (t *Table, left []Conn) {
	t = &Table{mem: mem, at: make(map[Conn]int)}
	for i := range len(mem) / Record {
		if r := t.record(i); whole(r) {
			left = append(left, Conn{
				netip.AddrPortFrom(netip.AddrFrom16([16]byte(r[8:24])).Unmap(), binary.BigEndian.Uint16(r[4:])),
				netip.AddrPortFrom(netip.AddrFrom16([16]byte(r[24:40])).Unmap(), binary.BigEndian.Uint16(r[6:])),
			})
		}
		clear(t.record(i))
	}
	return t, left
}

func (t *Table) record(i int) []byte { return t.mem[i*Record:][:Record:Record] }

// Set replaces the contents of the table by list. It writes only what has changed.
func (t *Table) Set(list []Conn) {
	now := make(map[Conn]bool, len(list))
	for _, c := range list {
		now[c] = true
	}
	used := make(map[int]bool, len(t.at))
	for c, i := range t.at {
		if now[c] && whole(t.record(i)) { // the old process of an upgrade can still write
			used[i] = true
			continue
		}
		clear(t.record(i))
		delete(t.at, c)
	}
	i := 0
	for _, c := range list {
		if _, ok := t.at[c]; ok {
			continue
		}
		for used[i] {
			i++
		}
		if i >= len(t.mem)/Record {
			return
		}
		r := t.record(i)
		binary.BigEndian.PutUint16(r[4:], c.Local.Port())
		binary.BigEndian.PutUint16(r[6:], c.Remote.Port())
		local, remote := c.Local.Addr().As16(), c.Remote.Addr().As16()
		copy(r[8:], local[:])
		copy(r[24:], remote[:])
		binary.BigEndian.PutUint32(r, sum(r))
		t.at[c], used[i] = i, true
	}
}
