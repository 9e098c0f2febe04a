package rpc

import "net/netip"

// Transport is the kind of transport of a call.
type Transport uint8

// Transports.
const (
	TransportTCP Transport = iota + 1
	TransportRDMA
	TransportUDP // small programs only, see rpcrdma/udp
)

func (t Transport) String() string {
	switch t {
	case TransportTCP:
		return "tcp"
	case TransportRDMA:
		return "rdma"
	case TransportUDP:
		return "udp"
	}
	return "unknown"
}

// Peer describes the other end of a connection.
type Peer struct {
	Addr      netip.AddrPort
	Local     netip.AddrPort
	Transport Transport
	PKey      uint16 // our key of the partition of an RDMA connection; 0 for other transports
	// Conn is the connection's number, see NextConn.
	Conn int64
	// Security is the protection of the connection. Name is the peer's name in its certificate, if
	// that was verified.
	Security Security
	Name     string
}

// Security is what protects a connection, apart from the credentials of its calls (RFC 9289).
type Security uint8

// Securities.
const (
	Cleartext Security = iota
	// TLS encrypts and authenticates the messages. The peer is not authenticated.
	TLS
	// MutualTLS is TLS with a verified certificate of the peer.
	MutualTLS
)

// String is the name as exports(5) and the mount option xprtsec have it.
func (s Security) String() string {
	switch s {
	case Cleartext:
		return "none"
	case TLS:
		return "tls"
	case MutualTLS:
		return "mtls"
	}
	return "unknown"
}
