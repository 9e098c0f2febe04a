package roce

import (
	"reflect"

	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/ud"
)

// Stats count what happened on a device since it was opened.
type Stats struct {
	Turns          uint64 // rounds of the loops
	ICRCExact      uint64 // packets whose ICRC matched in all bits
	ICRCResidual   uint64 // packets whose ICRC matched but for the unseen IP identification
	ICRCOmitted    uint64 // packets of peers on this host that came without ICRC, as agreed
	ICRCErrors     uint64 // packets dropped for their ICRC
	DropMalformed  uint64 // too short, or impossible padding
	DropVersion    uint64 // unknown transport version
	DropOpcode     uint64 // unknown opcode
	DropUnknownQPN uint64 // no such queue pair
	DropGSI        uint64 // packets to QP1 other than datagrams
	DropPKey       uint64 // datagrams to QP1 of another partition
	DropQKey       uint64 // datagrams to QP1 with a wrong Q_Key
	// RefusedAfterAccessErrors counts REQs of hosts whose connections had ended by remote access
	// errors too often.
	RefusedAfterAccessErrors uint64
	RefusedPKey              uint64 // REQs for partitions that the device is not in
	Forwarded                uint64 // packets that one shard copied to another
	ForwardDropped           uint64 // packets for another shard that had too many waiting
	SendErrors               uint64 // batches with datagrams that can never be sent
	QPs                      uint64 // queue pairs now
	Regions                  uint64 // memory regions now

	RC   rc.Counters
	UD   ud.Counters
	CM   cm.Counters
	Link udp.Stats
}

// Stats adds up the counters of all shards. A loop counts without atomic operations, so the
// counters are read on the loops. It must not be called on a loop of a device that has several.
func (d *Device) Stats() Stats {
	var sum Stats
	for _, s := range d.shards {
		done := make(chan Stats, 1)
		if d.manual {
			done <- s.snapshot()
		} else if !s.Submit(func() { done <- s.snapshot() }) {
			d.ended.Wait()
			done <- s.snapshot()
		}
		one := <-done
		add(reflect.ValueOf(&sum).Elem(), reflect.ValueOf(&one).Elem())
	}
	d.mem.mu.Lock()
	sum.Regions = uint64(d.mem.live)
	d.mem.mu.Unlock()
	return sum
}

func (s *shard) snapshot() Stats {
	t := s.stats
	t.QPs = uint64(len(s.qps) + len(s.uds))
	for _, q := range s.qps {
		t.RC.Add(q.rc.Counters())
	}
	for _, q := range s.uds {
		t.UD.Add(q.ud.Counters())
	}
	if l, ok := s.link.(interface{ Stats() udp.Stats }); ok {
		t.Link = l.Stats()
	}
	return t
}

// add adds the numbers of b to a. A bool becomes true if it is true in a or b.
func add(a, b reflect.Value) {
	for i := range a.NumField() {
		switch x, y := a.Field(i), b.Field(i); x.Kind() {
		case reflect.Struct:
			add(x, y)
		case reflect.Uint64, reflect.Uint16:
			x.SetUint(x.Uint() + y.Uint())
		case reflect.Int:
			x.SetInt(x.Int() + y.Int())
		case reflect.Bool:
			x.SetBool(x.Bool() || y.Bool())
		}
	}
}

// Each calls f for each counter, with a name such as "RC.TxPackets".
func (s *Stats) Each(f func(name string, v uint64)) { each("", reflect.ValueOf(s).Elem(), f) }

func each(prefix string, v reflect.Value, f func(string, uint64)) {
	for field, x := range v.Fields() {
		name := prefix + field.Name
		switch x.Kind() {
		case reflect.Struct:
			each(name+".", x, f)
		case reflect.Uint64:
			f(name, x.Uint())
		case reflect.Int:
			f(name, uint64(x.Int()))
		}
	}
}
