// Package pcap writes RoCEv2 packets as a pcap file that Wireshark and tcpdump read: FileHeader,
// then AppendRecord for each packet. It makes the IP and UDP headers that the packet had on the
// wire, so it needs no frame. It knows nothing of devices. rdma/wire/wiretest reads such files.
//
// Begin reading at AppendRecord. The functions have no state and may be called from any goroutine.
//
//	b := pcap.FileHeader()
//	b = pcap.AppendRecord(b, time.Now(), &flow, datagram, 0) // 0: the whole packet
package pcap
