package link

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// TestSegmentation: a link stops segmentation for a peer only if its losses end without
// segmentation and come back with it.
func TestSegmentation(t *testing.T) {
	peer, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var s Segmentation
	// sends passes n datagrams to the peer and reports how many were allowed.
	sends := func(n int) (allowed int) {
		t.Helper()
		for range n {
			if s.Allowed(netip.AddrFrom16(peer.As16())) {
				allowed++
			}
			if !s.Allowed(other) {
				t.Fatal("another peer is concerned")
			}
		}
		return allowed
	}
	suspect := func(want bool) {
		t.Helper()
		if s.Suspect(peer) != want {
			t.Fatalf("suspected: %v", !want)
		}
	}
	if n := sends(10); n != 10 {
		t.Errorf("without evidence %d of 10 are allowed", n)
	}
	// Without segmentation the losses go on.
	suspect(false)
	if n := sends(100); n != 0 {
		t.Errorf("during the trial %d of 100 are allowed", n)
	}
	suspect(false)
	if n := sends(100); n != 100 || len(s.peers) != 0 {
		t.Errorf("segmentation is not at fault, and %d of 100 are allowed", n)
	}
	// Without segmentation the losses end, and with it they do not come back.
	suspect(false)
	if n := sends(trialLength); n != 1 {
		t.Errorf("in the trial %d are allowed", n)
	}
	if n := sends(trialLength); n != trialLength || len(s.peers) != 0 {
		t.Errorf("segmentation is not at fault, and %d of %d are allowed", n, trialLength)
	}
	// With segmentation the losses come back.
	suspect(false)
	sends(trialLength + 10)
	suspect(true)
	suspect(false)
	if n := sends(3 * trialLength); n != 0 {
		t.Errorf("segmentation is at fault, and %d are allowed", n)
	}
	// The number of remembered peers is bounded. Beyond the bound a peer is not suspected.
	for i := range uint32(2 * trialsMax) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 10<<24|i)
		s.Suspect(netip.AddrFrom4(b))
	}
	if len(s.peers) != trialsMax || !s.Allowed(other) {
		t.Errorf("%d peers", len(s.peers))
	}
}
