// Package sim is a network in memory with a virtual clock. Its links implement link.Link: they
// lose, repeat, delay, reorder and corrupt datagrams as a seed decides. Ports of switches queue,
// drop and mark them, and sockets of hosts overflow. It knows nothing of queue pairs: it carries
// datagrams.
//
// Begin with New, Network.Open and Network.Advance; bottleneck.go has switches and hosts.
//
//	net := sim.New(sim.Config{Seed: 1, Loss: 0.01})
//	a, _ := net.Open(addrA) // each an endpoint for a device or an engine
//	b, _ := net.Open(addrB)
//	for t := net.Next(); t != 0; t = net.Next() {
//		net.Advance(t) // then let the owners of a and b receive and send
//	}
//
// One goroutine runs everything, so the same seed gives the same run. Only Link.Wake may be
// called from other goroutines.
package sim
