package rdma_test

import (
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
)

// Two devices on the loopback interface exchange one message: open, PD, CQ, region, listen, dial,
// post and poll. All objects of a connection are used on its loop.
func Example() {
	server, err := roce.Open(roce.Config{}) // a free loopback address
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := roce.Open(roce.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	// The receiver posts a receive before it answers the REQ, so that the first message finds it.
	received := make(chan string, 1)
	mr, err := register(server, make([]byte, 64))
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := server.Listen(7472, func(r rdma.ConnRequest) {
		var cq rdma.CQ
		cq, err := server.CreateCQ(r.Loop(), rdma.CQOptions{Depth: 8, OnEvent: func() {
			var wcs [8]rdma.WC
			for n := cq.Poll(wcs[:]); n > 0; n = cq.Poll(wcs[:]) {
				if wc := &wcs[0]; wc.Op == rdma.WCRecv && wc.Status == rdma.Success {
					received <- string(mr.Bytes()[:wc.ByteLen])
				}
			}
		}})
		if err == nil {
			_, err = r.Accept(mr.config(cq), rdma.ConnParams{}, func(c rdma.Conn) error {
				return c.QP().PostRecv([]rdma.RecvWR{{ID: 1, SGL: []rdma.SGE{{Buf: mr.Bytes(), LKey: mr.LKey()}}}})
			}, func(rdma.Conn, rdma.ConnEvent) {})
		}
		if err != nil {
			received <- err.Error()
		}
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	// The sender posts a SEND when the connection is established. The completion says that the
	// peer's device has the message, and that the memory is the sender's again.
	sent := make(chan string, 1)
	hello, err := register(client, []byte("hello"))
	if err != nil {
		fmt.Println(err)
		return
	}
	loop := client.Loops()[0]
	loop.Submit(func() {
		var cq rdma.CQ
		cq, err := client.CreateCQ(loop, rdma.CQOptions{Depth: 8, OnEvent: func() {
			var wcs [8]rdma.WC
			if cq.Poll(wcs[:]) > 0 {
				sent <- fmt.Sprintf("%v: %v", wcs[0].Op, wcs[0].Status)
			}
		}})
		if err == nil {
			_, err = client.Dial(loop, rdma.DialParams{
				Remote: netip.AddrPortFrom(server.Addr(), 7472), QP: hello.config(cq),
				On: func(c rdma.Conn, e rdma.ConnEvent) {
					if e.Kind != rdma.EventEstablished {
						return
					}
					sge := rdma.SGE{Buf: hello.Bytes(), LKey: hello.LKey()}
					err := c.QP().PostSend([]rdma.SendWR{{
						ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{sge},
					}})
					if err != nil {
						sent <- err.Error()
					}
				},
			})
		}
		if err != nil {
			sent <- err.Error()
		}
	})
	fmt.Println(<-sent)
	fmt.Printf("received: %s\n", <-received)
	// Output:
	// SEND: success
	// received: hello
}

// region is a memory region with its protection domain.
type region struct {
	rdma.MR
	pd rdma.PD
}

// register registers buf in a protection domain of its own. The Go runtime does not move memory of
// the heap; programs with much memory use an Arena.
func register(d rdma.Device, buf []byte) (*region, error) {
	pd, err := d.AllocPD()
	if err != nil {
		return nil, err
	}
	mr, err := pd.Register(buf, rdma.LocalWrite)
	return &region{mr, pd}, err
}

// config describes a queue pair in the region's domain.
func (r *region) config(cq rdma.CQ) rdma.QPConfig {
	return rdma.QPConfig{PD: r.pd, SendCQ: cq, RecvCQ: cq, Caps: rdma.QPCaps{
		MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1,
	}}
}
