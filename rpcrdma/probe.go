package rpcrdma

import "github.com/rstored/rstored/rdma"

// A reliable connection finds out that its peer is gone by what it sends: a side
// that only waits does not. A client whose call was acknowledged waits for a
// reply that a server which gave the connection up meanwhile will never send, and
// a server keeps the memory of a client that was switched off. So a side that has
// heard nothing for a while writes zero bytes to its peer: that needs no memory
// there and no receive, costs one packet and its ACK, and fails as any request
// does when nobody answers.
const (
	// clientProbe is how long a client with calls in flight hears nothing before
	// it probes, serverProbe is the same for a server, calls or not.
	clientProbe = 5 * rdma.Second
	serverProbe = 60 * rdma.Second
)

// prober probes one connection. It belongs to the connection's loop.
type prober struct {
	conn    rdma.Conn
	every   rdma.Time
	wanted  func() bool // whether silence is worth a probe
	heard   bool        // since the last tick
	probing bool        // a probe is under way
	cancel  func()
}

// start begins to watch a connection that is established.
func (p *prober) start(conn rdma.Conn, every rdma.Time, wanted func() bool) {
	p.conn, p.every, p.wanted = conn, every, wanted
	p.cancel = conn.Loop().After(every, p.tick)
}

func (p *prober) tick() {
	p.cancel = p.conn.Loop().After(p.every, p.tick)
	heard := p.heard
	p.heard = false
	if heard || p.probing || !p.wanted() {
		return
	}
	p.probing = p.conn.QP().PostSend([]rdma.SendWR{{ID: workID(idProbe, 0), Op: rdma.OpWrite, Flags: rdma.Signaled}}) == nil
}

// answered takes the completion of a probe.
func (p *prober) answered() { p.probing, p.heard = false, true }

// stop ends the watch.
func (p *prober) stop() {
	if p.cancel != nil {
		p.cancel()
	}
	p.cancel = nil
}
