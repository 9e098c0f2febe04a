package sockets

import (
	"net"
	"net/netip"
	"testing"

	"go.uber.org/zap"

	"github.com/rstored/rstored/rdma/link/udp"
)

// TestCopies: another process goes on with the sockets, and the store hears nothing of it before
// that one serves.
func TestCopies(t *testing.T) {
	m := manager{}
	first := empty(m)
	l, err := first.Listen(netip.MustParseAddrPort("127.0.0.1:0"), listen(t, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	addr := netip.MustParseAddr("127.93.7.1")
	for shard := range 2 {
		u, err := udp.Open(udp.Config{Addr: addr, Shard: shard, Shards: 2, Sockets: first})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = u.Close() }()
	}
	names, files, err := first.copies()
	if err != nil || len(names) != 3 || len(files) != 3 || len(m) != 3 {
		t.Fatalf("%v, %d files, store %v: %v", names, len(files), m, err)
	}

	second := fromFiles(m, zap.NewNop(), files, names)
	again, err := second.Listen(at,
		func() (net.Listener, error) { t.Fatal("opened although it is there"); return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	for shard := range 2 {
		u, err := udp.Open(udp.Config{Addr: addr, Shard: shard, Shards: 2, Sockets: second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = u.Close() }()
	}
	other, err := second.Listen(netip.MustParseAddrPort("127.0.0.2:0"), listen(t, "127.0.0.2:0"))
	if err != nil {
		t.Fatal(err)
	}
	if len(m) != 3 {
		t.Fatalf("the store was told before the process serves: %v", m)
	}
	second.live()
	if len(m) != 4 {
		t.Fatalf("the store has %v", m)
	}
	if err := other.Close(); err != nil || len(m) != 3 {
		t.Fatalf("the store has %v: %v", m, err)
	}
	// One that is closed is not handed over.
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	names, files, err = second.copies()
	if err != nil || len(names) != 2 {
		t.Fatalf("%v: %v", names, err)
	}
	for _, f := range files {
		_ = f.Close()
	}
}
