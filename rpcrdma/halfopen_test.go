package rpcrdma_test

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
)

// quietLink drops RTUs while quiet is set.
type quietLink struct {
	link.Link
	quiet *atomic.Bool
}

// Send implements link.Link.
func (l quietLink) Send(b *wire.Batch) error {
	const (
		madLen  = 256
		attrAt  = 16
		attrRTU = 0x14
	)
	for i := range b.D {
		if p := b.D[i].Payload; l.quiet.Load() && len(p) == 1 && len(p[0]) == madLen &&
			binary.BigEndian.Uint16(p[0][attrAt:]) == attrRTU {
			return nil // the RTU is alone in its batch
		}
	}
	return l.Link.Send(b)
}

// TestHalfOpenHasTheFloor: a client that has not confirmed its connection has the least memory. It
// gets the first grant once it has confirmed it.
func TestHalfOpenHasTheFloor(t *testing.T) {
	const receive = 5120
	l, at := serveRoCE(t)
	var quiet atomic.Bool
	quiet.Store(true)
	dev, err := roce.Open(roce.Config{Wrap: func(_ int, l link.Link) link.Link { return quietLink{l, &quiet} }})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := rpcrdma.Dial(ctx, dev, at, rpcrdma.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if m := l.Memory(); m.Connections != 1 || m.Messages != 4*receive {
		t.Errorf("before the RTU: %+v", m)
	}
	quiet.Store(false) // the REP is repeated, and answered
	for l.Memory().Messages != 32*receive {
		if ctx.Err() != nil {
			t.Fatalf("after the RTU: %+v", l.Memory())
		}
		time.Sleep(time.Millisecond)
	}
	if err := put(c, []byte{19}); err != nil {
		t.Error(err)
	}
}
