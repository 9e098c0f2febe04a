package rpcrdma

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestDomain: connections of one Domain register memory once. Each can use it, until the last one
// releases it. Memory that was released is not given to another registration at the same address.
func TestDomain(t *testing.T) {
	w := newWorld(t, Config{})
	dev := w.net.device("192.0.2.9")
	defer dev.Close()
	var d Domain
	dial := func() *Client {
		c, err := Dial(context.Background(), dev, serverAddr, ClientConfig{Domain: &d})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	one, two := dial(), dial()
	pd := one.pd.(*fakePD)
	if two.pd != one.pd {
		t.Fatal("two protection domains")
	}
	settle := func() {
		for _, c := range []*Client{one, two} {
			done := make(chan struct{})
			if c.loop.Submit(func() { close(done) }) {
				<-done
			}
		}
	}
	const n = 100_000
	buf := make([]byte, 4*n)
	read := func(c *Client, part int) {
		t.Helper()
		dst, want := buf[part*n:][:n], make([]byte, n)
		pattern(want, 0)
		r := request(procGet, func(e *xdr.Encoder) {
			e.Uint32(1)
			e.Uint32(n)
		}, func(d *xdr.Decoder) error {
			if b := d.Bulk(n); len(b) != n || &b[0] != &dst[0] {
				return fmt.Errorf("%d bytes, or elsewhere", len(b))
			}
			return nil
		})
		r.Dst = dst
		if err := c.Call(context.Background(), r); err != nil || !bytes.Equal(dst, want) {
			t.Fatalf("%v, or wrong data", err)
		}
	}
	regions := func(want int, when string) {
		t.Helper()
		settle()
		if all, remote := pd.open(); all != want || remote != 0 {
			t.Fatalf("%s: %d regions, %d of them open to the server; want %d and none", when, all, remote, want)
		}
	}
	register := func(c *Client) func() {
		t.Helper()
		release, err := c.Register(buf)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	first, second := register(one), register(two)
	regions(3, "registered by both") // two regions are for messages
	read(one, 0)
	read(two, 1)

	first()
	regions(3, "released by one")
	read(two, 2)
	// Since the release the memory could have been freed, and mapped again for other data.
	old := two.regions[0]
	third := register(one)
	if got := one.regions[0]; got == old {
		t.Fatal("the region of memory that was released is used again")
	}
	regions(4, "registered again")
	second()
	second()
	regions(3, "released by the other, twice")
	read(one, 3)
	third()
	regions(2, "released by all")

	last := register(one)
	_ = register(two)
	_ = one.Close()
	<-one.ended
	last()
	if all, _ := pd.open(); all != 2 {
		t.Fatalf("after the end of one connection: %d regions", all)
	}
	read(two, 0)
	_ = two.Close()
	<-two.ended
	if all, _ := pd.open(); all != 0 {
		t.Fatalf("%d regions left", all)
	}
	if three := dial(); three.pd == rdma.PD(pd) {
		t.Error("a protection domain is used after its end")
	}
}
