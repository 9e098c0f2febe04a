package perf

import (
	"errors"

	"github.com/rstored/rstored/rdma"
)

// slotLen is the room that each receive and each message of this package has for
// itself.
const slotLen = 64

var errMemory = errors.New("no memory is left for the buffers")

// buffers is the registered memory of one end of a connection, in a protection domain
// of its own: a key that a peer guesses opens nothing of another's.
type buffers struct {
	arena *rdma.Arena
	pd    rdma.PD

	source rdma.MR // what the end posts comes from here, or is read to here; nil if it posts nothing
	target rdma.MR // what the peer posts goes here, or comes from here; nil if it posts nothing
	slots  rdma.MR // of receives, then of messages that are sent
}

// need is the arena's memory, in bytes, for one end. Blocks are powers of two.
func (p *plan) need(server bool) int {
	sends, recvs := p.queues(server)
	n := block((sends + recvs) * slotLen)
	if p.posts(server) {
		n += block(p.size)
	}
	if p.target(server) {
		n += block(p.size)
	}
	return n
}

func block(n int) int {
	b := rdma.ArenaBlockMin
	for b < n {
		b *= 2
	}
	return b
}

// newBuffers takes and registers the memory of an end.
func newBuffers(dev rdma.Device, arena *rdma.Arena, p *plan, server bool) (_ *buffers, err error) {
	b := &buffers{arena: arena}
	defer func() {
		if err != nil {
			b.release()
		}
	}()
	if b.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	_, recvs := p.queues(server)
	if b.slots, err = b.register((recvs+controlDepth)*slotLen, rdma.LocalWrite); err != nil {
		return nil, err
	}
	if p.posts(server) {
		if b.source, err = b.register(p.size, rdma.LocalWrite); err != nil {
			return nil, err
		}
		touch(b.source.Bytes())
	}
	if p.target(server) {
		if b.target, err = b.register(p.size, p.access()); err != nil {
			return nil, err
		}
		clear(b.target.Bytes()) // of what an earlier client wrote
	}
	return b, nil
}

// touch writes to each page. Pages that were never written are one page of zeros, and
// faster than memory is.
func touch(b []byte) {
	for i := 0; i < len(b); i += rdma.ArenaBlockMin {
		b[i] = 1
	}
}

func (b *buffers) register(n int, access rdma.Access) (rdma.MR, error) {
	mem := b.arena.Alloc(n)
	if mem == nil {
		return nil, errMemory
	}
	mr, err := b.pd.Register(mem, access)
	if err != nil {
		b.arena.Free(mem)
		return nil, err
	}
	return mr, nil
}

// release gives the memory back. Nothing may be about to be sent from it.
func (b *buffers) release() {
	for _, mr := range []rdma.MR{b.source, b.target, b.slots} {
		if mr != nil {
			mem := mr.Bytes()
			mr.Close()
			b.arena.Free(mem)
		}
	}
	if b.pd != nil {
		b.pd.Close()
	}
}

// slot is the memory of receive i, or with recvs added of message i.
func (b *buffers) slot(i int) []byte { return b.slots.Bytes()[i*slotLen : (i+1)*slotLen] }

// remote is how the peer names the memory that it may use.
func (b *buffers) remote() remote {
	if b.target == nil {
		return remote{}
	}
	return remote{b.target.Addr(), b.target.RKey()}
}
