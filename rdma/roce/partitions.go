package roce

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// PKeysMax is the size of a device's table of partition keys.
const PKeysMax = 128

// fullMember is the membership bit of a P_Key. Two limited members of a partition do not
// hear each other (IBTA 10.9.3).
const fullMember = 0x8000

// errPartition is why connections of a partition end when the device leaves it.
var errPartition = errors.New("the device has left the partition of the connection")

// partitions is the table of a device. A stored table does not change: the loops read it without a
// lock.
type partitions []uint16

func checkPKeys(keys []uint16) error {
	if len(keys) == 0 || len(keys) > PKeysMax {
		return fmt.Errorf("%w: a table of %d partition keys; it has 1 to %d", rdma.ErrInvalidWR, len(keys), PKeysMax)
	}
	for i, k := range keys {
		if k&^fullMember == 0 {
			return fmt.Errorf("%w: the partition key %#04x names no partition", rdma.ErrInvalidWR, k)
		}
		if slices.ContainsFunc(keys[:i], func(o uint16) bool { return (o^k)&^fullMember == 0 }) {
			return fmt.Errorf("%w: the partition of %#04x is in the table twice", rdma.ErrInvalidWR, k)
		}
	}
	return nil
}

// of returns our key of the partition that key names, 0 if we are not in it.
func (p partitions) of(key uint16) uint16 {
	for _, k := range p {
		if (k^key)&^fullMember == 0 {
			return k
		}
	}
	return 0
}

// match is of for the key in a packet or REQ: one side must be a full member (IBTA 10.9.3).
//
//	in the packet    in our table    result
//	full             full            match
//	full             limited         match
//	limited          full            match
//	limited          limited         none
//	another partition                none
func (p partitions) match(key uint16) uint16 {
	k := p.of(key)
	if (k|key)&fullMember == 0 {
		return 0
	}
	return k
}

// partition returns our key of the partition that a user names, by either membership. 0 means the
// first of the table.
func (d *Device) partition(key uint16) (uint16, error) {
	table := *d.pkeys.Load()
	if key == 0 {
		return table[0], nil
	}
	if k := table.of(key); k != 0 {
		return k, nil
	}
	return 0, fmt.Errorf("%w: the device is not in partition %#04x", rdma.ErrInvalidWR, key)
}

// PKeys is the device's table of partition keys.
func (d *Device) PKeys() []uint16 { return slices.Clone(*d.pkeys.Load()) }

// SetPKeys changes the table. Connections of partitions that are not in it any more, or
// in which the device has another membership, end.
func (d *Device) SetPKeys(keys []uint16) error {
	if err := checkPKeys(keys); err != nil {
		return err
	}
	table := partitions(slices.Clone(keys))
	d.pkeys.Store(&table)
	for _, s := range d.shards {
		s.Submit(func() { s.leavePartitions(table) })
	}
	return nil
}

// leavePartitions ends the queue pairs whose P_Key is not in the table.
func (s *shard) leavePartitions(table partitions) {
	for _, q := range s.qps {
		key := q.rc.Attr().PKey
		if q.rc.State() == rdma.StateReset || table.of(key) == key {
			continue
		}
		if q.conn != nil {
			q.conn.goDown(rdma.EventDisconnected, 0, nil, fmt.Errorf("%w %#04x", errPartition, key), true)
			continue
		}
		q.fail()
	}
	for _, q := range s.uds {
		key := q.ud.Attr().PKey
		if q.ud.State() != rdma.StateReset && table.of(key) != key {
			_ = q.ud.Modify(rdma.QPAttr{State: rdma.StateErr}) // legal from every state
			q.touch()
		}
	}
}

// management reports whether a datagram to QP1 may have the key. RoCE devices send these datagrams
// in the default partition, whichever partition they are about.
func (p partitions) management(key uint16) bool {
	return (key^wire.DefaultPKey)&^fullMember == 0 || p.match(key) != 0
}
