package link

import "net/netip"

// Segmenter is a Link that can send several datagrams as segments of one buffer, which the kernel
// or the network card cuts up.
type Segmenter interface {
	// Suspect reports a loss pattern to the link: packets to a peer are lost as if every segment
	// but the first were wrong. It reports whether the link now sends to that peer without
	// segmentation for good.
	Suspect(peer netip.Addr) bool
}

// Segmentation decides to which peers a link sends without segmentation, because a network card
// or a driver makes wrong segments. A wrong IPv4 identification is enough: the ICRC covers it,
// and the peer drops the packet and sends nothing.
//
// The pattern alone does not prove this, because a peer that receives one packet at a time loses
// packets in the same way. So the link tests each suspicion: the peer gets trialLength datagrams
// without segmentation, and then as many with it. Segmentation is at fault if the losses end
// without it and come back with it. The state of a peer:
//
//	          evidence            trialLength datagrams        evidence
//	(none) -------------> without -----------------------> with --------> off
//	   ^                     | evidence: not at fault       | trialLength datagrams: not at fault
//	   +---------------------+------------------------------+
//
// The zero value is ready. It belongs to one goroutine.
type Segmentation struct {
	peers map[netip.Addr]*trial
}

type trial struct {
	state trialState
	count int // datagrams in this state that were, or would have been, segments behind the first
}

type trialState uint8

const (
	trialWithout trialState = iota
	trialWith
	trialOff
)

const (
	// trialLength is some megabytes of data, and hundreds of buffers.
	trialLength = 4096
	// trialsMax bounds the peers that are remembered.
	trialsMax = 1024
)

// Allowed reports whether the next datagram to a peer may be a segment behind another one.
func (s *Segmentation) Allowed(peer netip.Addr) bool {
	if len(s.peers) == 0 {
		return true
	}
	t := s.peers[peer.Unmap()]
	if t == nil {
		return true
	}
	if t.state == trialOff {
		return false
	}
	if t.count++; t.count < trialLength {
		return t.state == trialWith
	}
	if t.state == trialWith {
		delete(s.peers, peer.Unmap())
	} else {
		*t = trial{state: trialWith}
	}
	return true
}

// Suspect takes evidence, see Segmenter.
func (s *Segmentation) Suspect(peer netip.Addr) bool {
	peer = peer.Unmap()
	t := s.peers[peer]
	switch {
	case t == nil && len(s.peers) < trialsMax:
		if s.peers == nil {
			s.peers = map[netip.Addr]*trial{}
		}
		s.peers[peer] = &trial{}
	case t == nil || t.state == trialOff:
	case t.state == trialWithout:
		delete(s.peers, peer)
	default:
		t.state = trialOff
		return true
	}
	return false
}
