// Udaddy is udaddy of rdma-core over the software device: queue pairs for datagrams that
// find each other by SIDR, and some messages each way between each two of them.
//
//	udaddy -listen 10.99.0.1 -connections 8 -messages 10 -size 1000      # and on the other host:
//	udaddy -s 10.99.0.1 -c 8 -C 10 -S 1000
//
//	udaddy -listen 10.99.0.1 -connect 10.99.0.2 -connections 8 -messages 10    # and there:
//	udaddy -b 10.99.0.2 -c 8 -C 10
//
// A datagram that is lost is not sent again, and the run fails: as rdma-core has it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
)

// port is the port of udaddy.
const port = 7174

type job struct {
	connections, messages, size int
}

func main() {
	listen := flag.String("listen", "", "local `address`")
	connect := flag.String("connect", "", "be the client of the udaddy at this `address`")
	var j job
	flag.IntVar(&j.connections, "connections", 1, "how many; the other side must have been told the same")
	flag.IntVar(&j.messages, "messages", 10, "each way for each of them")
	flag.IntVar(&j.size, "size", 100, "bytes of a message, at most the path MTU")
	limit := flag.Duration("limit", time.Minute, "for all of it")
	flag.Parse()
	ctx, stop := context.WithTimeout(context.Background(), *limit)
	defer stop()
	if err := j.run(ctx, *listen, *connect); err != nil {
		fmt.Fprintln(os.Stderr, "udaddy:", err)
		os.Exit(1)
	}
	fmt.Println("all datagrams sent and received")
}

// run opens the device and does the job on its loop.
func (j *job) run(ctx context.Context, listen, connect string) error {
	addr, err := netip.ParseAddr(listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	var to netip.Addr
	if connect != "" {
		if to, err = netip.ParseAddr(connect); err != nil {
			return fmt.Errorf("-connect: %w", err)
		}
	}
	dev, err := roce.Open(roce.Config{Addr: addr})
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	if j.size > int(dev.MTU()) {
		return fmt.Errorf("messages of %d bytes; the path MTU is %d", j.size, dev.MTU())
	}
	h := &host{job: *j, dev: dev, loop: dev.Loops()[0], over: make(chan error, 1)}
	h.loop.Submit(func() {
		if to.IsValid() {
			h.finish(h.call(netip.AddrPortFrom(to, port)))
		} else {
			h.finish(h.serve())
		}
	})
	select {
	case err := <-h.over:
		return err
	case <-ctx.Done():
	}
	state := make(chan error, 1)
	h.loop.Submit(func() { state <- fmt.Errorf("%w; %s", ctx.Err(), h.progress()) })
	return <-state
}

// host is this side. It lives on the loop.
type host struct {
	job
	dev    *roce.Device
	loop   rdma.Loop
	server bool
	nodes  []*node
	done   int
	over   chan error
}

// node is one queue pair and its peer.
type node struct {
	h        *host
	qp       rdma.QP
	cq       rdma.CQ
	mr       rdma.MR
	to       *rdma.AH
	received int
	sent     int
}

// finish ends the job if err says so.
func (h *host) finish(err error) {
	if err != nil {
		h.end(err)
	}
}

// end ends the job; the first word counts.
func (h *host) end(err error) {
	select {
	case h.over <- err:
	default:
	}
}

func (h *host) progress() string {
	s := fmt.Sprintf("%d of %d queue pairs", len(h.nodes), h.connections)
	for i, n := range h.nodes {
		if n.received < h.messages || n.sent < h.messages {
			s += fmt.Sprintf("; number %d received %d and sent %d of %d", i, n.received, n.sent, h.messages)
		}
	}
	return s
}

// serve waits for questions, and answers each with a queue pair of its own.
func (h *host) serve() error {
	h.server = true
	_, err := h.dev.ListenUD(port, func(r rdma.UDRequest) {
		if len(h.nodes) == h.connections {
			r.Reject(rdma.SIDRNoQP, nil)
			return
		}
		n, err := h.newNode()
		if err == nil {
			err = r.Accept(n.qp.Num(), rdma.UDQKey, nil)
		}
		h.finish(err)
	})
	return err
}

// call asks for as many queue pairs as there are of ours. Nothing is sent before all are
// known: the server of rdma-core reads its messages after it has given out all of them.
func (h *host) call(to netip.AddrPort) error {
	known := 0
	for range h.connections {
		n, err := h.newNode()
		if err != nil {
			return err
		}
		_, err = h.dev.ResolveUD(h.loop, rdma.ResolveParams{Remote: to, On: func(a rdma.UDAddress) {
			if a.Err != nil {
				h.finish(a.Err)
				return
			}
			n.to = &a.AH
			if known++; known < h.connections {
				return
			}
			for _, n := range h.nodes {
				h.finish(n.send())
			}
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *host) newNode() (*node, error) {
	n := &node{h: h}
	pd, err := h.dev.AllocPD()
	if err != nil {
		return nil, err
	}
	piece := rdma.GRHLen + h.size
	// The messages are sent from what lies behind the receives.
	if n.mr, err = pd.Register(make([]byte, (h.messages+1)*piece), rdma.LocalWrite); err != nil {
		return nil, err
	}
	if n.cq, err = h.dev.CreateCQ(h.loop, rdma.CQOptions{Depth: 2 * h.messages, OnEvent: n.poll}); err != nil {
		return nil, err
	}
	n.qp, err = h.dev.CreateQP(h.loop, rdma.QPConfig{
		Type: rdma.UD, PD: pd, SendCQ: n.cq, RecvCQ: n.cq,
		Caps: rdma.QPCaps{MaxSendWR: h.messages, MaxRecvWR: h.messages, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return nil, err
	}
	recvs := make([]rdma.RecvWR, h.messages)
	for i := range recvs {
		recvs[i] = rdma.RecvWR{ID: uint64(i), SGL: []rdma.SGE{{Buf: n.mr.Bytes()[i*piece:][:piece], LKey: n.mr.LKey()}}}
	}
	for _, a := range []rdma.QPAttr{
		{State: rdma.StateInit, QKey: rdma.UDQKey},
		{State: rdma.StateRTR},
		{State: rdma.StateRTS},
	} {
		if err := n.qp.Modify(a); err != nil {
			return nil, err
		}
	}
	h.nodes = append(h.nodes, n)
	return n, n.qp.PostRecv(recvs)
}

// send sends all messages. The immediate says where answers go, as the server of rdma-core
// wants it.
func (n *node) send() error {
	wrs := make([]rdma.SendWR, n.h.messages)
	data := n.mr.Bytes()[n.h.messages*(rdma.GRHLen+n.h.size):][:n.h.size]
	for i := range wrs {
		wrs[i] = rdma.SendWR{
			Op: rdma.OpSendImm, Imm: n.qp.Num(), Flags: rdma.Signaled, AH: n.to,
			SGL: []rdma.SGE{{Buf: data, LKey: n.mr.LKey()}},
		}
	}
	return n.qp.PostSend(wrs)
}

// poll takes completions; a server answers when all messages of a client are there.
func (n *node) poll() {
	var wc [16]rdma.WC
	for k := n.cq.Poll(wc[:]); k > 0; k = n.cq.Poll(wc[:]) {
		for i := range wc[:k] {
			if err := n.take(&wc[i]); err != nil {
				n.h.finish(err)
				return
			}
		}
	}
	if n.received == n.h.messages && n.sent == n.h.messages {
		n.sent++ // once
		if n.h.done++; n.h.done == n.h.connections {
			n.h.end(nil)
		}
	}
}

var errSender = errors.New("the message is not from where it says")

func (n *node) take(wc *rdma.WC) error {
	switch {
	case wc.Status != rdma.Success:
		return fmt.Errorf("a request completed with %v", wc.Status)
	case wc.Op == rdma.WCSend:
		n.sent++
		return nil
	case wc.ByteLen != uint32(rdma.GRHLen+n.h.size) || wc.Flags&^rdma.WithEvent != rdma.GRH|rdma.WithImm:
		return fmt.Errorf("a message of %d bytes with flags %d, want %d and the header", wc.ByteLen, wc.Flags, n.h.size)
	}
	src, dst := rdma.GRHAddrs(n.mr.Bytes()[int(wc.ID)*(rdma.GRHLen+n.h.size):])
	if wc.Imm != wc.SrcQPN || dst != n.h.dev.Addr() {
		return fmt.Errorf("%w: queue pairs %#x and %#x, to %v", errSender, wc.Imm, wc.SrcQPN, dst)
	}
	if n.to == nil {
		n.to = &rdma.AH{Remote: src, QPN: wc.SrcQPN, QKey: rdma.UDQKey}
	}
	if n.to.Remote != src || n.to.QPN != wc.SrcQPN {
		return fmt.Errorf("%w: from %v queue pair %#x, want %v and %#x", errSender, src, wc.SrcQPN, n.to.Remote, n.to.QPN)
	}
	if n.received++; n.h.server && n.received == n.h.messages {
		return n.send()
	}
	return nil
}
