package rpcrdma

import (
	"errors"

	"github.com/rstored/rstored/rdma"
)

// A reliable connection detects a lost peer only when it sends: a request that is not acknowledged
// fails. A side that only waits detects nothing. A client whose call was acknowledged would wait
// forever for the reply of a server that has given up the connection. A server would retain the
// memory of a client that was switched off.
//
// So a side that saw no completion for a while posts an RDMA WRITE of zero bytes. It needs no
// memory and no receive at the peer (IBTA 9.7.4.1.5: no R_Key check for length 0), and costs one
// packet and its ACK. If nobody answers it fails like any request.
const (
	// clientProbe is the silence after which a client with calls in flight probes. serverProbe
	// is the same for a server, with or without calls.
	clientProbe = 5 * rdma.Second
	serverProbe = 60 * rdma.Second

	// probeLimit bounds the wait for the answer to a probe. It is longer than the retries of a
	// queue pair with the largest ACK timeout in use. But a device may retry for ever: rdma_rxe
	// does with the retry count 7, which the peer sets in its REQ.
	probeLimit = 180 * rdma.Second
)

var errSilent = errors.New("the peer has answered nothing for three minutes")

// prober probes one connection. It belongs to the connection's loop.
//
//	tick            tick              tick              tick
//	 | completions   | nothing         | nothing         | the probe failed, or after probeLimit:
//	 | no probe      | probe is sent   | the probe waits | lost
//
// The peer sees an RDMA WRITE without data, and acknowledges it like any request.
type prober struct {
	conn     rdma.Conn
	every    rdma.Time
	wanted   func() bool // whether the silence matters
	progress bool        // a work request completed since the last tick
	probing  bool        // a probe is in flight; at most one is
	waited   rdma.Time   // for that probe, without progress
	lost     func(error) // ends the connection
	timer
}

// start starts the ticks of an established connection.
func (p *prober) start(conn rdma.Conn, every rdma.Time, wanted func() bool, lost func(error)) {
	p.conn, p.every, p.wanted, p.lost = conn, every, wanted, lost
	p.cancel = conn.Loop().After(every, p.tick)
}

// tick posts a probe after an interval without a completion, if none is in flight. A failed
// PostSend (the send queue is full) is repeated at the next tick.
//
//	since the last tick          the tick
//	a completion                 does nothing, and starts counting anew
//	none, a probe in flight      adds an interval; ends the connection at probeLimit
//	none, silence is harmless    does nothing (wanted)
//	none                         posts a probe
func (p *prober) tick() {
	p.cancel = p.conn.Loop().After(p.every, p.tick)
	progress := p.progress
	p.progress = false
	if progress {
		p.waited = 0
		return
	}
	if p.probing {
		if p.waited += p.every; p.waited >= probeLimit {
			p.lost(errSilent)
		}
		return
	}
	if !p.wanted() {
		return
	}
	p.waited = 0
	wr := rdma.SendWR{ID: workID(idProbe, 0), Op: rdma.OpWrite, Flags: rdma.Signaled}
	p.probing = p.conn.QP().PostSend([]rdma.SendWR{wr}) == nil
}

// answered handles the completion of a probe.
func (p *prober) answered() { p.probing, p.progress = false, true }

// timer is a timer of a loop that may be running.
type timer struct{ cancel func() }

// stop stops the timer, if it is running.
func (t *timer) stop() {
	if t.cancel != nil {
		t.cancel()
	}
	t.cancel = nil
}
