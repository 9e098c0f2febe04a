package dial_test

import (
	"sync"
	"testing"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// dscps are those of messages that arrived, by queue pair.
type dscps struct {
	mu  sync.Mutex
	got map[uint32]map[uint8]bool
}

type dscpLink struct {
	link.Link
	seen *dscps
}

// Recv implements link.Link.
func (l dscpLink) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	n, err := l.Link.Recv(rx, deadline)
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	for i := range n {
		d := &rx.D[i]
		if len(d.Data) < wire.BTHLen || wire.Opcode(d.Data[0]) != wire.SendOnly {
			continue
		}
		qpn := wire.DestQPN(d.Data)
		if l.seen.got[qpn] == nil {
			l.seen.got[qpn] = map[uint8]bool{}
		}
		l.seen.got[qpn][d.TOS>>2] = true
	}
	return n, err
}

// TestDSCP: the DSCP of a URL is that of its connections, and goes before the dialer's.
func TestDSCP(t *testing.T) {
	seen := &dscps{got: map[uint32]map[uint8]bool{}}
	dev, err := roce.Open(roce.Config{Wrap: func(_ int, l link.Link) link.Link { return dscpLink{l, seen} }})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	srv := rpc.NewServer(rpc.ServerConfig{})
	defer srv.Close()
	l, err := rpcrdma.Serve(dev, 20049, srv, rpcrdma.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := dial.Dialer{DSCP: 10}
	defer d.Close()
	for _, c := range []struct {
		options string
		want    uint8
	}{{"", 10}, {"?dscp=26", 26}, {"?provider=soft&dscp=46", 46}, {"?dscp=26", 26}} {
		u, err := client.ParseURL("nfs+rdma://" + dev.Addr().String() + "/" + c.options)
		if err != nil {
			t.Fatal(err)
		}
		seen.mu.Lock()
		clear(seen.got)
		seen.mu.Unlock()
		if err := d.Client(u).Null(t.Context()); err == nil {
			t.Error("a server without programs answers NULL")
		}
		// The connections before it are open, and may request a delayed acknowledgement now.
		found := false
		seen.mu.Lock()
		for qpn, got := range seen.got {
			if len(got) != 1 {
				t.Errorf("%q: QP %#x, DSCPs %v", c.options, qpn, got)
			}
			found = found || got[c.want]
		}
		if !found {
			t.Errorf("%q: DSCPs by queue pair %v", c.options, seen.got)
		}
		seen.mu.Unlock()
	}
}
