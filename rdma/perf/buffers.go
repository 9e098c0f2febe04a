package perf

import (
	"errors"

	"github.com/rstored/rstored/rdma"
)

// slotLen is the memory of each receive, and of each message of this package.
const slotLen = 64

var errMemory = errors.New("no memory is left for the buffers")

// buffers is the registered memory of one end of a connection. It has a protection domain of its
// own, so that a peer that guesses keys reaches no memory of other connections.
type buffers struct {
	arena *rdma.Arena
	pd    rdma.PD

	source rdma.MR // local memory of the messages that the end posts; nil if it posts none
	target rdma.MR // memory that the peer writes, reads or sends to; nil if it does not
	slots  rdma.MR // of the receives, then of the messages of this package
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

// newBuffers allocates and registers the memory of an end.
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
		clear(b.target.Bytes()) // from data of an earlier client
	}
	return b, nil
}

// touch writes to each page. Pages that were never written are all the same page of zeros, which is
// in the cache: reading them would be faster than reading memory.
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

// release frees the memory. The device must not use it any more.
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

// slot is the memory of receive i; the messages follow the receives.
func (b *buffers) slot(i int) []byte { return b.slots.Bytes()[i*slotLen : (i+1)*slotLen] }

// remote is the name of the target for the peer.
func (b *buffers) remote() remote {
	if b.target == nil {
		return remote{}
	}
	return remote{b.target.Addr(), b.target.RKey()}
}
