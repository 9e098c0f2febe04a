//go:build rdmacore && linux && cgo

package verbs

import (
	"errors"
	"log/slog"
	"reflect"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/connstate"
)

// addrChange is RDMA_CM_EVENT_ADDR_CHANGE.
const addrChange = 14

// happens passes an event of the connection manager to handler, whose parameter has a type of C.
func happens(t *testing.T, handler any, kind int32) {
	t.Helper()
	h := reflect.ValueOf(handler)
	e := reflect.New(h.Type().In(0).Elem())
	field := e.Elem().FieldByName("_type")
	if !field.IsValid() || field.Kind() != reflect.Int32 {
		t.Fatal("the event has no type")
	}
	*(*int32)(field.Addr().UnsafePointer()) = kind
	h.Call([]reflect.Value{e})
}

// TestAddrChange: when a bond uses another interface, connections end with a reason. The device
// reports once that it must be opened again, whichever loop gets the event first.
func TestAddrChange(t *testing.T) {
	if got := cmEventName(addrChange); got != "RDMA_CM_EVENT_ADDR_CHANGE" {
		t.Fatalf("the event is %s", got)
	}
	var records []Record
	d := &Device{
		removed: make(chan struct{}), log: slog.New(slog.DiscardHandler),
		cfg: Config{OnFailure: func(r Record) { records = append(records, r) }},
	}
	l := &loop{dev: d, now: rdma.Second, conns: map[*conn]struct{}{}, ids: map[*cmID]struct{}{}}
	d.loops = []*loop{l}
	var events []rdma.ConnEvent
	add := func() *conn {
		c := &conn{l: l, q: &qp{l: l, dead: true}, id: &cmID{l: l}}
		c.Phase, c.On = connstate.Established, func(_ rdma.Conn, e rdma.ConnEvent) { events = append(events, e) }
		l.conns[c] = struct{}{}
		return c
	}
	c, other := add(), add()
	happens(t, c.event, addrChange)
	select {
	case <-d.Removed():
	default:
		t.Error("the device is not to be opened again")
	}
	happens(t, (&request{incoming: incoming{l: l}}).event, addrChange)
	happens(t, (&sidrRequest{incoming{l: l}}).event, addrChange)
	happens(t, c.event, addrChange)
	l.inbox.Run()
	for l.callbacks() {
	}
	if len(events) != 2 || c.Phase != connstate.Down || other.Phase != connstate.Down {
		t.Fatalf("%+v", events)
	}
	for _, e := range events {
		if e.Kind != rdma.EventDisconnected || !errors.Is(e.Err, rdma.ErrAddrChanged) {
			t.Errorf("%+v", e)
		}
	}
	if len(records) != 2 || records[0].Event != "RDMA_CM_EVENT_ADDR_CHANGE" || records[0].Outcome != rdma.Broken ||
		!errors.Is(records[1].Err, rdma.ErrAddrChanged) {
		t.Errorf("%+v", records)
	}
	d.removedByKernel()
	if err := d.lost(); !errors.Is(err, rdma.ErrAddrChanged) {
		t.Errorf("lost: %v", err)
	}
}
