package roce_test

import (
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/rdmatest"
	"github.com/rstored/rstored/rdma/roce"
)

// provider opens devices on free loopback addresses.
func provider(cfg roce.Config) rdmatest.Provider {
	return func(t testing.TB) rdma.Device {
		t.Helper()
		d, err := roce.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() }) // fails if the test has closed it
		return d
	}
}

// TestConformance runs the suite for providers on real sockets, once for each path that packets can
// take through the kernel and the device.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  roce.Config
	}{
		{"offloads", roce.Config{}},
		{"ICRC", roce.Config{LocalICRC: true}},
		{"no offloads", roce.Config{NoGSO: true, NoGRO: true}},
		{"MTU 1024", roce.Config{PathMTUMax: 1024}},
		{"MTU 256", roce.Config{PathMTUMax: 256}},
		{"4 shards", roce.Config{Shards: 4}},
	} {
		t.Run(c.name, func(t *testing.T) { rdmatest.Run(t, provider(c.cfg)) })
	}
}

// BenchmarkDevice has an ICRC on both sides of each comparison, as over a network.
func BenchmarkDevice(b *testing.B) {
	rdmatest.Benchmark(b, provider(roce.Config{LocalICRC: true}), func(t testing.TB) link.Link {
		l, err := udp.Open(udp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	})
}
