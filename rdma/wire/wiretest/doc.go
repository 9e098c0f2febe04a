// Package wiretest reads packet captures for tests: it takes the RoCEv2 packets out of a pcap file
// together with what their IP headers said, so that a test can compare our decoders, encoders and
// ICRC with those of another implementation. It knows nothing of connections. Begin reading at
// Frames; Streams puts the messages of each queue pair together. The functions have no state and
// may be called from any goroutine.
//
//	frames, err := wiretest.Frames(capture)
//	for _, f := range frames {
//		err := p.Parse(f.Datagram)
//	}
package wiretest
